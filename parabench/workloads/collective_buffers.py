"""The buffers of a collective operation, and their exact contents before and after a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from parabench.plan.collective_case import ROOT, CollectiveCase

# {parabench's name: c10d's reduction}
_REDOPS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}

# These functions have other names in torch 2.11 and older.
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


# The number of classes of elements (`Truth`).
CLASSES = 256
# Elements at a time, so that the indices need little memory.
CHUNK = 1 << 20
# Knuth's multiplicative hash, 2^32 divided by the golden ratio (The Art of Computer Programming, vol. 3, 6.4), and a
# second round: after the first alone, elements a Fibonacci number apart are nearly alike.
_KNUTH, _SECOND, _32_BITS = 2654435761, 73244475, (1 << 32) - 1


class Truth:
    """The exact inputs and results of a collective, which every rank can compute without communication.

    All numbers are integers, and so small that sums in any order are exact. NCCL's averages may differ by
    `CollectiveCase.relative_error`.
    """

    # Element i belongs to one of CLASSES, by a hash of i. A table of random numbers has each rank's value of each
    # class, so the reduction of all ranks is one row of the same size. Nearly every class shows an element that is out
    # of place and a rank that is missing or counted twice.
    def __init__(self, case: CollectiveCase, device: torch.device) -> None:
        self._dtype: torch.dtype = getattr(torch, case.dtype)
        self._device = device
        n = case.world_size
        values = torch.randint(
            0, case.largest_value() + 1, (n, CLASSES), generator=torch.Generator().manual_seed(0), dtype=torch.int64
        )
        if case.redop == "avg":
            values *= n
        reduced = {"max": values.amax(0), "min": values.amin(0), "avg": values.sum(0) // n}
        self._n = n
        self._values = values
        self._reduced = reduced.get(case.redop, values.sum(0))

    def empty(self, count: int) -> Tensor:
        """Return a buffer of `count` elements of the case's dtype on the device."""
        return torch.empty(count, dtype=self._dtype, device=self._device)

    def of(self, rank: int, like: Tensor) -> Tensor:
        """Return a buffer like `like` with the input of `rank`."""
        return self._fill(self._values[rank], torch.empty_like(like), 0)

    def reduced(self, like: Tensor) -> Tensor:
        """Return a buffer like `like` with the reduction of the inputs of all ranks."""
        return self._fill(self._reduced, torch.empty_like(like), 0)

    def gathered(self, like: Tensor) -> Tensor:
        """Return a buffer like `like` with the result of an all-gather: its r-th part is from rank r."""
        whole = torch.empty_like(like)
        part = len(whole) // self._n
        for rank in range(self._n):
            self._fill(self._values[rank], whole[rank * part : (rank + 1) * part], rank * part)
        return whole

    def _fill(self, row: Tensor, flat: Tensor, offset: int) -> Tensor:
        """Fill `flat` with the elements of an input from `offset` on. `row` has the value of each class."""
        table = row.to(self._dtype).to(self._device)
        for begin, end in _chunks(len(flat)):
            index = torch.arange(offset + begin, offset + end, device=self._device)
            index = index * _KNUTH & _32_BITS
            index = (index ^ index >> 16) * _SECOND
            torch.index_select(table, 0, index >> 24 & (CLASSES - 1), out=flat[begin:end])
        return flat


def count_wrong(out: Tensor, expected: Tensor, relative_error: float) -> int:
    """Return the number of elements of `out` that differ from `expected` by more than `relative_error`."""
    if relative_error == 0:
        return int(torch.count_nonzero(out != expected))
    wrong = 0
    for begin, end in _chunks(len(out)):
        # float64 holds the difference of two numbers of any shorter type that are close to each other.
        exact = expected[begin:end].double()
        near = (out[begin:end].double() - exact).abs() <= relative_error * exact
        wrong += int(torch.count_nonzero(~near))  # a comparison with NaN is false
    return wrong


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of chunks of CHUNK elements."""
    for begin in range(0, count, CHUNK):
        yield begin, min(begin + CHUNK, count)


@dataclass(frozen=True, slots=True)
class Buffers:
    """The buffers of one size, in place or not, and the call of the operation.

    Before a call, `input` must have the values `mine`. After it, `output` must have the values `expected`, within
    `relative_error`. In place, `input` is the same memory as `output`, or a part of it.
    """

    input: Tensor
    output: Tensor
    mine: Tensor
    expected: Tensor
    call: Callable[[], object]
    relative_error: float = 0.0

    def wrong(self) -> int:
        """Make one call, and return the number of wrong elements."""
        self.output.fill_(-1)
        self.input.copy_(self.mine)
        self.call()
        return count_wrong(self.output, self.expected, self.relative_error)


def buffers(case: CollectiveCase, size: int, in_place: bool, rank: int, device: torch.device) -> Buffers:
    """Return this rank's buffers for messages of `size` bytes."""
    n = case.world_size
    truth = Truth(case, device)
    whole = truth.empty(case.count(size) * (1 if case.op in ("all_reduce", "broadcast") else n))
    part = slice(rank * case.count(size), (rank + 1) * case.count(size))
    op, off = _REDOPS.get(case.redop), case.relative_error()
    if case.op == "all_reduce":
        expected = truth.reduced(whole)
        return Buffers(whole, whole, truth.of(rank, whole), expected, lambda: dist.all_reduce(whole, op=op), off)
    if case.op == "broadcast":
        sent = truth.of(ROOT, whole)
        mine = sent if rank == ROOT else torch.zeros_like(whole)
        return Buffers(whole, whole, mine, sent, lambda: dist.broadcast(whole, src=ROOT))
    if case.op == "reduce_scatter":
        out = whole[part] if in_place else truth.empty(case.count(size))
        expected = truth.reduced(whole)[part]
        return Buffers(whole, out, truth.of(rank, whole), expected, lambda: _reduce_scatter(out, whole, op=op), off)
    into = whole[part] if in_place else truth.empty(case.count(size))
    mine = truth.of(rank, whole)[part].clone()
    return Buffers(into, whole, mine, truth.gathered(whole), lambda: _all_gather(whole, into))
