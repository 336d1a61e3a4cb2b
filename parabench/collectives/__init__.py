"""All-reduce algorithms: one file each, and the process group that routes a strategy's collectives through them.

This table is free of torch, so that names can be checked and listed at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from parabench.collectives.nccl import NCCL_ALGORITHMS, NCCL_PREFIX, is_nccls
from parabench.errors import UsageError
from parabench.registry import Entry

# The backend is the process group, and no module is loaded.
NATIVE = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmEntry(Entry):
    """The facts about an algorithm that do not need torch. If it `is_level`, it can be a level of two_level."""

    is_level: bool = False
    color: str | None = None


ALGORITHMS: dict[str, AlgorithmEntry] = {
    "native": AlgorithmEntry(target=NATIVE, summary="the backend's own", color="#0072B2"),
    "ring": AlgorithmEntry(
        target="parabench.collectives.ring:RING",
        summary="scatter-reduce, then all-gather, round a ring",
        color="#D55E00",
        is_level=True,
    ),
    "tree": AlgorithmEntry(
        target="parabench.collectives.tree:TREE",
        summary="double binary tree, pipelined in pieces",
        color="#009E73",
        is_level=True,
    ),
    "halving_doubling": AlgorithmEntry(
        target="parabench.collectives.halving_doubling:HALVING_DOUBLING",
        summary="recursive halving, then doubling: few messages, the least bytes",
        color="#E69F00",
        is_level=True,
    ),
    "parameter_server": AlgorithmEntry(
        target="parabench.collectives.parameter_server:PARAMETER_SERVER",
        summary="all send to rank 0, which sums and sends back",
        color="#56B4E9",
        is_level=True,
    ),
    "two_level": AlgorithmEntry(
        target="parabench.collectives.two_level:two_level",
        summary="reduce-scatter inside a node, all-reduce of each shard across nodes, all-gather inside; "
        "two_level(INNER,OUTER) chooses the parts, ring,ring when not given",
        color="#CC79A7",
    ),
}
# Algorithms for all backends. The others are NCCL's.
ON_ANY_BACKEND = tuple(ALGORITHMS)
LEVELS = tuple(name for name, entry in ALGORITHMS.items() if entry.is_level)

ALGORITHMS |= {
    f"{NCCL_PREFIX}{name}": AlgorithmEntry(target=NATIVE, summary=f"NCCL's own, pinned to {name} for {', '.join(ops)}")
    for name, ops in NCCL_ALGORITHMS.items()
}

TWO_LEVEL = "two_level"
DEFAULT_LEVELS = ("ring", "ring")
_PARTS = re.compile(r"two_level\(([^(),]*),([^(),]*)\)")


def levels_of(name: str) -> tuple[str, str] | None:
    """Return the levels of `two_level` or `two_level(INNER,OUTER)`; None for other algorithms. Raises UsageError."""
    if name == TWO_LEVEL:
        return DEFAULT_LEVELS
    if not name.startswith(f"{TWO_LEVEL}("):
        return None
    match = _PARTS.fullmatch(name.replace(" ", ""))
    if match is None or not set(match.groups()) <= set(LEVELS):
        raise UsageError(
            f"algorithm {name!r}: write two_level(INNER,OUTER), each of {', '.join(LEVELS)}, as in two_level(ring,tree)"
        )
    return match[1], match[2]


def canonical(name: str) -> str:
    """Return the shortest name: `two_level` for `two_level(ring,ring)`. Raises UsageError like `levels_of`."""
    levels = levels_of(name)
    if levels is None:
        return name
    return TWO_LEVEL if levels == DEFAULT_LEVELS else f"{TWO_LEVEL}({levels[0]},{levels[1]})"


def table_name(name: str) -> str:
    """Return the entry of ALGORITHMS for `name`, such as `two_level` for `two_level(ring,tree)`."""
    return TWO_LEVEL if levels_of(name) is not None else name


def is_backends(name: str) -> bool:
    """Return whether it is an algorithm of the backend: `native`, or a pinned algorithm of NCCL."""
    return name == "native" or is_nccls(name)
