"""How contributions become one: sum, average, maximum, minimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp


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


def _sum(into: Tensor, a: Tensor, b: Tensor) -> None:
    torch.add(a, b, out=into)


def _maximum(into: Tensor, a: Tensor, b: Tensor) -> None:
    torch.maximum(a, b, out=into)


def _minimum(into: Tensor, a: Tensor, b: Tensor) -> None:
    torch.minimum(a, b, out=into)


def reduction(op: Any, size: int, dtype: torch.dtype = torch.float32) -> Reduction:
    """The reduction of `size` contributions of `dtype` under a ReduceOp. Raises ValueError where there is none."""
    return _reduction(getattr(op, "op", op), size, dtype)


@lru_cache(maxsize=64)
def _reduction(op: ReduceOp.RedOpType, size: int, dtype: torch.dtype) -> Reduction:
    known = op in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN) or (op == ReduceOp.AVG and dtype.is_floating_point)
    # The eight-bit floating point types cannot be added.
    if not known or (dtype.is_floating_point and dtype.itemsize == 1):
        raise ValueError(
            f"reduction {op.name} of {dtype} has no algorithm here; use SUM, MAX or MIN, with floating point numbers "
            "AVG, or algorithm native"
        )
    if op == ReduceOp.MAX:
        return Reduction(_maximum)
    if op == ReduceOp.MIN:
        return Reduction(_minimum)
    if op == ReduceOp.SUM:
        return Reduction(_sum)
    # A float16 sum overflows long before its average does.
    carrier = torch.float32 if dtype is torch.float16 else None
    return Reduction(_sum, lambda total: total.div_(size), carrier)
