"""A watched loop as a launch: what its ranks hand over, and the rows of the record that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from parabench.launch.results import MarkLayout, NodeResult
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import RankEnv, Workload, handed_over
from parabench.store.record import UNVERIFIED, Finding, Launch, Sample
from parabench.watching.loop import WIDTH
from parabench.watching.schedule import Schedule
from parabench.workloads.training import TrainingReport, record_ranks

UNCOMPARED = Finding(
    UNVERIFIED,
    "A training of your own was watched: nothing was there to compare its losses with.",
    "Nothing is to be done; parabench verifies the trainings that it builds itself.",
)


@dataclass(slots=True, kw_only=True)
class WatchReport(TrainingReport):
    """`later_waits` {step: seconds} are waits for batches after a step's first."""

    later_waits: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        TrainingReport.__post_init__(self)
        self.later_waits = {int(step): seconds for step, seconds in self.later_waits.items()}


@dataclass(frozen=True, slots=True)
class WatchWorkload(Workload):
    """Steps of a loop that has run already."""

    schedule: Schedule

    report_type = WatchReport

    def measure(self, spec: LaunchSpec, env: RankEnv, rank: int) -> WatchReport:
        raise AssertionError("the loop has run already")

    def marks(self, spec: LaunchSpec) -> MarkLayout:
        def position(moments: int) -> str:
            step, part = divmod(moments, WIDTH)
            return f"to step {step}, part {part}"

        return MarkLayout(columns=WIDTH, moments=WIDTH, rows=None, position=position)

    def record(self, launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
        ranks = list(handed_over(nodes, WatchReport))
        steps = max(len(marks) for _, marks in ranks)
        record_ranks(launch, ranks, self.schedule.phases(steps))
        for report, _ in ranks:
            add_later_waits(launch, report)
        launch.findings.append(UNCOMPARED)


def add_later_waits(launch: Launch, report: WatchReport) -> None:
    """Count a rank's waits between the batches of one step as waits for data, not as computing."""
    signs = {"data_s": 1.0, "forward_backward_s": -1.0}
    launch.samples = [
        Sample(each.rank, each.step, each.phase, each.metric, each.value + signs[each.metric] * waited)
        if each.rank == report.rank
        and each.metric in signs
        and each.value is not None
        and each.step is not None
        and (waited := report.later_waits.get(each.step)) is not None
        else each
        for each in launch.samples
    ]
