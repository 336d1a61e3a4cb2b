"""Take the timestamps of the user's training loop: an iterator around the loader, a wrapper around the model's call,
and hooks of the optimizer. None of them waits for a device or changes a result."""

from __future__ import annotations

import contextlib
import functools
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import torch
from torch import nn

from parabench.probes.ddp import after_forward
from parabench.probes.step_clock import StepClock
from parabench.strategies.base import StepMarker

T = TypeVar("T")
P = ParamSpec("P")

# The timestamps of a step: a batch is requested, the batch is available, forward has ended, backward has ended and the
# optimizer starts, the optimizer has ended, the next batch is requested. After OVER, no further step is marked.
REQUESTED, LOADED, FORWARD, BACKWARD, OPTIMIZER, END, OVER = range(7)
WIDTH = END + 1


def guarded(callback: Callable[Concatenate[Loop, P], T]) -> Callable[..., T | None]:
    """Keep errors of a callback away from the training. After the first error, the loop marks no further step."""

    @functools.wraps(callback)
    def call(loop: Loop, *args: P.args, **named: P.kwargs) -> T | None:
        try:
            return callback(loop, *args, **named)
        except Exception as why:
            loop._next = OVER  # the started step does not count
            loop.marks_failed(why)
            with contextlib.suppress(Exception):  # the clock may fail again
                loop.clock.keep_steps(loop.steps)
            return None

    # `torch.compiler.disable` sets this, but imports the compiler: a compiled `optimizer.step` does not trace into it.
    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call


