"""What a launch knows of the kind of measurement that its ranks make.

As in nccl-tests (`struct testColl`) a kind is one object, and there is one launcher for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol as Interface
from typing import TypeVar

from parabench.launch.rendezvous import RendezvousPoint
from parabench.launch.results import MarkLayout, Marks, NodeResult, RankReport
from parabench.launch.spec import LaunchSpec
from parabench.registry import load
from parabench.store.record import AnyCase, Launch, utc_now
from parabench.workloads import WORKLOADS

R = TypeVar("R", bound=RankReport)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnv:
    """Where the ranks of a launch run. In `folder` those of a node leave what they saw. They meet at
    `rendezvous`; without one they are all on this node. `environment` is set before the process group starts."""

    folder: Path
    timeout_s: float
    environment: dict[str, str] = field(default_factory=dict)
    rendezvous: RendezvousPoint | None = None
    started_utc: str = field(default_factory=utc_now)


class Workload(Interface):
    """A kind of measurement. It has no state: it is made anew in every process that needs it."""

    @property
    def report_type(self) -> type[RankReport]:
        """What its ranks hand over."""

    def ranks(self, spec: LaunchSpec) -> int:
        """How many processes take part."""
        return spec.world_size

    def prepare(self, spec: LaunchSpec, folder: Path) -> Mapping[str, str]:
        """Make ready on a node before its ranks start; what is to be set in their environment."""
        return {}

    def measure(self, spec: LaunchSpec, env: RankEnv, rank: int) -> RankReport:
        """Measure, in a rank: join the group, leave it. An error leaves the group as it is."""

    def marks(self, spec: LaunchSpec) -> MarkLayout:
        """What its ranks mark."""

    def record(self, launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
        """Add to a launch that is over the rows and facts of what ranks saw, and whether their results are wrong."""


def handed_over(nodes: Sequence[NodeResult], report_type: type[R]) -> Iterator[tuple[R, Marks]]:
    """What each rank handed over, and what it marked, in their order."""
    for node in nodes:
        for report, marks in zip(node.reports, node.marks, strict=True):
            assert isinstance(report, report_type)
            yield report, marks


def shares_of(launch: Launch, cases: Sequence[AnyCase], places: Sequence[int]) -> Iterator[tuple[int, Launch]]:
    """A launch of each case at `places` of one that `cases` share, with its facts and an equal part of its time, and
    the place.

    Readings of hosts and devices, which no case has to itself, stay with the first of those that have most ranks.
    """
    reader = max(places, key=lambda place: cases[place].world_size, default=None)
    for place in places:
        yield (
            place,
            replace(
                launch,
                case=cases[place],
                wall_s=launch.wall_s / len(cases),
                facts=dict(launch.facts),
                samples=[],
                collectives=[],
                arms=[],
                findings=list(launch.findings),
                device_samples=launch.device_samples if place == reader else [],
                host_samples=launch.host_samples if place == reader else [],
            ),
        )


def workload_of(kind: str) -> Workload:
    """The workload of that kind."""
    workload: Workload = load(WORKLOADS, "workload", kind)()
    return workload
