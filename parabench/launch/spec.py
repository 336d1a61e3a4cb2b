"""What is launched (`LaunchSpec`), and the interface of the launcher to a kind of measurement (`Workload`). Free of
torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from typing import Protocol as Interface

from parabench.launch.token import Pair
from parabench.plan.protocol import Protocol
from parabench.records import Record, read
from parabench.registry import load
from parabench.store.record import AnyCase, Launch, utc_now
from parabench.workloads import WORKLOADS

if TYPE_CHECKING:
    from parabench.launch.rendezvous import RendezvousPoint
    from parabench.launch.results import MarkLayout, NodeResult, RankReport


class LaunchSpec(Record, frozen=True, kw_only=True):
    """The cases and the protocol of one launch. It counts as hung after `deadline_s` seconds.

    Traces go into the folder `traces` of each node. With a `pair`, the launch is interleaved with another variant's.

    Raises ValueError for cases that cannot share ranks.
    """

    kind: str
    cases: tuple[Any, ...]
    protocol: Any
    deadline_s: float
    traces: str | None = None
    pair: Pair | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({(each.nodes, each.device, each.backend) for each in self.cases}) != 1:
            raise ValueError("the configurations of a launch must have nodes, device and backend in common")
        if self.nodes > 1 and len({each.world_size for each in self.cases}) != 1:
            raise ValueError("the configurations of a launch on several nodes must have one world size in common")

    @classmethod
    def of(
        cls, case: AnyCase, protocol: Any, deadline_s: float, traces: Path | None = None, kind: str | None = None
    ) -> LaunchSpec:
        """Make the launch of one case. By default, its protocol decides its kind."""
        folder = None if traces is None else str(traces)
        kind = kind or protocol.kind
        schedule = protocol.alone() if isinstance(protocol, Protocol) else protocol
        return cls(kind=kind, cases=(case,), protocol=schedule, deadline_s=deadline_s, traces=folder)

    @property
    def case(self) -> Any:
        """The case of a launch that has one."""
        (only,) = self.cases
        return only

    @property
    def largest(self) -> Any:
        """The first of the cases that have most ranks: smaller ones are in the first of its ranks."""
        return max(self.cases, key=lambda case: case.world_size)

    @property
    def world_size(self) -> int:
        """How many devices take part; a rank each, unless one process drives several."""
        ranks: int = self.largest.world_size
        return ranks // (self.cases[0].nodes if self.alone else 1)

    @property
    def nodes(self) -> int:
        """How many nodes take part: the first ones."""
        return 1 if self.alone else self.cases[0].nodes

    @property
    def alone(self) -> bool:
        """Whether each rank computes without the others and exchanges nothing."""
        return WORKLOADS[self.kind].alone

    @property
    def ranks_per_node(self) -> int:
        """How many ranks each of them starts."""
        return self.world_size // self.nodes

    @property
    def device(self) -> str:
        """The kind of device: `cpu` or `cuda`."""
        device: str = self.cases[0].device
        return device

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], traces: Path | None = None) -> LaunchSpec:
        """Return the launch of `to_dict`; on this node, traces go to the folder `traces`. Raises UsageError for invalid
        cases."""
        entry = WORKLOADS[values["kind"]]
        protocol_type = entry.launch_type or entry.protocol_type
        own: dict[str, Any] = {"cases": tuple[entry.case_type, ...], "protocol": protocol_type}  # type: ignore[name-defined]
        typed = {name: read(kind, values[name], name) for name, kind in own.items()}
        return read(cls, {**values, **typed, "traces": values["traces"] and str(traces or values["traces"])}, "launch")


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
    """A kind of measurement, as in nccl-tests (`struct testColl`): one launcher runs all kinds.

    It has no state: each process that needs one makes it.
    """

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


def workload_of(kind: str) -> Workload:
    """Make the workload of that kind."""
    workload: Workload = load(WORKLOADS, "workload", kind)()
    return workload
