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

    `into` may be `a` or `b`. `prepare(contribution)`, in place, comes before everything; the process group calls it.
    """

    combine: Callable[[Tensor, Tensor, Tensor], object]
    finish: Callable[[Tensor], object] = _nothing
    prepare: Callable[[Tensor], object] = _nothing

    @property
    def scales(self) -> bool:
        """Whether contributions have to be prepared."""
        return self.prepare is not _nothing

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
    if op == ReduceOp.SUM:
        return Reduction(_sum)
    if op == ReduceOp.AVG and dtype.is_floating_point:
        return _average(size, dtype)
    if op == ReduceOp.MAX:
        return Reduction(_maximum)
    if op == ReduceOp.MIN:
        return Reduction(_minimum)
    raise ValueError(
        f"reduction {op.name} of {dtype} has no algorithm here; use SUM, MAX or MIN, with floating point numbers AVG, "
        "or algorithm native"
    )


def _average(size: int, dtype: torch.dtype) -> Reduction:
    if dtype is not torch.float16:
        return Reduction(_sum, lambda total: total.div_(size))
    # A float16 sum overflows long before its average does. Powers of two scale without rounding.
    scale = 1 << (size - 1).bit_length()
    return Reduction(_sum, lambda total: total.div_(size / scale), lambda part: part.div_(scale))
