"""Take the timestamps of the steps of a user's training loop, and account for its wall time.

An iterator around the loader, a wrapper around the model's call, and hooks of the optimizer mark the timestamps.
"""

from __future__ import annotations

import contextlib
import functools
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from parabench.launch.results import Marks
from parabench.metrics import STEP_PARTS
from parabench.probes.ddp import after_forward
from parabench.probes.step_clock import StepClock
from parabench.strategies.base import StepMarker

T = TypeVar("T")
P = ParamSpec("P")

# The timestamps of a step, in this order: a batch is requested, it is available, forward has ended, backward has ended
# and the optimizer starts, the optimizer has ended, the next batch is requested. After OVER, no step is marked.
REQUESTED, LOADED, FORWARD, BACKWARD, OPTIMIZER, END, OVER = range(7)
WIDTH = END + 1

Seconds = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

PARTS = tuple(STEP_PARTS)
# The usual time is this quantile, so that it is correct even if every second step is expensive.
USUAL = 0.25
# The cost of instruments is the difference of this quantile between steps with and without them.
UNDISTURBED = 0.1
# Expensive steps are shown if their extra time is at least this share of the loop.
LEAST_SHARE = 0.05
# The minimum of an expensive step's extra time in usual step times: if it recurs, and if it does not. The second is
# larger, because many steps of a busy machine are somewhat longer.
LEAST_EXTRA, LEAST_EXTRA_IRREGULAR = 0.25, 1.0
# Steps recur if there are at least this number, and this share of the gaps between them differ by TOLERANCE or less.
LEAST_MEMBERS, ALIKE, TOLERANCE = 4, 0.75, 0.1


