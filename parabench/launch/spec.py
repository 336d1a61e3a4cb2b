"""The description of a launch (`LaunchSpec`), and the interface of each kind of measurement (`Workload`).

This module does not import torch.
"""

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
    """A launch: a group of new processes that runs one case, or interleaves several cases.

    Raises ValueError for cases that cannot share processes.
    """

    kind: str  # a key of WORKLOADS, such as "training"
    cases: tuple[Any, ...]
    protocol: Any  # the numbers of steps or calls, of the type that WORKLOADS has for the kind
    deadline_s: float  # after this time, the launch counts as hung
    traces: str | None = None  # the folder for profiler traces, on each node
    pair: Pair | None = None  # the pipes to the driver, if `ab` interleaves this launch with another one

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
        """Return a launch of one case. By default, the protocol has the kind."""
        folder = None if traces is None else str(traces)
        kind = kind or protocol.kind
        schedule = protocol.alone() if isinstance(protocol, Protocol) else protocol
        return cls(kind=kind, cases=(case,), protocol=schedule, deadline_s=deadline_s, traces=folder)

    @property
    def case(self) -> Any:
        """The only case. Raises ValueError if the launch has several."""
        (only,) = self.cases
        return only

    @property
    def largest(self) -> Any:
        """The case with the highest number of ranks, which all ranks of the launch take part in.

        Cases with fewer ranks run on the first ranks of the launch.
        """
        return max(self.cases, key=lambda case: case.world_size)

    @property
    def world_size(self) -> int:
        """The number of devices, which is the number of ranks, unless one process uses several devices."""
        ranks: int = self.largest.world_size
        return ranks // (self.cases[0].nodes if self.alone else 1)

    @property
    def nodes(self) -> int:
        """The number of nodes. If the session has more, the first nodes run the launch."""
        return 1 if self.alone else self.cases[0].nodes

    @property
    def alone(self) -> bool:
        """True if the ranks compute without communication, so that one node measures for all."""
        return WORKLOADS[self.kind].alone

    @property
    def ranks_per_node(self) -> int:
        """The number of ranks on each node."""
        return self.world_size // self.nodes

    @property
    def device(self) -> str:
        """The type of the devices: `cpu` or `cuda`."""
        device: str = self.cases[0].device
        return device

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], traces: Path | None = None) -> LaunchSpec:
        """Return the launch that `to_dict` converted, with the folder for traces on this node.

        Raises UsageError for invalid cases.
        """
        entry = WORKLOADS[values["kind"]]
        protocol_type = entry.launch_type or entry.protocol_type
        own: dict[str, Any] = {"cases": tuple[entry.case_type, ...], "protocol": protocol_type}  # type: ignore[name-defined]
        typed = {name: read(kind, values[name], name) for name, kind in own.items()}
        return read(cls, {**values, **typed, "traces": values["traces"] and str(traces or values["traces"])}, "launch")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnv:
    """The environment of the ranks of a launch on one node."""

    folder: Path  # for the results of the ranks
    timeout_s: float  # the timeout of the process group
    environment: dict[str, str] = field(default_factory=dict)  # environment variables to set in each rank
    rendezvous: RendezvousPoint | None = None  # None if the launch has one node
    started_utc: str = field(default_factory=utc_now)


class Workload(Interface):
    """The functions of one kind of measurement, as in nccl-tests (`struct testColl`); one launcher runs all kinds.

    A workload has no state. The driver, the agents and the ranks each create one.
    """

    def ranks(self, spec: LaunchSpec) -> int:
        """Return the number of processes."""
        return spec.world_size

    def prepare(self, spec: LaunchSpec, folder: Path) -> Mapping[str, str]:
        """Prepare a node before its ranks start. Return environment variables for the ranks."""
        return {}

    def measure(self, spec: LaunchSpec, env: RankEnv, rank: int) -> RankReport:
        """Measure, in a rank, which joins the process group and leaves it; after an error it does not leave it."""

    def marks(self, spec: LaunchSpec) -> MarkLayout:
        """Return the layout of the table of timestamps that each rank writes."""

    def record(self, launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
        """Add the samples and facts of all ranks to the record of a finished launch. Mark wrong results."""


def workload_of(kind: str) -> Workload:
    """Return the workload of a kind of measurement."""
    workload: Workload = load(WORKLOADS, "workload", kind)()
    return workload
