"""The moments of a loop that is not ours: when it asks for a batch and has it, when the model's forward is over, when
the optimizer begins and ends.

Nothing of it waits for a device or changes what is computed: the model's call, two hooks on the optimizer, and an
iterator around the loader each take a moment.
"""

from __future__ import annotations

import contextlib
import functools
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from time import perf_counter
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook

from parabench.probes.ddp import after_forward
from parabench.probes.step_clock import StepClock
from parabench.strategies.base import StepMarker

T = TypeVar("T")
P = ParamSpec("P")

# The marks of a step: the batch was asked for, was there, forward was over, the optimizer began (backward was over),
# the optimizer ended, and the next batch was asked for.
REQUESTED, LOADED, FORWARD, BACKWARD, OPTIMIZER, END = range(6)
WIDTH = END + 1
# What is marked next where no further step is.
OVER = WIDTH


def guarded(callback: Callable[Concatenate[Loop, P], T]) -> Callable[..., T | None]:
    """Let no error of a callback reach the training: at the first error, the loop marks no further step."""

    @functools.wraps(callback)
    def call(loop: Loop, *args: P.args, **named: P.kwargs) -> T | None:
        try:
            return callback(loop, *args, **named)
        except Exception as why:
            loop._give_up(why)
            return None

    # As `torch.compiler.disable` marks a function, but without importing the compiler: a compiled `optimizer.step`
    # calls the callback instead of tracing into it.
    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call


