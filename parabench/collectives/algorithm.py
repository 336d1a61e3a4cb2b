"""What an algorithm is: four plain functions over a wire. And how a name becomes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from parabench.collectives import ALGORITHMS, levels_of, table_name
from parabench.collectives.reduction import Reduction
from parabench.collectives.wire import Wire
from parabench.errors import UsageError
from parabench.registry import load


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One way for collectives to travel between ranks. Tensors are flat and contiguous; n is `wire.size`.

    `all_reduce(wire, flat, reduction)` works in place. `reduce_scatter(wire, output, flat, reduction)` gives rank r
    the reduced r-th of n equal parts and leaves `flat` as it is; `output` may be that part of `flat` itself.
    `all_gather(wire, output, part)` is its inverse; `part` may lie in its place in `output`.
    `broadcast(wire, flat, root)` gives everybody the root's; None leaves it to the backend.
    `instead` names, by operation, the algorithm whose form this one uses because it has none of its own.
    """

    name: str
    all_reduce: Callable[[Wire, Tensor, Reduction], None]
    reduce_scatter: Callable[[Wire, Tensor, Tensor, Reduction], None]
    all_gather: Callable[[Wire, Tensor, Tensor], None]
    broadcast: Callable[[Wire, Tensor, int], None] | None = None
    instead: Mapping[str, str] = field(default_factory=dict)

    def of(self, op: str) -> str:
        """The name of the algorithm that `op` really runs."""
        if op == "broadcast" and self.broadcast is None:
            return "native"
        return self.instead.get(op, self.name)


def make(name: str, ranks_per_node: int | None) -> Algorithm:
    """The algorithm called `name`; `ranks_per_node` is for those that know nodes. Raises UsageError."""
    loaded = load(ALGORITHMS, "algorithm", table_name(name))
    if isinstance(loaded, Algorithm):
        return loaded
    levels = levels_of(name)
    if levels is not None:
        ours: Algorithm = loaded(ranks_per_node, *(make(part, None) for part in levels))
        return ours
    try:
        made = loaded(ranks_per_node)
    except Exception as error:  # whatever a user's function does
        raise UsageError(
            f"algorithm {name!r} cannot be made of ranks_per_node {ranks_per_node}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, Algorithm):
        raise UsageError(f"algorithm {name!r} gave {made!r} for ranks_per_node {ranks_per_node}, not an Algorithm")
    return made