class Loop:
    """Mark the steps of one rank on `clock`.

    A step ends when a batch is requested after the optimizer has stepped. A step that continues in another loop over
    batches is discarded, because it includes the time between them.
    """

    def __init__(self, clock: StepClock) -> None:
        self.clock = clock
        self._marker: StepMarker = clock
        self._next = REQUESTED
        # The current step: its forwards and batches, the seconds of waiting for later batches, and whether it continues
        # in another loop over batches.
        self._forwards = self._batches = 0
        self._later_s = 0.0
        self._straddles = False
        # Whether the previous step had several forwards: then forward and backward alternate.
        self._alternates = False
        # The time when the loop over batches was left, and when the batch was requested; None if not applicable.
        self._left_s: float | None = None
        self._asked_s: float | None = None
        self.steps = 0  # complete ones
        # {step: seconds} between two loops over batches, before that step, such as a validation.
        self.pauses: dict[int, float] = {}
        self.batch_seen = self.forward_seen = self.optimizer_seen = False
        self._later_waits = array("d")
        self._batches_of: Counter[int] = Counter()

    def begin_step(self, step: int) -> StepMarker:
        """Return the marker for the step. Called again if a step starts again."""
        return self.clock

    def first_batch(self, batch: Any) -> None:
        """Receive the first batch."""

    def first_forward(self) -> None:
        """Called in the forward passes of the first step."""

    def first_gradients(self) -> None:
        """Called when the first step has its gradients."""

    def marks_failed(self, why: Exception) -> None:
        """Receive the first error of a callback. The steps before it are kept."""

    @property
    def batches_of_step(self) -> int:
        """The number of batches of most steps.

        The last step of an epoch may have fewer. A step that a loss scaler skips is part of the next one.
        """
        return self._batches_of.most_common(1)[0][0] if self._batches_of else 1

    def later_waits(self, steps: Iterable[int]) -> dict[int, float]:
        """Return {step: seconds of waiting} for the second and later batches of a step."""
        return {at: self._later_waits[at] for at in steps if at < self.steps and self._later_waits[at]}

    @contextlib.contextmanager
    def hooked(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Observe the model and its optimizer while the block runs."""
        hooks = (
            optimizer.register_step_pre_hook(lambda _, args, more: self._before_step(args, more)),
            optimizer.register_step_post_hook(lambda *_: self._optimizer_ends()),
        )
        try:
            with after_forward(module, self._forward_is_over):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def __call__(self, batches: Iterable[T]) -> Batches[T]:
        """Yield `batches` unchanged, and mark the steps between them."""
        return Batches(self, batches)

    # Frameworks that own the loop call `asks`, `has` and `has_none` from their callbacks.

    @guarded
    def asks(self) -> None:
        """The loop requests a batch."""
        if self._left_s is not None and self.steps:
            self.pauses[self.steps] = self.pauses.get(self.steps, 0.0) + perf_counter() - self._left_s
        if self._next == END:
            self._end_step()
        if self._next == REQUESTED:
            self._marker = self.begin_step(self.steps)
            self._mark()
        elif self._left_s is not None and self._next > LOADED:
            self._straddles = True
        self._asked_s, self._left_s = perf_counter(), None

    @guarded
    def has(self, batch: Any) -> None:
        """The batch is available."""
        if self._next in (REQUESTED, END):  # its request was not reported
            self.asks()
        if self._next == OVER:
            return
        if self._next == LOADED:
            self._mark()
        elif self._asked_s is not None:
            self._later_s += perf_counter() - self._asked_s
        self._asked_s, self.batch_seen = None, True
        self._batches += 1
        if self.steps == 0 and self._batches == 1:
            self.first_batch(batch)

    @guarded
    def has_none(self) -> None:
        """There are no more batches. The last request did not start a step."""
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
        """Mark no further step, and discard the current one."""
        self.leaves()
        if self._next != OVER:
            self._forget(self._next)
        self._next = OVER
        self._marker = self.clock  # instruments hold the model

    @guarded
    def _forward_is_over(self) -> None:
        if self._next not in (FORWARD, BACKWARD, OPTIMIZER) or not torch.is_grad_enabled():  # a validation in the loop
            return
        self._forwards += 1
        self.forward_seen = True
        if self.steps == 0:
            self.first_forward()
        if self._next == FORWARD:
            self._skip() if self._alternates else self._mark()
        elif self._forwards == 2 and not self._alternates:
            self.clock.forget(self._next - FORWARD, skipped=True)

    @guarded
    def _before_step(self, args: tuple[Any, ...], more: dict[str, Any]) -> tuple[Any, Any] | None:
        """Handle a call of the optimizer's step. A closure, as in Lightning, contains forward and backward: wrap it."""
        self.optimizer_seen = True
        closures = [each for each in (*args[1:], *more.values()) if callable(each)] if args[1:] or more else ()
        if not closures:
            self._optimizer_begins()
            return None

        def closure(*given: Any) -> Any:
            result = closures[0](*given)
            self._optimizer_begins()
            return result

        def replaced(each: Any) -> Any:
            return closure if each is closures[0] else each

        return tuple(map(replaced, args)), {name: replaced(each) for name, each in more.items()}

    @guarded
    def _optimizer_begins(self) -> None:
        if self._next == FORWARD:  # forward was not observed
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
        if self._straddles:
            self._forget(WIDTH)
        else:
            self._later_waits.append(self._later_s)
            self._alternates = self._forwards > 1
            self._batches_of[self._batches] += 1
            self.steps += 1
        self._forwards = self._batches = 0
        self._later_s, self._straddles = 0.0, False
        self._next, self._asked_s = REQUESTED, None


class Batches(Generic[T]):
    """An iterable or iterator of batches that reports to the loop when they are requested and available.

    It has the attributes of the wrapped object, such as a loader's `sampler`.
    """

    def __init__(self, loop: Loop, batches: Iterable[T]) -> None:
        self._loop, self._batches = loop, batches
        self._iterator: Iterator[T] | None = None

    def __next__(self) -> T:
        self._iterator = self._iterator or iter(self)
        return next(self._iterator)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_loop", "_batches", "_iterator"):  # while a copy is being made
            raise AttributeError(name)
        return getattr(self._batches, name)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # may raise TypeError

    def __iter__(self) -> Iterator[T]:
        loop = self._loop
        loop.asks()  # the first wait includes the start of a loader's workers
        try:
            for batch in self._batches:
                loop.has(batch)
                yield batch
                loop.asks()
            loop.has_none()
        finally:
            loop.leaves()
