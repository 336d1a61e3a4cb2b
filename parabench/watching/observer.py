"""One rank's view of a watched loop: its steps are marked, some are instrumented, and in a race caps take turns."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import nn

from parabench.errors import UsageError
from parabench.launch.results import Marks, RankError, marks_path
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.probes import ProbedRank
from parabench.probes.communication import CommunicationProbe
from parabench.probes.ddp import DdpLoggerProbe, only_ddp
from parabench.probes.memory import MemoryClock, held_bytes, peak_memory, state_bytes
from parabench.probes.step_clock import StepClock, read_marks
from parabench.store.record import Finding, Phase
from parabench.strategies.base import ParallelModel, RankInfo, StepMarker
from parabench.watching.describe import UNSEEN, describe, device_of, others, size_of, uncalled
from parabench.watching.group import LEAVE_S, Group
from parabench.watching.guard import Guard, GuardedMarker, GuardedRecorder
from parabench.watching.loop import WIDTH, Batches, Loop
from parabench.watching.loop_time import loop_time
from parabench.watching.race import Verdict, agreed, all_ranks_can, set_cap, slowest, told, verdict
from parabench.watching.schedule import Schedule
from parabench.watching.workload import WatchReport

T = TypeVar("T")

# So many steps have room for their marks at a time.
ROOM = 1024

# The instruments, as messages name them. Each is switched off alone if it fails.
STEP_MARKS = "the marking of steps"
BATCH_SIZE = "the reading of the batch size"
ARITHMETIC = "the reading of autocast"
MEMORY = "the reading of memory"
INSTRUMENTED = "the instruments of single steps"
RACE = "the race of bucket caps"
ACCOUNT = "the account of the loop's time"


@dataclass(kw_only=True)
class Observer:
    """What `watch` gives: called with a loader it yields the loader's batches, and marks the steps that are taken with
    them."""

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
    verdict: Verdict | None = None
    _size: tuple[int, int] | None = None
    _autocast: torch.dtype | None = None
    _gradient_bytes: float = 0.0
    _instruments: list[Instruments] = field(default_factory=list)
    _on: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _marker: StepMarker | None = None
    _arm: int | None = None
    _raced: bool = False
    _begun: int = -1
    # Before that step nothing is to be done but to mark: cold caches make the rest dear.
    _plain_until: int = 0
    _peaks: dict[str, float] = field(default_factory=dict)
    guard: Guard = field(default_factory=Guard)

    def __post_init__(self) -> None:
        self.device = device_of(self.module)
        self._clock = StepClock(self._marks_path, 0, self.device, WIDTH)
        self._loop = Loop(
            self._clock,
            begin_step=self._begin_step,
            first_batch=self._first_batch,
            first_forward=self._first_forward,
            first_gradients=self._first_gradients,
            failed=self._marks_failed,
        )

    def __call__(self, batches: Iterable[T]) -> Batches[T]:
        """Return `batches` unchanged, for a loop whose steps are timed."""
        return self._loop.over(batches)

    def __iter__(self) -> NoReturn:
        raise UsageError("watch: the loop has no batches; write `for batch in steps(loader)`")

    def release(self) -> None:
        """Hold nothing of the training any more: what its owner drops then is gone. A reducer of DDP's that goes after
        its group ends gloo's threads with the interpreter's lock held, and may wait for ever."""
        del self.module, self.optimizer
        self._instruments.clear()
        self._marker = None

    def asks(self) -> None:
        """The loop asks for a batch: for frameworks whose loop is their own, and which say when by a callback."""
        self._loop.asks()

    def has(self, batch: Any) -> None:
        """The batch is there."""
        self._loop.has(batch)

    def has_none(self) -> None:
        """There was no further batch."""
        self._loop.has_none()

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return self._loop.steps

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While the block runs, steps are marked."""
        with self._loop.hooked(self.module, self.optimizer):
            try:
                yield
            finally:
                self._loop.finish()
                self._instruments_off(self.steps)

    def _marks_failed(self, why: Exception) -> None:
        self.guard.failed(STEP_MARKS, why)
        self._instruments_off(self.steps)

    def read(self, error: RankError | None, log: Callable[[str], None]) -> tuple[WatchReport, Marks]:
        """Return the report of this rank, and the moments of the steps to record, one row per step.

        If the rank failed, there are only moments, as far as its device came. Trouble with reading is logged.
        """
        report = self._report(log) if error is None else self._failed(error)
        recorded = self.schedule.recorded(self.steps, self.group.size)
        report.steps, report.marked = self.steps, recorded.tolist()
        chosen = set(report.marked)
        report.readings = [each for each in report.readings if each[0] in chosen]
        report.later_waits = self._loop.later_waits(report.marked)
        marks = read_marks(self._marks_path, None, WIDTH)[: self.steps]
        if error is None:
            report.loop = self.guard.call(ACCOUNT, lambda: self._account(marks))
        report.failures = self.guard.failures
        return report, marks[recorded]

    def _account(self, marks: Marks) -> dict[str, Any] | None:
        """Return where the time of all steps after the warm-up went, as `loop_time` does."""
        first = self.schedule.first_measured
        instrumented = [phase is Phase.INSTRUMENT for phase in self.schedule.phases(self.steps)]
        later_waits = self._loop.later_waits(range(self.steps))
        return loop_time(marks, first, instrumented, later_waits, self._loop.pauses)

    def _failed(self, error: RankError) -> WatchReport:
        with contextlib.suppress(RuntimeError):  # a device that failed says so again
            self._clock.read()
        return WatchReport(rank=self.group.rank, error=error)

    def _report(self, log: Callable[[str], None]) -> WatchReport:
        report = WatchReport(rank=self.group.rank)
        try:
            self._clock.finish()
            for each in self._instruments:
                self.guard.call(INSTRUMENTED, functools.partial(each.report, report))
            report.readings += self._clock.lags()
            report.numbers |= self._clock.moments.numbers()
        except RuntimeError as why:  # the device's, which must not lose what was measured before
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
        """What was trained, as far as it can be told."""
        batches = self._loop.batches_of_step
        samples, tokens = self._size or (1, 1)
        return describe(
            self.module,
            self.optimizer,
            name=self.name,
            ranks=self.group.size,
            nodes=self.group.nodes,
            samples=samples * batches,
            tokens=self.seq_len or tokens,
            global_batch=self.global_batch,
            batches=batches,
            autocast=self._autocast,
        )

    def findings(self) -> list[Finding]:
        """Return what a reader must know of the case."""
        found = [UNSEEN] if self._size is None and self.global_batch is None else []
        # Compiled code and TorchScript call a module unseen, but leave gradients.
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

    @property
    def _marks_path(self) -> Path:
        return marks_path(self.folder, self.group.rank)

    def _begin_step(self, step: int) -> StepMarker | None:
        if step < self._plain_until:
            return self._clock
        if step % ROOM == 0 and not self._make_room(step + ROOM):
            return None
        if self.schedule.race is not None and step <= self.schedule.race_steps.stop:
            self.guard.call(RACE, lambda: self._take_turns(step))
        wanted = self.schedule.phase(step) is Phase.INSTRUMENT
        if self._marker is not None and (not wanted or step == self._begun):  # what was read of a step that was none
            self._instruments_off(step)
        if wanted and self._marker is None:
            self.guard.call(INSTRUMENTED, self._instruments_on)
        self._begun = step
        if self._marker is None:
            self._plain_until = min(self.schedule.plain_until(step), step - step % ROOM + ROOM)
        return self._marker or self._clock

    def _make_room(self, steps: int) -> bool:
        """Whether there is room for the marks of so many steps; the training goes on where there is none."""
        try:
            self._clock.make_room(steps)
        except OSError as why:
            self._instruments_off(self.steps)
            self.log(f"watch: steps from {self.steps} on are not seen: {self.folder} has no room ({why.strerror})")
            return False
        return True

    def _instruments_on(self) -> None:
        """Instrument the steps that follow; if anything fails, nothing stays switched on."""
        with contextlib.ExitStack() as on:
            instruments = Instruments(self._probed(), on, self._keep_peaks, self._instruments_failed)
            self._on = on.pop_all()
        self._instruments.append(instruments)
        self._marker = instruments.marker

    def _instruments_failed(self, why: Exception) -> None:
        self.guard.failed(INSTRUMENTED, why)

    def _instruments_off(self, step: int) -> None:
        """No further step is instrumented for now; `step` and later ones were none."""
        if self._marker is not None:
            self._marker = None
            try:
                self._on.close()
            except Exception as why:
                self._instruments_failed(why)
            self._instruments[-1].forget_from(step)

    def _keep_peaks(self) -> dict[str, float]:
        """The peaks of memory so far: on CUDA they are counted anew in instrumented steps."""
        for name, value in peak_memory(self.device).items():
            self._peaks[name] = max(value, self._peaks.get(name, 0.0))
        return self._peaks

    def _take_turns(self, step: int) -> None:
        """Between two steps of a race, set the bucket cap of the next turn; after the last turn, the fastest cap.

        All ranks call this before the same steps. If one of them cannot set a cap, all keep the cap that they have, and
        the race ends.
        """
        turn = self.schedule.turn(step)
        if turn is not None and turn.arm != self._arm:
            self._arm = turn.arm
            self._set_cap(self.caps[turn.arm])
        elif step == self.schedule.race_steps.stop and not self._raced:
            self._raced = True  # a step begins twice if a loader ends before it
            self.verdict = self._decide()
            if self.verdict is None:
                self.log("watch: the race of bucket caps has no winner, because the times of a rank are missing")
                return
            self._set_cap(self.caps[self.verdict.best])
            self.log(self.verdict.sentence(self.caps, self.schedule.race.rounds if self.schedule.race else 0))

    def _set_cap(self, cap_mib: float) -> None:
        module = only_ddp(self.module)
        assert module is not None
        try:
            set_cap(module, cap_mib, functools.partial(all_ranks_can, module, self.device))
        except Exception as why:
            self.log(f"watch: the race of bucket caps ends, and the cap stays as it is: {why}")
            raise

    def _decide(self) -> Verdict | None:
        """Return the verdict, the same on every rank; `None` if the times of a rank are missing."""
        assert self.schedule.race is not None
        # A rank that fails here must still tell the others: they wait for it.
        own = {"turns": self.guard.call(RACE, self._own_turns)}
        self.group.publish("race", own)
        came = [each["turns"] if each else None for each in self.group.collect("race", own, LEAVE_S)]
        known = [each for each in came if each is not None]
        mine = verdict(slowest(known), self.schedule.race) if len(known) == self.group.size else None
        return agreed(self.group, mine)

    def _own_turns(self) -> list[list[float]]:
        self._clock.moments.synchronize()
        self._clock.read()
        return told(read_marks(self._marks_path, None, WIDTH), self.schedule.timed_places())

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

    def _probed(self) -> ProbedRank:
        """This rank as instruments take it."""
        rank, size, case = self.group.rank, self.group.size, self.case()
        return ProbedRank(
            case=case,
            protocol=Protocol(),
            info=RankInfo(rank, size, self.device),
            parallel=ParallelModel(module=self.module, data_rank=rank, data_ranks=size),
            compute=_not_ours,
            optimizer=self.optimizer,
            batches=iter(()),
            clock=self._clock,
            take_step=_not_ours,
        )


