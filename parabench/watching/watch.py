"""`watch`: a training loop of the user's own, seen as parabench sees its trainer's.

    with watch(model, optimizer) as steps:
        for batch in steps(loader):
            ...
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import torch
from rich.console import Console
from torch import nn

from parabench.errors import UsageError
from parabench.files import launch_folder, shared_memory_folder
from parabench.launch.processes import ProcessOutcome
from parabench.launch.rank import error_of
from parabench.launch.results import Marks, NodeResult, marks_path
from parabench.machine import accelerator
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.probes import ProbedRank, sources_of
from parabench.probes.communication import CommunicationProbe
from parabench.probes.ddp import DdpLoggerProbe
from parabench.probes.memory import MemoryClock, held_bytes, peak_memory
from parabench.probes.sampler import RankPids, Sampler, Watched, leave_pid
from parabench.probes.step_clock import StepClock, read_marks
from parabench.session.progress import logger
from parabench.session.resume import check_writable
from parabench.store.record import DeviceSample, Finding, HostSample, Phase, check_label
from parabench.strategies.base import ParallelModel, RankInfo, StepMarker
from parabench.watching.describe import UNSEEN, describe, device_of, size_of
from parabench.watching.group import FAILED_S, LEAVE_S, Group
from parabench.watching.loop import WIDTH, Batches, Loop
from parabench.watching.record import Seen, about_this, record, script_name
from parabench.watching.schedule import Schedule
from parabench.watching.workload import WatchReport

T = TypeVar("T")

# Readings of the host and the device, by a thread of the rank: seldom, for it takes time from the loop.
READING_S = 1.0

# So many steps have room for their marks at a time.
ROOM = 256


@dataclass(kw_only=True)
class Watch:
    """One rank's view of a loop. `steps(loader)` gives the loader's batches, and marks the steps that are taken with
    them."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    group: Group
    schedule: Schedule
    folder: Path
    began_s: float
    name: str | None = None
    global_batch: int | None = None
    seq_len: int | None = None
    findings: list[Finding] = field(default_factory=list)
    _size: tuple[int, int] | None = None
    _autocast: torch.dtype | None = None

    def __post_init__(self) -> None:
        self.device = device_of(self.module)
        self._clock = StepClock(marks_path(self.folder, self.group.rank), ROOM, self.device, WIDTH)
        self._loop = Loop(self._clock, begin_step=self._begin_step, first_batch=self._first_batch)
        self._report = WatchReport(rank=self.group.rank)
        self._instruments: list[Instruments] = []
        self._on = contextlib.ExitStack()
        self._marker: StepMarker | None = None

    def __call__(self, batches: Iterable[T]) -> Batches[T]:
        return self._loop.over(batches)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While the block runs, steps are marked."""
        hook = self.module.register_forward_hook(lambda *_: self._first_forward(hook))
        with self._loop.hooked(self.module, self.optimizer):
            try:
                yield
            finally:
                hook.remove()
                self._on.close()
                self._loop.finish()

    def report(self) -> WatchReport:
        """What this rank saw; all ranks call it together, or after a failure each alone."""
        self._clock.finish()
        report = self._report
        for each in self._instruments:
            each.report(report)
        parameters = [*self.module.parameters()]
        states = (value for state in self.optimizer.state.values() for value in state.values())
        report.numbers |= {
            "parameter_bytes": held_bytes(parameters),
            "optimizer_bytes": held_bytes(v for v in states if isinstance(v, torch.Tensor) and v.dim() > 0),
            **peak_memory(self.device),
            **self._clock.moments.numbers(),
        }
        report.readings += self._clock.lags()
        report.later_waits = self._loop.later_waits
        return report

    def marks(self) -> Marks:
        """The moments of all whole steps, as rows."""
        return read_marks(marks_path(self.folder, self.group.rank), None, WIDTH)[: self.steps]

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return self._loop.steps

    def case(self) -> Case:
        """What was trained, as far as it can be told."""
        ranks, batches = self.group.size, self._loop.batches_of_step
        samples, tokens = self._size or (1, 1)
        if self._size is None and self.global_batch is None:
            self.findings.append(UNSEEN)
        return describe(
            self.module,
            self.optimizer,
            name=self.name,
            ranks=ranks,
            nodes=self.group.nodes,
            samples=samples * batches,
            tokens=self.seq_len or tokens,
            global_batch=self.global_batch,
            batches=batches,
            autocast=self._autocast,
        )

    def _begin_step(self, step: int) -> StepMarker:
        self._clock.make_room(step + 1 if step % ROOM else step + ROOM)
        wanted = self.schedule.phase(step) is Phase.INSTRUMENT
        if wanted and self._marker is None:
            self._instruments.append(Instruments(self, self._on))
            self._marker = self._instruments[-1].marker
        elif not wanted and self._marker is not None:
            self._on.close()
            self._marker = None
        return self._marker or self._clock

    def _first_batch(self, batch: Any) -> None:
        self._size = size_of(batch)

    def _first_forward(self, hook: Any) -> None:
        if torch.is_autocast_enabled(self.device.type):
            self._autocast = torch.get_autocast_dtype(self.device.type)
        hook.remove()

    def probed(self, case: Case) -> ProbedRank:
        """This rank as instruments take it."""
        rank, size = self.group.rank, self.group.size
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


def _not_ours(*_: Any) -> Any:
    raise AssertionError("a watched loop computes for itself")


class Instruments:
    """The instruments of a few steps that follow one another, switched on in `on`. `marker` is the clock that these
    steps are to mark."""

    def __init__(self, watch: Watch, on: contextlib.ExitStack) -> None:
        rank = watch.probed(watch.case())
        self._probes = [DdpLoggerProbe(rank), CommunicationProbe(rank)]
        self._memory = MemoryClock(rank.clock, watch.device, rank.clock.steps, WIDTH)
        self.marker: StepMarker = self._memory
        for probe in self._probes:
            self.marker = on.enter_context(probe.instrumented(self.marker))

    def report(self, report: WatchReport) -> None:
        report.readings += self._memory.readings
        for probe in self._probes:
            probe.report(report)


@contextlib.contextmanager
def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    out: str | os.PathLike[str] = "parabench-results",
    name: str | None = None,
    label: str | None = None,
    global_batch: int | None = None,
    seq_len: int | None = None,
    warmup: int = 5,
    instrumented: int = 3,
    log: Callable[[str], None] | None = None,
) -> Iterator[Watch]:
    """Time the steps of a training loop, on every rank of the default process group or in one process.

    `model` is what the loop calls (wrapped by DDP, sharded, compiled or plain), `optimizer` the one whose step ends a
    training step. The block's value is called with what the loop takes its batches from, once an epoch. After the
    block rank 0 writes a session into the store of the folder `out`, and its report; nothing of the training is
    changed, and no step waits for a device or another rank because of it.

    `name` is what the model is called, else it is its class; sessions of one `label`, script and model are one, each
    run a launch of it. `global_batch` and `seq_len`, samples of a step over all ranks and tokens of each, are read from
    the first batch where they are not given. The first `warmup` steps do not count; `instrumented` steps follow one
    another with instruments on, soon after and then ever more seldom (`schedule.INSTRUMENTED_AT`), 0 for none.

    An error that ends the block is recorded and goes on. Raises UsageError for what cannot be watched, before the first
    step.
    """
    inner: Any = getattr(optimizer, "optimizer", optimizer)  # accelerate's wraps the real one
    if not isinstance(inner, torch.optim.Optimizer):
        raise UsageError(f"watch: {type(optimizer).__name__} is no torch.optim.Optimizer; give the one whose step() the loop calls")
    if not isinstance(model, nn.Module):
        raise UsageError(f"watch: {type(model).__name__} is no torch.nn.Module; give the model that the loop calls")
    for what, value, least in (("warmup", warmup, 2), ("instrumented", instrumented, 0), ("global_batch", global_batch, 1), ("seq_len", seq_len, 1)):
        if value is not None and value < least:
            raise UsageError(f"watch: {what} is {value}; give {least} or more")
    if label is not None:
        check_label(label)
    group = Group.enter()
    folder = Path(out)
    if group.rank == 0:
        check_writable(folder, option="out")
    say = log or logger(Console(file=sys.stderr))
    with launch_folder(shared_memory_folder()) as own:
        clock = group.clock_offset()
        began_s = perf_counter()
        leave_pid(own, group.rank)
        seen = Watch(
            module=model, optimizer=inner, group=group, schedule=Schedule(warmup, instrumented), folder=own, began_s=began_s,
            name=name, global_batch=global_batch, seq_len=seq_len,
        )  # fmt: skip
        sampler = _sampler(own, group, began_s)
        error: BaseException | None = None
        try:
            with sampler, seen.watching():
                yield seen
        except BaseException as why:
            error = why
            raise
        finally:
            _end(seen, sampler, clock, error, folder, label, say)


def _sampler(folder: Path, group: Group, began_s: float) -> Sampler:
    """What reads this rank's process, and on the first rank of a host how much others compute there."""
    launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else os.getpid()
    watched = Watched(began_s=began_s, pids=RankPids(folder, [group.rank]), ours=launcher)
    return Sampler(began_s, sources_of(watched), period_s=READING_S)


