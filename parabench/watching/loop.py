"""The timestamps of the user's training loop: when it requests a batch and has it, when forward is over, and when the
optimizer starts and ends.

Nothing here waits for a device or changes a result: there is an iterator around the loader, the model's call is
wrapped, and the optimizer has two hooks.
"""

from __future__ import annotations

import contextlib
import functools
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
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

# The marks of a step: a batch was requested, it was there, forward was over, backward was over and the optimizer
# started, the optimizer ended, and the next batch was requested. OVER: no further step is marked.
REQUESTED, LOADED, FORWARD, BACKWARD, OPTIMIZER, END, OVER = range(7)
WIDTH = END + 1


def guarded(callback: Callable[Concatenate[Loop, P], T]) -> Callable[..., T | None]:
    """Keep errors of a callback away from the training: after the first error, the loop marks no further step."""

    @functools.wraps(callback)
    def call(loop: Loop, *args: P.args, **named: P.kwargs) -> T | None:
        try:
            return callback(loop, *args, **named)
        except Exception as why:
            loop._next = OVER  # the started step does not count
            loop.marks_failed(why)
            with contextlib.suppress(Exception):  # of a clock that fails again
                loop.clock.keep_steps(loop.steps)
            return None

    # As `torch.compiler.disable` marks a function, but without importing the compiler: a compiled `optimizer.step`
    # calls the callback instead of tracing into it.
    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call


@dataclass(slots=True)
class Step:
    """The step that has begun.

    Attributes:
        later_s: Seconds that it waited for batches after its first one.
        straddles: It continues in another loop over batches.
        batches_of_others: Batches after which another optimizer stepped.
        other_stepped: Another optimizer has stepped since the last batch.
    """

    forwards: int = 0
    batches: int = 0
    later_s: float = 0.0
    straddles: bool = False
    batches_of_others: int = 0
    other_stepped: bool = False


