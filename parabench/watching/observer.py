"""One rank's view of a watched loop: it marks the steps, instruments some of them, and reports them at the end.

No error of an instrument reaches the training: the first one switches the instrument off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from parabench.errors import UsageError
from parabench.launch.results import Marks, RankError, RankReport, marks_path
from parabench.machine import accelerator
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.probes import CaseReport, ProbedRank, switched_on
from parabench.probes.collective_calls import Recorder
from parabench.probes.communication import CommunicationProbe
from parabench.probes.ddp import DdpLoggerProbe, compiled_in_place, only_ddp
from parabench.probes.memory import MemoryClock, held_bytes, peak_memory, state_bytes
from parabench.probes.step_clock import StepClock, read_marks
from parabench.store.record import Finding, Phase
from parabench.strategies import data_ranks
from parabench.strategies.base import ParallelModel, RankInfo, StepMarker
from parabench.watching.describe import (
    OWN_DATA,
    UNSEEN,
    backend_of,
    caps_of,
    device_of,
    name_of,
    others,
    precision_of,
    size_of,
    strategy_of,
    uncalled,
)  # fmt: skip
from parabench.watching.group import Group
from parabench.watching.loop import WIDTH, Batches, Loop
from parabench.watching.loop_time import loop_time
from parabench.watching.schedule import Schedule
from parabench.watching.tune import Tuning

T = TypeVar("T")

# Room for the marks of so many steps is made at a time.
ROOM = 1024

# The instruments, as messages name them. Each is switched off alone if it fails.
STEP_MARKS = "the marking of steps"
BATCH_SIZE = "the reading of the batch size"
ARITHMETIC = "the reading of autocast"
MEMORY = "the reading of memory"
INSTRUMENTED = "the instruments of single steps"
TUNING = "the tuning of bucket caps"
ACCOUNT = "the account of the loop's time"


@dataclass
class Guard:
    """Call instruments so that none of their errors reaches the training. `failures` maps each instrument that failed
    to the reason."""

    failures: dict[str, str] = field(default_factory=dict)

    def call(self, instrument: str, function: Callable[[], T]) -> T | None:
        """Return the result of `function`, or `None` if the instrument fails or has failed before."""
        if instrument in self.failures:
            return None
        try:
            return function()
        except Exception as why:
            self.failed(instrument, why)
            return None

    def failed(self, instrument: str, why: Exception) -> None:
        """Keep the first reason for which an instrument failed."""
        first_line = str(why).partition("\n")[0]
        self.failures.setdefault(instrument, f"{type(why).__name__}: {first_line}")


class Instruments:
    """The instruments of a few consecutive steps, from now until `off`. The steps mark `self`: if an instrument fails,
    `failed` receives its error, and the clock alone marks them."""

    def __init__(
        self, rank: ProbedRank, before_reading: Callable[[], object], failed: Callable[[Exception], None]
    ) -> None:
        communication = CommunicationProbe(rank)
        guarded = GuardedRecorder(communication.recorder, failed)
        communication.recorder.follow = guarded.follow  # type: ignore[method-assign]
        communication.recorder.follow_all = guarded.follow_all  # type: ignore[method-assign]
        self._probes = (DdpLoggerProbe(rank), communication)
        self._memory = MemoryClock(rank.clock, rank.info.device, rank.clock.steps, WIDTH, before_reading)
        self._clock, self._failed = rank.clock, failed
        self._on = contextlib.ExitStack()
        self._marker: StepMarker = self._on.enter_context(switched_on(self._probes, self._memory))

    def mark(self) -> None:
        self._guarded(self._marker.mark, self._clock.mark)

    def skip(self) -> None:
        self._guarded(self._marker.skip, self._clock.skip)

    def _guarded(self, marks: Callable[[], None], marks_alone: Callable[[], None]) -> None:
        before = self._clock.marked
        try:
            marks()
        except Exception as why:
            if self._marker is self._clock:  # the clock itself fails
                raise
            self._marker = self._clock
            self._failed(why)
            if self._clock.marked == before:
                marks_alone()

    def off(self, step: int) -> None:
        """Switch them off; forget what was read in `step` and later ones, which are no steps."""
        try:
            self._on.close()
        except Exception as why:
            self._failed(why)
        self._memory.readings = [each for each in self._memory.readings if each[0] < step]

    def report(self, report: CaseReport) -> None:
        """Add what they saw, once the clock is finished."""
        report.readings += self._memory.readings
        for probe in self._probes:
            probe.report(report)


class GuardedRecorder:
    """Follow collectives as `recorder` does. An error of the recorder leaves the call as it is; an error of the call
    is raised."""

    def __init__(self, recorder: Recorder, failed: Callable[[Exception], None]) -> None:
        self._follow, self._follow_all, self._failed = recorder.follow, recorder.follow_all, failed
        self._on = True

    def follow_all(self, work: Any) -> Any:
        try:
            return self._follow_all(work)
        except Exception as why:
            self._failed(why)
            return work

    def follow(
        self, op: str, group: Any, results: Iterable[Tensor], call: Callable[[], Any], *, waits: bool = False
    ) -> Any:
        if not self._on:
            return call()
        started: list[bool] = []
        works: list[Any] = []

        def once() -> Any:
            started.append(True)
            works.append(call())
            return works[0]

        try:
            return self._follow(op, group, results, once, waits=waits)
        except Exception as why:
            if started and not works:  # the call itself failed
                raise
            self._on = False
            self._failed(why)
            return works[0] if works else call()


@dataclass(kw_only=True)
class Observer:
    """What `with watch(...)` gives. Called with a loader, it yields the loader's batches and marks the steps that are
    taken with them."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    group: Group
    schedule: Schedule
    folder: Path
    began_s: float
    caps: tuple[float, ...] = ()
    log: Callable[[str], None]
    name: str | None = None
    global_batch: int | None = None
    seq_len: int | None = None
    guard: Guard = field(default_factory=Guard)
    _size: tuple[int, int] | None = None
    _autocast: torch.dtype | None = None
    _gradient_bytes: float = 0.0
    _tuning: Tuning | None = None
    _used: list[Instruments] = field(default_factory=list)
    _on: Instruments | None = None
    _begun: int = -1
    # Until that step, steps are only marked: with cold caches, everything else is expensive.
    _plain_until: int = 0
    _peaks: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.device = device_of(self.module)
        self._marks_path = marks_path(self.folder, self.group.rank)
        self._clock = StepClock(self._marks_path, 0, self.device, WIDTH)
        self._loop = Loop(
            self._clock,
            begin_step=self._begin_step,
            first_batch=self._first_batch,
            first_forward=self._first_forward,
            first_gradients=self._first_gradients,
            failed=self._marks_failed,
        )
        # For frameworks that own the loop, from their callbacks: the loop requests a batch, has it, or has no more.
        self.asks, self.has, self.has_none = self._loop.asks, self._loop.has, self._loop.has_none
        module = only_ddp(self.module)
        if self.caps and module is not None:
            self._tuning = Tuning(
                module=module, caps=self.caps, schedule=self.schedule, device=self.device, log=self.log
            )

    def __call__(self, batches: Iterable[T]) -> Batches[T]:
        """Return `batches` unchanged, for a loop whose steps are timed."""
        return self._loop.over(batches)

    def __iter__(self) -> NoReturn:
        raise UsageError("watch: the loop has no batches; write `for batch in steps(loader)`")

    @property
    def steps(self) -> int:
        """The number of steps that were taken."""
        return self._loop.steps

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Mark the steps that are taken while the block runs."""
        with self._loop.hooked(self.module, self.optimizer):
            try:
                yield
            finally:
                self._loop.finish()
                self._instruments_off(self.steps)

    def release(self) -> None:
        """Drop everything that belongs to the training. A DDP reducer that outlives its group joins gloo's threads with
        the interpreter's lock held, and may wait forever."""
        del self.module, self.optimizer
        self._used.clear()
        self._tuning = None

    def read(self, error: RankError | None, log: Callable[[str], None]) -> tuple[RankReport, Marks]:
        """Return the report of this rank, and the marks of the steps to record, one row per step.

        If the rank failed, there are only marks, as far as its device came. Errors of reading are logged.
        """
        report = self._report(log) if error is None else self._failed()
        recorded = self.schedule.recorded(self.steps, self.group.size)
        report.steps, report.marked = self.steps, recorded.tolist()
        chosen = set(report.marked)
        report.readings = [each for each in report.readings if each[0] in chosen]
        report.later_waits = self._loop.later_waits(report.marked)
        marks = self._marks()[: self.steps]
        if error is None:
            report.loop = self.guard.call(ACCOUNT, lambda: self._account(marks))
        report.failures = self.guard.failures
        return RankReport(rank=self.group.rank, error=error, cases=[report]), marks[recorded]

    def _marks(self) -> Marks:
        return read_marks(self._marks_path, None, WIDTH)

    def _account(self, marks: Marks) -> dict[str, Any] | None:
        """Return where the time of all steps after the warm-up went, as `loop_time` does."""
        first = self.schedule.first_measured
        instrumented = [phase is Phase.INSTRUMENT for phase in self.schedule.phases(self.steps)]
        later_waits = self._loop.later_waits(range(self.steps))
        return loop_time(marks, first, instrumented, later_waits, self._loop.pauses)

    def _failed(self) -> CaseReport:
        with contextlib.suppress(RuntimeError):  # a device that failed raises its error again
            self._clock.read()
        return CaseReport()

    def _report(self, log: Callable[[str], None]) -> CaseReport:
        report = CaseReport()
        try:
            self._clock.finish()
            for each in self._used:
                self.guard.call(INSTRUMENTED, lambda each=each: each.report(report))  # type: ignore[misc]
            report.readings += self._clock.lags()
            report.numbers |= self._clock.moments.numbers()
        except RuntimeError as why:  # of the device, which must not lose what was measured before
            reason = str(why).partition("\n")[0]
            log(f"watch: rank {self.group.rank} could not read its device's clock, so some times are missing: {reason}")
        report.numbers |= {"gradient_bytes": self._gradient_bytes} if self._gradient_bytes else {}
        report.numbers |= self.guard.call(MEMORY, self._memory) or {}
        return report

    def _memory(self) -> dict[str, float]:
        return {
            "parameter_bytes": held_bytes(self.module.parameters()),
            "optimizer_bytes": state_bytes(self.optimizer),
            **self._keep_peaks(),
        }

    def case(self) -> Case:
        """Return the configuration of the training, as far as it is known. The seed is a case's default."""
        ranks, batches = self.group.size, self._loop.batches_of_step
        samples, tokens = self._size or (1, 1)
        strategy = strategy_of(self.module, self.optimizer, ranks)
        return Case(
            strategy=strategy,
            bucket_mib=caps_of(self.module),
            world_size=ranks,
            nodes=self.group.nodes,
            model=self.name or name_of(self.module),
            data=OWN_DATA,
            global_batch=self.global_batch or samples * batches * data_ranks(strategy, ranks, None),
            seq_len=self.seq_len or tokens,
            precision=precision_of(self.module, self._autocast),
            device=self.device.type if self.device.type in ("cpu", accelerator.TYPE) else "auto",
            backend=backend_of(self.device.type),
            threads=torch.get_num_threads(),
            grad_accumulation=batches,
            compile=any(hasattr(each, "_orig_mod") or compiled_in_place(each) for each in self.module.modules()),
        )

    def findings(self) -> list[Finding]:
        """Return the warnings about the loop."""
        found = [UNSEEN] if self._size is None and self.global_batch is None else []
        # Calls from compiled code and TorchScript are not seen, but leave gradients.
        if self._loop.optimizer_seen and not self._loop.forward_seen and not self._gradient_bytes:
            found.append(uncalled(self.module))
        return found + ([others(self._loop.other_steps, self.steps)] if self._loop.other_steps else [])

    def why_no_step(self) -> str:
        """Return why the loop has no step, and the remedy."""
        if STEP_MARKS in self.guard.failures:
            return f"{STEP_MARKS} failed ({self.guard.failures[STEP_MARKS]})"
        if not self._loop.batch_seen:
            return "no batch was taken from steps(...); iterate over steps(loader)"
        if self._loop.optimizer_seen:
            return "the loop took no step with the watched batches"
        kind = type(self.optimizer).__name__
        return (
            f"step() of the watched {kind} was never called; if it wraps another optimizer (SAM, Lookahead), "
            "give the inner optimizer, the one whose step() is called"
        )

    def _begin_step(self, step: int) -> StepMarker | None:
        if step < self._plain_until:
            return self._clock
        if step % ROOM == 0 and not self._make_room(step + ROOM):
            return None
        tuning = self._tuning
        if tuning is not None and step <= self.schedule.first_measured:
            self.guard.call(TUNING, lambda: tuning.before(step, self._marks_so_far))
        wanted = self.schedule.phase(step) is Phase.INSTRUMENT
        if not wanted or step == self._begun:  # a step that begins twice was none at first
            self._instruments_off(step)
        if wanted and self._on is None:
            self._on = self.guard.call(INSTRUMENTED, self._instruments)
            self._used += [self._on] if self._on is not None else []
        self._begun = step
        if self._on is None:
            self._plain_until = min(self.schedule.plain_until(step), step - step % ROOM + ROOM)
        return self._on or self._clock

    def _make_room(self, steps: int) -> bool:
        """Make room for the marks of so many steps. Return False if there is none; the training goes on."""
        try:
            self._clock.make_room(steps)
        except OSError as why:
            self._instruments_off(self.steps)
            self.log(f"watch: steps from {self.steps} on are not seen: {self.folder} has no room ({why.strerror})")
            return False
        return True

    def _marks_so_far(self) -> Marks:
        self._clock.moments.synchronize()
        self._clock.read()
        return self._marks()

    def _marks_failed(self, why: Exception) -> None:
        self.guard.failed(STEP_MARKS, why)
        self._instruments_off(self.steps)

    def _instruments(self) -> Instruments:
        rank, size = self.group.rank, self.group.size
        probed = ProbedRank(
            case=self.case(),
            protocol=Protocol(),
            info=RankInfo(rank, size, self.device),
            parallel=ParallelModel(module=self.module, data_rank=rank, data_ranks=size),
            optimizer=self.optimizer,
            clock=self._clock,
            take_step=_not_ours,
        )
        return Instruments(probed, self._keep_peaks, partial(self.guard.failed, INSTRUMENTED))

    def _instruments_off(self, step: int) -> None:
        if self._on is not None:
            self._on.off(step)
            self._on = None

    def _keep_peaks(self) -> dict[str, float]:
        """Return the peaks of memory so far: on CUDA, instrumented steps reset them."""
        for name, value in peak_memory(self.device).items():
            self._peaks[name] = max(value, self._peaks.get(name, 0.0))
        return self._peaks

    def _first_batch(self, batch: Any) -> None:
        self._size = self.guard.call(BATCH_SIZE, lambda: size_of(batch))

    def _first_forward(self) -> None:
        self._autocast = self.guard.call(ARITHMETIC, self._autocast_now)

    def _autocast_now(self) -> torch.dtype | None:
        enabled = torch.is_autocast_enabled(self.device.type)
        return torch.get_autocast_dtype(self.device.type) if enabled else None

    def _first_gradients(self) -> None:
        gradients = (each.grad for each in self.module.parameters() if each.grad is not None)
        self._gradient_bytes = self.guard.call(MEMORY, lambda: held_bytes(gradients)) or 0


def _not_ours() -> None:
    raise AssertionError("a watched loop computes for itself")
