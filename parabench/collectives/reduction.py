"""How contributions become one: sum, average, maximum, minimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp


@dataclass(frozen=True, slots=True)
class Reduction:
    """`combine(into, a, b)` of two contributions, and `finish(total)` once at the end, in place.

    `into` may be `a` or `b`.
    """

    combine: Callable[[Tensor, Tensor, Tensor], object]
    finish: Callable[[Tensor], object]

    def partly(self) -> Reduction:
        """The same without its end: for all but the last of several reductions that make up one."""
        return Reduction(self.combine, _nothing)


def _nothing(total: Tensor) -> None:
    pass


def _sum(into: Tensor, a: Tensor, b: Tensor) -> None:
    torch.add(a, b, out=into)


def _maximum(into: Tensor, a: Tensor, b: Tensor) -> None:
    torch.maximum(a, b, out=into)


def _minimum(into: Tensor, a: Tensor, b: Tensor) -> None:
    torch.minimum(a, b, out=into)


def reduction(op: ReduceOp | ReduceOp.RedOpType, size: int) -> Reduction:
    """The reduction of `size` contributions under `op`. Raises ValueError for an op that has no such form."""

    def mean(total: Tensor) -> None:
        total.div_(size)

    if op == ReduceOp.SUM:
        return Reduction(_sum, _nothing)
    if op == ReduceOp.AVG:
        return Reduction(_sum, mean)
    if op == ReduceOp.MAX:
        return Reduction(_maximum, _nothing)
    if op == ReduceOp.MIN:
        return Reduction(_minimum, _nothing)
    plain: Any = getattr(op, "op", op)  # what a ReduceOp holds
    raise ValueError(f"reduction {plain.name} has no algorithm here; use SUM, AVG, MAX or MIN, or algorithm native")
