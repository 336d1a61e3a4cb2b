"""The interface of all-reduce algorithms, their reductions, and the search for an algorithm by name."""

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
from parabench.registry import load, users_code


def _nothing(tensor: Tensor) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Reduction:
    """A sum, average, maximum or minimum: `combine(into, a, b)` for two contributions, and `finish(total)` at the end.

    `into` may be `a` or `b`. `finish` works in place. Contributions are sent as `carrier` if their type is too narrow
    for partial results.
    """

    combine: Callable[[Tensor, Tensor, Tensor], object]
    finish: Callable[[Tensor], object] = _nothing
    carrier: torch.dtype | None = None

    def partly(self) -> Reduction:
        """Return the reduction without `finish`, for all but the last of several stages."""
        return Reduction(self.combine)


_COMBINES: dict[ReduceOp.RedOpType, Callable[[Tensor, Tensor, Tensor], object]] = {
    ReduceOp.SUM: lambda into, a, b: torch.add(a, b, out=into),
    ReduceOp.AVG: lambda into, a, b: torch.add(a, b, out=into),
    ReduceOp.MAX: lambda into, a, b: torch.maximum(a, b, out=into),
    ReduceOp.MIN: lambda into, a, b: torch.minimum(a, b, out=into),
}


def reduction(op: Any, size: int, dtype: torch.dtype = torch.float32) -> Reduction:
    """Return the reduction of `size` contributions of `dtype` for a ReduceOp. Raises ValueError if there is none."""
    return _reduction(getattr(op, "op", op), size, dtype)


@lru_cache(maxsize=64)
def _reduction(op: ReduceOp.RedOpType, size: int, dtype: torch.dtype) -> Reduction:
    eight_bit_float = dtype.is_floating_point and dtype.itemsize == 1  # cannot be added
    if op not in _COMBINES or eight_bit_float or (op == ReduceOp.AVG and not dtype.is_floating_point):
        raise ValueError(
            f"reduction {op.name} of {dtype} is not supported; use SUM, MAX or MIN, or AVG for floating point numbers, "
            "or algorithm native"
        )
    if op != ReduceOp.AVG:
        return Reduction(_COMBINES[op])
    # A float16 sum overflows before its average.
    carrier = torch.float32 if dtype is torch.float16 else None
    return Reduction(_COMBINES[op], lambda total: total.div_(size), carrier)


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """An algorithm for collectives as four functions over a wire. Tensors are flat and contiguous."""

    name: str
    # all_reduce(wire, flat, reduction), in place.
    all_reduce: Callable[[Wire, Tensor, Reduction], None]
    # reduce_scatter(wire, output, flat, reduction): rank r receives the reduced r-th of `wire.size` equal parts. `flat`
    # does not change, unless `output` is that part of `flat`.
    reduce_scatter: Callable[[Wire, Tensor, Tensor, Reduction], None]
    # all_gather(wire, output, part). `part` may be in its place in `output`.
    all_gather: Callable[[Wire, Tensor, Tensor], None]
    # broadcast(wire, flat, root). With None, the backend does it.
    broadcast: Callable[[Wire, Tensor, int], None] | None = None
    # {operation: the algorithm that is used for it}, if this one does not have the operation.
    instead: Mapping[str, str] = field(default_factory=dict)

    def of(self, op: str) -> str:
        """Return the name of the algorithm that `op` uses."""
        if op == "broadcast" and self.broadcast is None:
            return "native"
        return self.instead.get(op, self.name)


def make(name: str, ranks_per_node: int | None) -> Algorithm:
    """Return the algorithm `name`. Algorithms with levels use `ranks_per_node`. Raises UsageError."""
    loaded = load(ALGORITHMS, "algorithm", table_name(name))
    if isinstance(loaded, Algorithm):
        return loaded
    levels = levels_of(name)
    if levels is not None:
        ours: Algorithm = loaded(ranks_per_node, *(make(part, None) for part in levels))
        return ours
    with users_code(f"algorithm {name!r} cannot be made of ranks_per_node {ranks_per_node}"):
        made = loaded(ranks_per_node)
    if not isinstance(made, Algorithm):
        raise UsageError(f"algorithm {name!r} gave {made!r} for ranks_per_node {ranks_per_node}, not an Algorithm")
    return made