def guarded(callback: Callable[Concatenate[Loop, P], T]) -> Callable[..., T | None]:
    """Catch the errors of a callback of a loop, so that the training goes on. After an error, no step is marked."""

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
    """Mark the timestamps of one rank's steps on `clock`.

    A step ends when a batch is requested after the optimizer has stepped. A step that continues in another loop over
    batches is discarded.
    """

    def __init__(self, clock: StepClock) -> None:
        self.clock = clock
        self._marker: StepMarker = clock
        self._next = REQUESTED  # the next timestamp
        # The current step: the number of forwards and batches, the seconds of waiting for the second and later batches,
        # and whether it continues in another loop over batches.
        self._forwards = self._batches = 0
        self._later_s = 0.0
        self._continues = False
        # Whether forward and backward alternate, because the previous step had several forwards.
        self._alternates = False
        # The time when the last loop over batches was left, until the next one starts; and the time when the current
        # batch was requested, until it is available.
        self._left_s: float | None = None
        self._asked_s: float | None = None
        self.steps = 0  # the number of complete steps
        # {step: seconds} before a step, between two loops over batches, such as for a validation.
        self.pauses: dict[int, float] = {}
        self.batch_seen = self.forward_seen = self.optimizer_seen = False
        self._later_waits = array("d")
        self._batches_of: Counter[int] = Counter()

    def begin_step(self, step: int) -> StepMarker:
        """Return the marker for a step. If a step starts twice, this is called twice."""
        return self.clock

    def first_batch(self, batch: Any) -> None:
        """Handle the first batch of the loop."""

    def first_forward(self) -> None:
        """Handle a forward pass of the first step."""

    def first_gradients(self) -> None:
        """Handle the gradients of the first step, before its optimizer starts."""

    def marks_failed(self, why: Exception) -> None:
        """Handle the first error of a callback. The steps before it are kept."""

    @property
    def batches_of_step(self) -> int:
        """Return the number of batches that most steps have.

        The last step of an epoch may have fewer. A step that a loss scaler skips is part of the next one.
        """
        return self._batches_of.most_common(1)[0][0] if self._batches_of else 1

    def later_waits(self, steps: Iterable[int]) -> dict[int, float]:
        """Return {step: seconds of waiting} for the second and later batches of a step."""
        return {at: self._later_waits[at] for at in steps if at < self.steps and self._later_waits[at]}

    @contextlib.contextmanager
    def hooked(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Mark the forwards of the model and the steps of its optimizer while the block runs."""
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

    # Frameworks that own the loop call `batch_requested`, `batch_received` and `no_more_batches` from their callbacks.

    @guarded
    def batch_requested(self) -> None:
        """Mark that the loop requests a batch."""
        if self._left_s is not None and self.steps:
            self.pauses[self.steps] = self.pauses.get(self.steps, 0.0) + perf_counter() - self._left_s
        if self._next == END:
            self._end_step()
        if self._next == REQUESTED:
            self._marker = self.begin_step(self.steps)
            self._mark()
        elif self._left_s is not None and self._next > LOADED:
            self._continues = True
        self._asked_s, self._left_s = perf_counter(), None

    @guarded
    def batch_received(self, batch: Any) -> None:
        """Mark that the requested batch is available."""
        if self._next in (REQUESTED, END):  # its request was not reported
            self.batch_requested()
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
    def no_more_batches(self) -> None:
        """Mark that there are no more batches, so the last request did not start a step."""
        self._leave(perf_counter() if self._asked_s is None else self._asked_s)
        if self._next == LOADED:
            self.clock.forget()
            self._next = REQUESTED

    @guarded
    def loop_left(self) -> None:
        """Mark that the loop over batches was left, at its end or early."""
        if self._next == END:
            self._end_step()
        self._leave(perf_counter())

    def _leave(self, now_s: float) -> None:
        if self._left_s is None:
            self._left_s = now_s

    @guarded
    def finish(self) -> None:
        """Mark no further step, and discard the current one."""
        self.loop_left()
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
        """Mark the start of the optimizer's step.

        A closure, as in Lightning, contains forward and backward. Then return the arguments with a closure that marks.
        """
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
        if self._continues:
            self._forget(WIDTH)
        else:
            self._later_waits.append(self._later_s)
            self._alternates = self._forwards > 1
            self._batches_of[self._batches] += 1
            self.steps += 1
        self._forwards = self._batches = 0
        self._later_s, self._continues = 0.0, False
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
        loop.batch_requested()  # the first wait includes the start of a loader's workers
        try:
            for batch in self._batches:
                loop.batch_received(batch)
                yield batch
                loop.batch_requested()
            loop.no_more_batches()
        finally:
            loop.loop_left()


# -- the account of the loop's time -----------------------------------------------------------------------------------


def loop_time(
    marks: Marks,
    first: int,
    instrumented: Sequence[bool],
    later_waits: Mapping[int, float],
    pauses: Mapping[int, float],
) -> dict[str, Any] | None:
    """Account for the wall time of the steps from `first` on; return `None` if no step without instruments is known.

    A pause belongs to the step before it. Instrumented steps count without the cost of their instruments.

    - `marks`: timestamps in seconds, shape (steps, 6)
    - `instrumented`: whether each step had instruments
    - `later_waits`: {step: seconds of waiting} for the second and later batches of a step
    - `pauses`: {step: seconds} before a step, between two loops over batches

    Returns {"first", "steps": their number, "instrumented", "seconds": {part: total}, "expensive": `expensive_steps`}
    """
    waits, paused = np.zeros(len(marks)), np.zeros(len(marks) + 1)
    waits[[*later_waits]], paused[[*pauses]] = [*later_waits.values()], [*pauses.values()]
    known = int(np.isfinite(marks[first:, END]).cumprod().sum())
    counted = slice(first, first + known)
    marks, waits, with_instruments = marks[counted], waits[counted], np.array(instrumented[counted], dtype=bool)
    if with_instruments.all():
        return None
    took = np.diff(marks, axis=1)
    seconds = dict.fromkeys(PARTS, np.zeros(known))
    if waits.any() or np.isnan(marks[:, FORWARD]).any():  # forward and backward alternate
        seconds["forward_backward_s"] = marks[:, BACKWARD] - marks[:, LOADED] - waits
    else:
        seconds["forward_s"], seconds["backward_s"] = took[:, LOADED], took[:, FORWARD]
    seconds["data_s"], seconds["optimizer_s"] = took[:, REQUESTED] + waits, took[:, BACKWARD]
    seconds["other_s"] = took[:, OPTIMIZER]
    seconds["other_s"][:-1] += paused[counted][1:]
    parts = np.column_stack([*seconds.values()])
    if with_instruments.any():
        slow, plain = (np.quantile(parts[each], UNDISTURBED, axis=0) for each in (with_instruments, ~with_instruments))
        parts[with_instruments] = np.maximum(0.0, parts[with_instruments] - np.maximum(0.0, slow - plain))
    return {
        "first": first,
        "steps": known,
        "instrumented": int(with_instruments.sum()),
        "seconds": {name: float(total) for name, total in zip(PARTS, parts.sum(axis=0), strict=True) if total},
        "expensive": expensive_steps(parts),
    }


def expensive_steps(parts: Seconds) -> list[dict[str, Any]]:
    """Return groups of expensive steps, the largest "share" of the loop's time first.

    `parts` are seconds, shape (steps, parts). "every" is the period in steps, or `None`, and "extra_s" the extra time
    of one step in this "part".
    """
    total = float(parts.sum())
    usual = float(np.quantile(parts.sum(axis=1), USUAL)) if len(parts) else 0.0
    groups: list[dict[str, Any]] = []
    for name, column in zip(PARTS, parts.T, strict=True) if total else ():
        extra = column - np.quantile(column, USUAL)
        for every, members in _grouped(extra, usual):
            share = float(extra[members].sum()) / total
            extra_s = float(np.mean(extra[members]) if every is None else np.median(extra[members]))
            groups.append({"part": name, "every": every, "steps": len(members), "extra_s": extra_s, "share": share})
    shown = [group for group in groups if group["share"] >= LEAST_SHARE]
    return sorted(shown, key=lambda group: -group["share"])


def _grouped(extra: Seconds, usual: float) -> Iterator[tuple[int | None, Steps]]:
    """Yield (period, indices of steps): groups of recurring steps, the longest first, then the others, with `None`."""
    left = extra >= max(LEAST_EXTRA * usual, np.finfo(float).tiny)
    # Thresholds fall, so that groups of rare and long steps, such as checkpoints, are found first.
    highest = float(extra.max())
    falls = int(np.ceil(np.log2(highest / extra[left].min()))) if left.any() else -1
    for threshold in highest / 2.0 ** np.arange(1, falls + 2):
        above = np.flatnonzero(left & (extra >= threshold))
        if (every := _period(above, len(extra))) is not None:
            left[above] = False
            yield every, above
    irregular = np.flatnonzero(left & (extra >= LEAST_EXTRA_IRREGULAR * usual))
    if len(irregular):
        yield None, irregular


def _period(at: Steps, steps: int) -> int | None:
    """Return the period of the steps `at` these indices if they recur throughout all `steps` of a loop, else `None`."""
    if len(at) < LEAST_MEMBERS:
        return None
    gaps = np.diff(at)
    every = int(np.sort(gaps)[(len(gaps) - 1) // 2])
    slack = int(TOLERANCE * every)
    throughout = at[0] <= every + slack and steps - 1 - at[-1] <= every + slack
    alike = float(np.mean(np.abs(gaps - every) <= slack))
    return every if every > 1 and throughout and alike >= ALIKE else None