class Loop:
    """Mark the steps of one rank on `clock`. A step ends when a batch is requested after the optimizer has stepped, so
    with gradient accumulation it has several batches.

    A step that continues in another loop over batches is discarded, because it includes the time between the loops.

    Attributes:
        steps: The number of complete steps.
        pauses: {step: seconds} between two loops over batches, before that step, such as a validation.
        other_steps: Steps of other optimizers within the steps of the watched one, by class.
        batch_seen, forward_seen, optimizer_seen: A batch came, the model was called, the optimizer stepped.
    """

    def __init__(self, clock: StepClock) -> None:
        self.clock = clock
        self._marker: StepMarker = clock
        self._next = REQUESTED
        self._step = Step()
        self._alternates = False  # the previous step had several forwards, so forward and backward alternate
        # When the loop over batches was left, and when the awaited batch was requested; None if neither is the case.
        self._left_s: float | None = None
        self._asked_s: float | None = None
        self.steps = 0
        self.pauses: dict[int, float] = {}
        self.batch_seen = self.forward_seen = self.optimizer_seen = False
        self.other_steps: Counter[str] = Counter()
        self._later_waits = array("d")
        self._batches_of: Counter[int] = Counter()

    def begin_step(self, step: int) -> StepMarker | None:
        """Return the marker for the step, or `None` to mark no further step. Called again if a step starts again."""
        return self.clock

    def first_batch(self, batch: Any) -> None:
        """Receive the first batch."""

    def first_forward(self) -> None:
        """Be called in the forward calls of the first step."""

    def first_gradients(self) -> None:
        """Be called when the first step has its gradients."""

    def marks_failed(self, why: Exception) -> None:
        """Receive the first error of a callback. The steps before it are kept."""

    @property
    def batches_of_step(self) -> int:
        """The number of batches of most steps. With accumulation, the last step of an epoch may have fewer, and a step
        that a loss scaler skips is part of the next one."""
        return self._batches_of.most_common(1)[0][0] if self._batches_of else 1

    def later_waits(self, steps: Iterable[int]) -> dict[int, float]:
        """Return the seconds that `steps` with several batches waited for batches after the first, by step."""
        return {at: self._later_waits[at] for at in steps if at < self.steps and self._later_waits[at]}

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

    # For frameworks that own the loop, `asks`, `has` and `has_none` are called from their callbacks.

    @guarded
    def asks(self) -> None:
        """The loop requests a batch."""
        if self._left_s is not None and self.steps:
            self.pauses[self.steps] = self.pauses.get(self.steps, 0.0) + perf_counter() - self._left_s
        if self._next == END:
            self._end_step()
        if self._next == REQUESTED:
            marker = self.begin_step(self.steps)
            if marker is None:
                self._next = OVER
            else:
                self._marker = marker
                self._mark()
        elif self._left_s is not None and self._next > LOADED:
            self._step.straddles = True
        self._asked_s, self._left_s = perf_counter(), None

    @guarded
    def has(self, batch: Any) -> None:
        """The batch is available."""
        if self._next in (REQUESTED, END):  # its request was not reported
            self.asks()
        if self._next == OVER:
            return
        step = self._step
        if self._next == LOADED:
            self._mark()
        else:
            step.later_s += 0.0 if self._asked_s is None else perf_counter() - self._asked_s
            step.batches_of_others += step.other_stepped
        self._asked_s, step.other_stepped, self.batch_seen = None, False, True
        step.batches += 1
        if self.steps == 0 and step.batches == 1:
            self.first_batch(batch)

    @guarded
    def has_none(self) -> None:
        """There are no more batches: the last request did not start a step."""
        self._leave(perf_counter() if self._asked_s is None else self._asked_s)
        if self._next == LOADED:
            self.clock.forget()
            self._next = REQUESTED

    @guarded
    def leaves(self) -> None:
        """The loop over these batches was left."""
        if self._next == END:
            self._end_step()
        self._leave(perf_counter())

    def _leave(self, now_s: float) -> None:
        if self._left_s is None:
            self._left_s = now_s

    @guarded
    def finish(self) -> None:
        """Mark no further step, and discard the step that has begun."""
        self.leaves()
        if self._next != OVER:
            self._forget(self._next)
        self._next = OVER
        self._marker = self.clock  # instruments hold the model

    @guarded
    def _forward_is_over(self) -> None:
        if self._next not in (FORWARD, BACKWARD, OPTIMIZER) or not torch.is_grad_enabled():  # a validation in the loop
            return
        self._step.forwards += 1
        self.forward_seen = True
        if self.steps == 0:
            self.first_forward()
        if self._next == FORWARD:
            self._skip() if self._alternates else self._mark()
        elif self._step.forwards == 2 and not self._alternates:
            self.clock.forget(self._next - FORWARD, skipped=True)

    @guarded
    def _before_step(self, args: tuple[Any, ...], more: dict[str, Any]) -> tuple[Any, Any] | None:
        """Handle a call of the optimizer's step. With a closure, as in Lightning, forward and backward happen inside of
        the closure, which is therefore wrapped."""
        self.optimizer_seen = True
        closures = [each for each in (*args[1:], *more.values()) if callable(each)] if args[1:] or more else ()
        if not closures:
            self._optimizer_begins()
            return None

        def closure(*given: Any) -> Any:
            again = self._next == OPTIMIZER
            result = closures[0](*given)
            self._closure_is_over(again)
            return result

        def replaced(each: Any) -> Any:
            return closure if each is closures[0] else each

        return tuple(map(replaced, args)), {name: replaced(each) for name, each in more.items()}

    @guarded
    def _closure_is_over(self, again: bool) -> None:
        if again and self._next == OPTIMIZER:  # LBFGS calls it many times: backward is over only now
            self.clock.again()
        self._optimizer_begins()

    @guarded
    def _other_optimizer_ends(self, other: torch.optim.Optimizer) -> None:
        """Another optimizer stepped: the batch before was not accumulated for the watched one. An optimizer inside or
        around the watched one steps when backward is over, and does not count."""
        if self._next in (FORWARD, BACKWARD):
            self._step.other_stepped = True
            self.other_steps[type(other).__name__] += 1

    def _optimizer_begins(self) -> None:
        if self._next == FORWARD:  # the forward was called past the hook
            self._skip()
        if self._next == BACKWARD:
            if self.steps == 0:
                self.first_gradients()
            self._mark()

    @guarded
    def _optimizer_ends(self) -> None:
        if self._next == OPTIMIZER:
            self._mark()
            if self._left_s is not None:  # one step per epoch, after its loop
                self._end_step()
                self._left_s = perf_counter()
        elif self._next == END:  # a second optimizer
            self.clock.again()

    def _mark(self) -> None:
        self._marker.mark()
        self._next += 1

    def _skip(self) -> None:
        self._marker.skip()
        self._next += 1

    def _forget(self, marks: int) -> None:
        for _ in range(marks):
            self.clock.forget()

    def _end_step(self) -> None:
        self._mark()
        step = self._step
        if step.straddles:
            self._forget(WIDTH)
        else:
            self._later_waits.append(step.later_s)
            self._alternates = step.forwards > 1
            self._batches_of[step.batches - step.batches_of_others] += 1
            self.steps += 1
        self._next, self._step, self._asked_s = REQUESTED, Step(), None


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
        return len(self._batches)  # type: ignore[arg-type]  # raises TypeError if there is no length

    def __iter__(self) -> Iterator[T]:
        loop = self._loop
        loop.asks()  # the start of a loader's workers is part of the wait for the first batch
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
