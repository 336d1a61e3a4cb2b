"""What an algorithm is: four plain functions over a wire, and a reduction. And how a name becomes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from parabench.collectives import ALGORITHMS, levels_of, table_name
from parabench.collectives.wire import Wire
from parabench.errors import UsageError
from parabench.registry import load


def _nothing(tensor: Tensor) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Reduction:
    """`combine(into, a, b)` of two contributions, and `finish(total)` once at the end, in place.

    `into` may be `a` or `b`. Contributions travel as `carrier`, when their own type is too narrow for what comes
    between.
    """

    combine: Callable[[Tensor, Tensor, Tensor], object]
    finish: Callable[[Tensor], object] = _nothing
    carrier: torch.dtype | None = None

    def partly(self) -> Reduction:
        """The same without its end: for all but the last of several reductions that make up one."""
        return Reduction(self.combine)


_COMBINES: dict[ReduceOp.RedOpType, Callable[[Tensor, Tensor, Tensor], object]] = {
    ReduceOp.SUM: lambda into, a, b: torch.add(a, b, out=into),
    ReduceOp.AVG: lambda into, a, b: torch.add(a, b, out=into),
    ReduceOp.MAX: lambda into, a, b: torch.maximum(a, b, out=into),
    ReduceOp.MIN: lambda into, a, b: torch.minimum(a, b, out=into),
}


def reduction(op: Any, size: int, dtype: torch.dtype = torch.float32) -> Reduction:
    """The reduction of `size` contributions of `dtype` under a ReduceOp. Raises ValueError where there is none."""
    return _reduction(getattr(op, "op", op), size, dtype)


@lru_cache(maxsize=64)
def _reduction(op: ReduceOp.RedOpType, size: int, dtype: torch.dtype) -> Reduction:
    eight_bit_float = dtype.is_floating_point and dtype.itemsize == 1  # cannot be added
    if op not in _COMBINES or eight_bit_float or (op == ReduceOp.AVG and not dtype.is_floating_point):
        raise ValueError(
            f"reduction {op.name} of {dtype} has no algorithm here; use SUM, MAX or MIN, with floating point numbers "
            "AVG, or algorithm native"
        )
    if op != ReduceOp.AVG:
        return Reduction(_COMBINES[op])
    # A float16 sum overflows long before its average does.
    carrier = torch.float32 if dtype is torch.float16 else None
    return Reduction(_COMBINES[op], lambda total: total.div_(size), carrier)


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
