"""Observe the training loop of one rank: timestamps of all steps, and instruments in a few.

Errors of instruments do not reach the training. The first error of an instrument switches this instrument off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from parabench.launch.results import Marks, RankError, RankReport, marks_path
from parabench.machine import accelerator
from parabench.plan.case import Case
from parabench.plan.schedule import TrainingSchedule
from parabench.probes import CaseReport, ProbedRank
from parabench.probes.communication import CommunicationProbe, Recorder
from parabench.probes.ddp import compiled_in_place, only_ddp
from parabench.probes.memory import MemoryClock, held_bytes, peak_memory, state_bytes
from parabench.probes.step_clock import StepClock, read_marks
from parabench.store.record import Finding, Phase
from parabench.strategies import data_ranks
from parabench.strategies.base import ParallelModel, RankInfo, StepMarker
from parabench.watching import describe
from parabench.watching.group import Group
from parabench.watching.loop import WIDTH, Loop, loop_time
from parabench.watching.schedule import Schedule
from parabench.watching.tune import Tuning

T = TypeVar("T")

# The file of timestamps grows by this number of steps at a time.
ROOM = 1024

# Names of instruments in messages. An instrument that fails is switched off, and the others go on.
STEP_MARKS = "the marking of steps"
MEMORY = "the reading of memory"
INSTRUMENTED = "the instruments of single steps"


class Instruments:
    """The instruments of a few consecutive steps: the marker of these steps, from its creation until `off`.

    If an instrument fails, `failed` is called with the error, and only the clock marks the following steps.
    """

    def __init__(
        self, rank: ProbedRank, before_reading: Callable[[], object], failed: Callable[[Exception], None]
    ) -> None:
        self._communication = CommunicationProbe(rank)
        guard(self._communication.recorder, failed)
        self._memory = MemoryClock(rank.clock, rank.info.device, rank.clock.steps, WIDTH, before_reading)
        self._clock, self._failed = rank.clock, failed
        self._on = contextlib.ExitStack()
        self._marker: StepMarker = self._on.enter_context(self._communication.instrumented(self._memory))

    def mark(self) -> None:
        self._guarded(self._marker.mark, self._clock.mark)

    def skip(self) -> None:
        self._guarded(self._marker.skip, self._clock.skip)

    def _guarded(self, mark: Callable[[], None], mark_clock: Callable[[], None]) -> None:
        before = self._clock.marked
        try:
            mark()
        except Exception as why:
            if self._marker is self._clock:
                raise
            self._marker = self._clock
            self._failed(why)
            if self._clock.marked == before:
                mark_clock()

    def off(self, step: int) -> None:
        """Switch the instruments off, and remove the incomplete readings from `step` on."""
        try:
            self._on.close()
        except Exception as why:
            self._failed(why)
        self._memory.readings = [each for each in self._memory.readings if each[0] < step]

    def report(self, report: CaseReport) -> None:
        """Add the readings to a report. The clock must be finished."""
        report.readings += self._memory.readings
        self._communication.report(report)


def guard(recorder: Recorder, failed: Callable[[Exception], None]) -> None:
    """Catch the errors of a recorder of collectives, so that the calls that it follows go on.

    Errors of the calls themselves are raised. After an error in `follow`, it follows no further call.
    """
    follow, follow_all = recorder.follow, recorder.follow_all
    following = True

    def guarded_follow_all(work: Any) -> Any:
        try:
            return follow_all(work)
        except Exception as why:
            failed(why)
            return work

    def guarded_follow(
        op: str, group: Any, results: Iterable[Tensor], call: Callable[[], Any], *, waits: bool = False
    ) -> Any:
        nonlocal following
        calling = False
        works: list[Any] = []

        def call_once() -> Any:
            nonlocal calling
            calling = True
            works.append(call())
            return works[0]

        if not following:
            return call()
        try:
            return follow(op, group, results, call_once, waits=waits)
        except Exception as why:
            if calling and not works:
                raise
            following = False
            failed(why)
            return works[0] if works else call()

    recorder.follow, recorder.follow_all = guarded_follow, guarded_follow_all  # type: ignore[method-assign]


@dataclass(kw_only=True, eq=False)
class Observer(Loop):
    """The object that `with watch(...)` returns. If it is called with batches, it yields them, and marks the steps.

    `failures` maps each failed instrument to the reason.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    group: Group
    schedule: Schedule
    folder: Path
    began_s: float
    log: Callable[[str], None]
    out: Path = Path("parabench-results")
    label: str | None = None
    caps: tuple[float, ...] = ()
    name: str | None = None
    global_batch: int | None = None
    seq_len: int | None = None
    failures: dict[str, str] = field(default_factory=dict)
    _size: tuple[int, int] | None = None
    _autocast: torch.dtype | None = None
    _gradient_bytes: float = 0.0
    _tuning: Tuning | None = None
    _used: list[Instruments] = field(default_factory=list)
    _on: Instruments | None = None
    _started: int = -1
    # Before this step, `begin_step` returns at once, because more code is expensive with cold caches.
    _plain_until: int = 0
    _peaks: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.device = describe.device_of(self.module)
        self._marks_path = marks_path(self.folder, self.group.rank)
        super().__init__(StepClock(self._marks_path, 0, self.device, WIDTH))
        module = only_ddp(self.module)
        if self.caps and module is not None:
            log = self.log if self.group.rank == 0 else lambda line: None
            self._tuning = Tuning(module=module, caps=self.caps, schedule=self.schedule, device=self.device, log=log)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Observe the steps that the block takes."""
        with self.hooked(self.module, self.optimizer):
            try:
                yield
            finally:
                self.finish()
                self._instruments_off()

    def release(self) -> None:
        """Drop the references to the model and the optimizer.

        A DDP reducer that is deleted after its group waits for gloo's threads while it holds the interpreter's lock.
        This can hang.
        """
        del self.module, self.optimizer
        self._used.clear()
        self._tuning = None

    # -- results ------------------------------------------------------------------------------------------------------

    def read(self, error: RankError | None) -> tuple[RankReport, Marks]:
        """Return the report of this rank, and the timestamps of the recorded steps in seconds, shape (steps, WIDTH).

        If the rank failed with `error`, the report has no other readings, and timestamps end where its device stopped.
        """
        report = CaseReport()
        if error is None:
            try:
                self.clock.finish()
                for each in self._used:
                    self._guard(INSTRUMENTED, partial(each.report, report))
                report.readings += self.clock.lags()
                report.numbers |= self.clock.moments.numbers()
            except RuntimeError as why:  # the device failed; earlier measurements are kept
                reason = str(why).partition("\n")[0]
                lost = "could not read its device's clock, so some times are missing"
                self.log(f"watch: rank {self.group.rank} {lost}: {reason}")
            report.numbers |= {"gradient_bytes": self._gradient_bytes} if self._gradient_bytes else {}
            report.numbers |= self._guard(MEMORY, self._memory) or {}
        else:
            with contextlib.suppress(RuntimeError):  # a failed device raises its error again
                self.clock.read()
        marks = read_marks(self._marks_path, None, WIDTH)[: self.steps]
        if error is None:
            instrumented = [phase is Phase.INSTRUMENT for phase in self.schedule.phases(self.steps)]
            waits = self.later_waits(range(self.steps))
            report.loop = self._guard(
                "the account of the loop's time",
                lambda: loop_time(marks, self.schedule.first_measured, instrumented, waits, self.pauses),
            )
        recorded = self.schedule.recorded(self.steps, self.group.size)
        report.steps, report.marked = self.steps, recorded.tolist()
        chosen = set(report.marked)
        report.readings = [each for each in report.readings if each[0] in chosen]
        report.later_waits = self.later_waits(report.marked)
        report.failures = self.failures
        return RankReport(rank=self.group.rank, error=error, cases=[report]), marks[recorded]

    def _memory(self) -> dict[str, float]:
        return {
            "parameter_bytes": held_bytes(self.module.parameters()),
            "optimizer_bytes": state_bytes(self.optimizer),
            **self._keep_peaks(),
        }

    def case(self) -> Case:
        """Return the configuration of the training run. Its seed is the default, because the real one is unknown."""
        ranks, batches = self.group.size, self.batches_of_step
        samples, tokens = self._size or (1, 1)
        strategy = describe.strategy_of(self.module, self.optimizer, ranks)
        seen_batch = samples * batches * data_ranks(strategy, ranks, None)
        return Case(
            strategy=strategy,
            bucket_mib=describe.bucket_cap_mib(self.module),
            world_size=ranks,
            nodes=self.group.nodes,
            model=self.name or describe.name_of(self.module),
            data=describe.OWN_DATA,
            global_batch=seen_batch if self.global_batch is None else self.global_batch,
            seq_len=tokens if self.seq_len is None else self.seq_len,
            precision=describe.precision_of(self.module, self._autocast),
            device=self.device.type if self.device.type in ("cpu", accelerator.TYPE) else "auto",
            backend=describe.backend_of(self.device.type),
            threads=torch.get_num_threads(),
            grad_accumulation=batches,
            compile=any(hasattr(each, "_orig_mod") or compiled_in_place(each) for each in self.module.modules()),
        )

    def findings(self) -> list[Finding]:
        """Return the warnings about the loop."""
        found = [describe.UNSEEN] if self._size is None and self.global_batch is None else []
        # Calls in compiled code and TorchScript are not observed, but compute gradients.
        if self.optimizer_seen and not self.forward_seen and not self._gradient_bytes:
            found.append(describe.uncalled(self.module))
        return found

    def why_no_step(self) -> str:
        """Return the reason why the loop has no step, and the remedy."""
        if STEP_MARKS in self.failures:
            return f"{STEP_MARKS} failed ({self.failures[STEP_MARKS]})"
        if not self.batch_seen:
            return "no batch was taken from steps(...); iterate over steps(loader)"
        if self.optimizer_seen:
            return "the loop took no step with the watched batches"
        kind = type(self.optimizer).__name__
        return (
            f"step() of the watched {kind} was never called; if it wraps another optimizer (SAM, Lookahead), "
            "give the inner optimizer, the one whose step() is called"
        )

    # -- during the loop ----------------------------------------------------------------------------------------------

    def begin_step(self, step: int) -> StepMarker:
        if step < self._plain_until:
            return self.clock
        if step % ROOM == 0:
            self.clock.make_room(step + ROOM)
        tuning = self._tuning
        if tuning is not None and step <= self.schedule.first_measured:
            self._guard("the tuning of bucket caps", lambda: tuning.before(step, self._marks))
        instrumented = self.schedule.phase(step) is Phase.INSTRUMENT
        # A step starts twice if a loop over batches ends before its first batch.
        if not instrumented or step == self._started:
            self._instruments_off()
        if instrumented and self._on is None:
            self._on = self._guard(INSTRUMENTED, self._instruments)
            self._used += [self._on] if self._on is not None else []
        self._started = step
        if self._on is None:
            self._plain_until = min(self.schedule.plain_until(step), step - step % ROOM + ROOM)
        return self._on or self.clock

    def first_batch(self, batch: Any) -> None:
        self._size = self._guard("the reading of the batch size", lambda: describe.size_of(batch))

    def first_forward(self) -> None:
        self._autocast = self._guard("the reading of autocast", self._autocast_now)

    def first_gradients(self) -> None:
        gradients = (each.grad for each in self.module.parameters() if each.grad is not None)
        self._gradient_bytes = self._guard(MEMORY, lambda: held_bytes(gradients)) or 0

    def marks_failed(self, why: Exception) -> None:
        self._failed(STEP_MARKS, why)
        self._instruments_off()

    def _guard(self, instrument: str, function: Callable[[], T]) -> T | None:
        """Return the result of `function`, or `None` if the instrument fails or has failed before."""
        if instrument in self.failures:
            return None
        try:
            return function()
        except Exception as why:
            self._failed(instrument, why)
            return None

    def _failed(self, instrument: str, why: Exception) -> None:
        first_line = str(why).partition("\n")[0]
        self.failures.setdefault(instrument, f"{type(why).__name__}: {first_line}")

    def _marks(self) -> Marks:
        """Return the timestamps so far, shape (steps, WIDTH). This waits for the device."""
        self.clock.moments.synchronize()
        self.clock.read()
        return read_marks(self._marks_path, None, WIDTH)

    def _instruments(self) -> Instruments:
        rank, size = self.group.rank, self.group.size
        probed = ProbedRank(
            case=self.case(),
            schedule=TrainingSchedule(),
            info=RankInfo(rank, size, self.device),
            parallel=ParallelModel(module=self.module, data_rank=rank, data_ranks=size),
            optimizer=self.optimizer,
            clock=self.clock,
            take_step=lambda: None,  # only the loop takes steps
        )
        return Instruments(probed, self._keep_peaks, partial(self._failed, INSTRUMENTED))

    def _instruments_off(self) -> None:
        if self._on is not None:
            self._on.off(self.steps)
            self._on = None

    def _keep_peaks(self) -> dict[str, float]:
        """Update and return the peaks of memory, {metric: bytes}. On CUDA, instrumented steps reset torch's peaks."""
        for name, value in peak_memory(self.device).items():
            self._peaks[name] = max(value, self._peaks.get(name, 0.0))
        return self._peaks

    def _autocast_now(self) -> torch.dtype | None:
        enabled = torch.is_autocast_enabled(self.device.type)
        return torch.get_autocast_dtype(self.device.type) if enabled else None