def _not_ours(*_: Any, **__: Any) -> Any:
    raise AssertionError("a watched loop computes for itself")


class Instruments:
    """The instruments of a few steps that follow one another, switched on until `on` is closed. `marker` is the clock
    that these steps are to mark. `failed` receives errors; the steps are then marked all the same."""

    def __init__(
        self,
        rank: ProbedRank,
        on: contextlib.ExitStack,
        before_reading: Callable[[], object],
        failed: Callable[[Exception], None],
    ) -> None:
        communication = CommunicationProbe(rank)
        guarded = GuardedRecorder(communication.recorder, failed)
        communication.recorder.follow = guarded.follow  # type: ignore[method-assign]
        communication.recorder.follow_all = guarded.follow_all  # type: ignore[method-assign]
        self._probes: Sequence[DdpLoggerProbe | CommunicationProbe] = (DdpLoggerProbe(rank), communication)
        self._memory = MemoryClock(rank.clock, rank.info.device, rank.clock.steps, WIDTH, before_reading)
        self.marker: StepMarker = self._memory
        for probe in self._probes:
            self.marker = on.enter_context(probe.instrumented(self.marker))
        self.marker = GuardedMarker(rank.clock, self.marker, failed)

    def forget_from(self, step: int) -> None:
        """What was read of that step and later ones is of none."""
        self._memory.readings = [each for each in self._memory.readings if each[0] < step]

    def report(self, report: WatchReport) -> None:
        """Add what they saw, once the clock is finished."""
        report.readings += self._memory.readings
        for probe in self._probes:
            probe.report(report)