class Loop:
    """Mark the steps of one rank on `clock`. A step ends when a batch is requested after the optimizer has stepped, so
    with gradient accumulation it has several batches.

    A step that continues in another loop over batches is discarded, because it includes the time between the loops.

    Args:
        begin_step: Called between two steps, and again if a step starts again. Returns the marker for the step, or
            `None` to mark no further steps.
        first_batch: Called with the first batch.
        first_forward: Called during the forward calls of the first step.
        first_gradients: Called when the first step has its gradients.
        failed: Receives the first error of a callback. The steps before it are kept.
    """

    def __init__(
        self,
        clock: StepClock,
        *,
        begin_step: Callable[[int], StepMarker | None],
        first_batch: Callable[[Any], None] = lambda batch: None,
        first_forward: Callable[[], None] = lambda: None,
        first_gradients: Callable[[], None] = lambda: None,
        failed: Callable[[Exception], None] = lambda why: None,
    ) -> None:
        self._clock, self._begin_step, self._failed = clock, begin_step, failed
        self._first_batch, self._first_forward, self._first_gradients = first_batch, first_forward, first_gradients
        self._marker: StepMarker = clock
        self._next = REQUESTED
        self._forwards = self._batches = 0
        # Whether forward and backward take turns: the step before had several forwards.
        self._turns = False
        # Whether the loop was left since a batch was asked for, and amid the step that has begun.
        self._left = self._straddles = False
        self._left_s = 0.0
        # When the batch that the loop waits for was asked for; None if the loop waits for none.
        self._asked_s: float | None = None
        self.steps = 0
        # {step: seconds} between two loops over batches, before that step: a validation after an epoch, for example.
        self.pauses: dict[int, float] = {}
        # Whether a batch came, whether the watched model was called, and whether the watched optimizer stepped.
        self.batch_seen = self.forward_seen = self.optimizer_seen = False
        # Steps of other optimizers by their class, those since the last batch, and the batches that belong to them.
        self.other_steps: Counter[str] = Counter()
        self._other_stepped = False
        self._batches_of_others = 0
        # How long the step that has begun, and every step before the last that had several batches, waited for batches
        # after its first, in seconds. How many steps had how many batches.
        self._later_s, self._later_waits = 0.0, array("d")
        self._batches_of: Counter[int] = Counter()

    @property
    def batches_of_step(self) -> int:
        """The number of batches of most steps. With accumulation, the last step of an epoch may have fewer, and a step
        that a loss scaler skips is part of the next one."""
        return self._batches_of.most_common(1)[0][0] if self._batches_of else 1

    def later_waits(self, steps: Iterable[int]) -> dict[int, float]:
        """Return the seconds that `steps` with several batches waited for batches after the first, by step."""
        return {at: self._later_waits[at] for at in steps if at < len(self._later_waits) and self._later_waits[at]}

    @contextlib.contextmanager
    def hooked(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Observe the model and its optimizer while the block runs."""
        hooks = (
            optimizer.register_step_pre_hook(lambda _, args, more: self._before_step(args, more)),
            optimizer.register_step_post_hook(lambda *_: self._optimizer_ends()),
            register_optimizer_step_post_hook(
                lambda other, *_: None if other is optimizer or is_compiling() else self._other_optimizer_ends(other)
            ),
        )
        try:
            with after_forward(module, self._forward_is_over):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def over(self, batches: Iterable[T]) -> Batches[T]:
        """Return `batches` unchanged, for a loop whose steps are marked."""
        return Batches(self, batches)

    @guarded
    def asks(self) -> None:
        """The loop asks for a batch."""
        if self._left and self.steps:
            self.pauses[self.steps] = self.pauses.get(self.steps, 0.0) + perf_counter() - self._left_s
        if self._next == END:
            self._mark()
            self._close()
        if self._next == REQUESTED:
            marker = self._begin_step(self.steps)
            if marker is None:
                self._next = OVER
            else:
                self._marker = marker
                self._mark()
        else:
            self._straddles |= self._left and self._next > LOADED
        self._asked_s = perf_counter()
        self._left = False

    @guarded
    def has(self, batch: Any) -> None:
        """The batch is there."""
        if self._next in (REQUESTED, END):  # nobody said that it was asked for
            self.asks()
        if self._next == OVER:
            return
        if self._next == LOADED:
            self._mark()
        else:
            self._later_s += 0.0 if self._asked_s is None else perf_counter() - self._asked_s
            self._batches_of_others += self._other_stepped
        self._asked_s, self._other_stepped, self.batch_seen = None, False, True
        self._batches += 1
        if self.steps == 0 and self._batches == 1:
            self._first_batch(batch)

    @guarded
    def has_none(self) -> None:
        """There was no further batch: what was asked for began no step."""
        self._leave(perf_counter() if self._asked_s is None else self._asked_s)
        if self._next == LOADED:
            self._clock.forget()
            self._next = REQUESTED

    @guarded
    def leaves(self) -> None:
        """The loop over these batches was left."""
        if self._next == END:
            self._mark()
            self._close()
        self._leave(perf_counter())

    def _leave(self, now_s: float) -> None:
        if not self._left:
            self._left, self._left_s = True, now_s

    @guarded
    def finish(self) -> None:
        """No more steps: one that has begun is none."""
        self.leaves()
        if self._next != OVER:
            self._forget(self._next)
        self._next = OVER
        self._marker = self._clock  # instruments hold the model

    def _give_up(self, why: Exception) -> None:
        """Mark nothing from here on. Steps that are over stay; the step that has begun is none."""
        self._next = OVER
        self._failed(why)
        with contextlib.suppress(Exception):  # of a clock that fails again
            self._clock.keep_steps(self.steps)

    @guarded
    def _forward_is_over(self) -> None:
        if self._next not in (FORWARD, BACKWARD, OPTIMIZER) or not torch.is_grad_enabled():  # a validation in the loop
            return
        self._forwards += 1
        self.forward_seen = True
        if self.steps == 0:
            self._first_forward()
        if self._next == FORWARD:
            self._skip() if self._turns else self._mark()
        elif self._forwards == 2 and not self._turns:
            self._clock.forget(self._next - FORWARD, skipped=True)

    @guarded
    def _before_step(self, args: tuple[Any, ...], more: dict[str, Any]) -> tuple[Any, Any] | None:
        """The optimizer's step was called. With a closure, as Lightning has one, forward and backward are still to
        come, inside of it: then the call is given one that also tells when they are over."""
        self.optimizer_seen = True
        closures = [each for each in (*args[1:], *more.values()) if callable(each)] if args[1:] or more else ()
        if not closures:
            self._optimizer_begins()
            return None

        def telling(*given: Any) -> Any:
            again = self._next == OPTIMIZER
            result = closures[0](*given)
            self._closure_is_over(again)
            return result

        def instead(each: Any) -> Any:
            return telling if each is closures[0] else each

        # What is given first is the optimizer.
        return tuple(map(instead, args)), {name: instead(each) for name, each in more.items()}

    @guarded
    def _closure_is_over(self, again: bool) -> None:
        if again and self._next == OPTIMIZER:  # LBFGS calls it many times: only now backward is over
            self._clock.again()
        self._optimizer_begins()

    @guarded
    def _other_optimizer_ends(self, other: torch.optim.Optimizer) -> None:
        """Another optimizer stepped: the batch before was not accumulated for the watched one. An optimizer inside or
        around the watched one steps when backward is over, and does not count."""
        if self._next in (FORWARD, BACKWARD):
            self._other_stepped = True
            self.other_steps[type(other).__name__] += 1

    def _optimizer_begins(self) -> None:
        if self._next == FORWARD:  # its forward was called past the hook
            self._skip()
        if self._next == BACKWARD:
            if self.steps == 0:
                self._first_gradients()
            self._mark()

    @guarded
    def _optimizer_ends(self) -> None:
        if self._next == OPTIMIZER:
            self._mark()
            if self._left:  # one step an epoch, after its loop
                self._mark()
                self._close()
                self._left_s = perf_counter()
        elif self._next == END:  # a second optimizer
            self._clock.again()

    def _mark(self) -> None:
        self._marker.mark()
        self._next += 1

    def _skip(self) -> None:
        self._marker.skip()
        self._next += 1

    def _forget(self, marks: int) -> None:
        for _ in range(marks):
            self._clock.forget()

    def _close(self) -> None:
        if self._straddles:
            self._forget(WIDTH)
        else:
            if self._batches > 1:
                self._later_waits.extend(repeat(0.0, self.steps - len(self._later_waits)))
                self._later_waits.append(self._later_s)
            self._turns = self._forwards > 1
            self._batches_of[self._batches - self._batches_of_others] += 1
            self.steps += 1
        self._next, self._forwards, self._batches, self._straddles = REQUESTED, 0, 0, False
        self._later_s, self._asked_s = 0.0, None
        self._other_stepped, self._batches_of_others = False, 0


class Batches(Generic[T]):
    """Batches that tell the loop when they are requested and when they are available: an iterable, or the iterator that
    it was made of. It has the attributes of what it was made of, such as a loader's `sampler`."""

    def __init__(self, loop: Loop, batches: Iterable[T]) -> None:
        self._loop, self._batches = loop, batches
        self._iterator: Iterator[T] | None = None

    def __next__(self) -> T:
        self._iterator = self._iterator or iter(self)
        return next(self._iterator)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_loop", "_batches", "_iterator"):  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._batches, name)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # TypeError where it has none, as ever

    def __iter__(self) -> Iterator[T]:
        loop = self._loop
        loop.asks()  # starting a loader's workers is part of waiting for the first batch
        iterator = iter(self._batches)
        try:
            while True:
                try:
                    batch = next(iterator)
                except StopIteration:
                    loop.has_none()
                    return
                loop.has(batch)
                yield batch
                loop.asks()
        finally:
            loop.leaves()
