"""The interface between the launcher and a kind of measurement: training, collectives, links.

As in nccl-tests (`struct testColl`), a kind is one object, and one launcher runs all kinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol as Interface

from parabench.launch.outcome import culprit
from parabench.launch.rendezvous import RendezvousPoint
from parabench.launch.results import MarkLayout, Marks, NodeResult, RankReport
from parabench.launch.spec import LaunchSpec
from parabench.registry import load
from parabench.store.record import AnyCase, Launch, Status, utc_now
from parabench.workloads import WORKLOADS


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnv:
    """The environment of a launch's ranks on a node.

    They leave their results in `folder`, and meet at `rendezvous` if there are several nodes.
    """

    folder: Path
    timeout_s: float
    environment: dict[str, str] = field(default_factory=dict)
    rendezvous: RendezvousPoint | None = None
    started_utc: str = field(default_factory=utc_now)


class Workload(Interface):
    """A kind of measurement. It has no state: each process that needs one makes it."""

    def ranks(self, spec: LaunchSpec) -> int:
        """Return how many processes take part."""
        return spec.world_size

    def prepare(self, spec: LaunchSpec, folder: Path) -> Mapping[str, str]:
        """Prepare a node before its ranks start. Return variables for their environment."""
        return {}

    def measure(self, spec: LaunchSpec, env: RankEnv, rank: int) -> RankReport:
        """Measure, in a rank: join the group, leave it. An error leaves the group as it is."""

    def marks(self, spec: LaunchSpec) -> MarkLayout:
        """Return the layout of the marks of its ranks."""

    def record(self, launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
        """Add the rows and facts of all ranks to a launch that is over, and whether their results are wrong."""


def arms_of(
    launch: Launch, spec: LaunchSpec, marks: Sequence[Marks], columns: int, owners: Sequence[int]
) -> Iterator[tuple[int, Launch]]:
    """Yield a launch for each case of a shared launch, with its place.

    If the launch failed, only the case whose turn it was gets a launch. `owners` has the place of the case that each
    row of marks belongs to.
    """
    places: Sequence[int] = range(len(spec.cases))
    if launch.status is not Status.OK:
        failed = culprit(launch, marks, columns, owners, [case.world_size for case in spec.cases])
        places = [] if failed is None else [failed]
    yield from shares_of(launch, spec.cases, places)


def shares_of(launch: Launch, cases: Sequence[AnyCase], places: Sequence[int]) -> Iterator[tuple[int, Launch]]:
    """Yield a launch for each case at `places`, with its place, the facts of the shared launch and an equal part of its
    time.

    Readings of hosts and devices stay with the first of the cases that have most ranks.
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
    """Make the workload of that kind."""
    workload: Workload = load(WORKLOADS, "workload", kind)()
    return workload