def _end(
    seen: Watch,
    sampler: Sampler,
    clock: dict[str, float] | None,
    error: BaseException | None,
    folder: Path,
    label: str | None,
    log: Callable[[str], None],
) -> None:
    """Hand over what this rank saw; at rank 0 record what all did. What goes wrong here is said, and nothing more: the
    training is over."""
    group = seen.group
    if error is None and not seen.steps:
        log("parabench: no step was taken with the watched loader; nothing is recorded")
        return
    report = WatchReport(rank=group.rank, error=error_of(error)) if error is not None else seen.report()
    report.clock = clock
    result = NodeResult(
        node=group.node,
        host=group.hosts[group.rank],
        first_rank=group.rank,
        reports=[report],
        marks=[seen.marks()],
        outcome=ProcessOutcome(ok=error is None),
        began_s=seen.began_s,
        tails=[] if error is None else [""],
        device_samples=sampler.samples(DeviceSample),
        host_samples=sampler.samples(HostSample),
        sampler=sampler.facts(),
    )
    told = {"result": result.to_dict(), "about": about_this(group)}
    try:
        if group.rank:
            group.hand_over("seen", told)
            return
        timeout_s = LEAVE_S if error is None else FAILED_S
        came = group.collect("seen", told, timeout_s)
        results = [each and NodeResult.from_dict(each["result"], WatchReport) for each in came]
        record(
            Seen(
                out=folder, label=label, script=script_name(), case=seen.case(), schedule=seen.schedule,
                results=results, said=[each and each["about"] for each in came], findings=seen.findings,
                waited_s=timeout_s,
            ),
            group,
            log,
        )  # fmt: skip
    except (UsageError, OSError, RuntimeError) as why:
        log(f"parabench: what was watched is not recorded: {why}")
