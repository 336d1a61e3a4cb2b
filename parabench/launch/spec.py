"""What node 0 lets all nodes do: one launch. As JSON it travels through the rendezvous store, and is checked there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from parabench.plan.case import Case
from parabench.plan.plan import KINDS
from parabench.plan.protocol import LinkProtocol
from parabench.store.record import AnyCase

# What a session measures, and what is measured before it.
ORDERS: dict[str, tuple[type[Any], type[Any]]] = {**KINDS, "links": (Case, LinkProtocol)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """A case to be launched on its nodes, and how."""

    kind: str
    case: AnyCase
    protocol: Any
    deadline_s: float

    @property
    def nodes(self) -> int:
        """How many nodes take part: the first ones."""
        return self.case.nodes

    @property
    def ranks_per_node(self) -> int:
        """How many ranks each of them starts."""
        return self.case.world_size // self.case.nodes

    @classmethod
    def of(cls, case: AnyCase, protocol: Any, deadline_s: float) -> LaunchSpec:
        """The order to launch `case`; its kind is told by the protocol."""
        kind = next(kind for kind, (_, type_) in ORDERS.items() if isinstance(protocol, type_))
        return cls(kind=kind, case=case, protocol=protocol, deadline_s=deadline_s)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "case": self.case.to_dict(),
            "protocol": asdict(self.protocol),
            "deadline_s": self.deadline_s,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LaunchSpec:
        """The reverse of `to_dict`. Raises UsageError for what is no case."""
        case, protocol = ORDERS[values["kind"]]
        return cls(
            kind=values["kind"],
            case=case.from_dict(values["case"]),
            protocol=protocol(**values["protocol"]),
            deadline_s=values["deadline_s"],
        )
