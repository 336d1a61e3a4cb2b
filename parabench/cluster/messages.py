"""The messages of a driver and its agents, declared once for both ends."""

# An agent is a process that launches ranks for a driver elsewhere: another node of the session (`cluster.agent`), or a
# variant of `parabench ab` (`ab.agent`). The methods of an agent that are marked `@request` declare the requests and
# their results. The agent answers one request after the other.
#
# `Abort`, `Stop` and `Progress` are events: the other end handles them at once.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from msgspec import Struct

# Increases if a message or a request changes: the variants of `ab` may have several versions of parabench.
PROTOCOL = 8

P = ParamSpec("P")
R = TypeVar("R")


class _Message(Struct, tag=True, forbid_unknown_fields=True): ...


class Hello(_Message):
    """The first message on a connection of nodes, from node 0. `signed` is whether node 0 has a secret."""

    protocol: int
    session: str
    nonce: str
    signed: bool


class Proof(_Message):
    """The answer of each node to the nonce of the other one. It is empty if the other node's proof is wrong."""

    proof: str
    nonce: str = ""


class Request(_Message):
    """Call an agent's method with these values."""

    name: str
    values: dict[str, Any]


class Reply(_Message):
    """The result of a request."""

    values: dict[str, Any]


class Refused(_Message):
    """The reason why a request failed."""

    why: str


class Abort(_Message):
    """End the ranks of a launch."""

    launch: int
    reason: str


class Stop(_Message):
    """The agent received a stop signal."""

    signal: int


class Progress(_Message):
    """A launch of the agent starts, or has ended with an `outcome`."""

    label: str
    repetition: int
    outcome: str | None = None
    ok: bool = True


Message = Hello | Proof | Request | Reply | Refused | Abort | Stop | Progress


def request(method: Callable[P, R]) -> Callable[P, R]:
    """Mark a method of an agent as a request. Arguments are keywords. They and the result must be JSON."""
    method.is_request = True  # type: ignore[attr-defined]
    return method


def answer(agent: object, message: Message) -> Reply:
    """Call the method that a request names. Raises ValueError if the agent has no such request."""
    if isinstance(message, Request):
        method: Any = getattr(agent, message.name, None)
        if hasattr(method, "is_request"):
            return Reply(method(**message.values) or {})
    raise ValueError("a message that no driver sends")
