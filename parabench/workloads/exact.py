"""What a collective must return, exactly: whole numbers so small that no order of adding them rounds. Only averages of
NCCL's may be off by as much as `averaging` derives.

Element i belongs to one of 256 classes, by a hash of i. A table of random whole numbers gives each rank's value of
each class, so the reduction of all ranks is one row of the same size. An element that is out of place, a rank that is
missing or counted twice, shows in nearly every class.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from parabench.plan.collective_case import CollectiveCase

CLASSES = 256
# Elements at a time, so that the indices need little memory.
CHUNK = 1 << 20
# Knuth's multiplicative hash, 2^32 divided by the golden ratio (The Art of Computer Programming, vol. 3, 6.4), and a
# second round: after the first alone, elements a Fibonacci number apart are nearly alike.
_KNUTH, _SECOND, _32_BITS = 2654435761, 73244475, (1 << 32) - 1


class Truth:
    """The values of a case on `device`. The same on every rank, by the case alone."""

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
        return torch.empty(count, dtype=self._dtype, device=self._device)

    def of(self, rank: int, like: Tensor) -> Tensor:
        """What `rank` holds, for the whole buffer `like`."""
        return self._fill(self._values[rank], torch.empty_like(like), 0)

    def reduced(self, like: Tensor) -> Tensor:
        """The reduction of what all ranks hold."""
        return self._fill(self._reduced, torch.empty_like(like), 0)

    def gathered(self, like: Tensor) -> Tensor:
        """The buffer whose r-th part is rank r's."""
        whole = torch.empty_like(like)
        part = len(whole) // self._n
        for rank in range(self._n):
            self._fill(self._values[rank], whole[rank * part : (rank + 1) * part], rank * part)
        return whole

    def _fill(self, row: Tensor, flat: Tensor, offset: int) -> Tensor:
        table = row.to(self._dtype).to(self._device)
        for begin, end in _chunks(len(flat)):
            index = torch.arange(offset + begin, offset + end, device=self._device)
            index = index * _KNUTH & _32_BITS
            index = (index ^ index >> 16) * _SECOND
            torch.index_select(table, 0, index >> 24 & (CLASSES - 1), out=flat[begin:end])
        return flat


def count_wrong(out: Tensor, expected: Tensor, relative_error: float) -> int:
    """How many elements of `out` are farther from what they must be than `relative_error`; of 0 any difference is."""
    if relative_error == 0:
        return int(torch.count_nonzero(out != expected))
    wrong = 0
    for begin, end in _chunks(len(out)):
        # float64 holds the difference of two numbers of any shorter type that are close to each other.
        exact = expected[begin:end].double()
        near = (out[begin:end].double() - exact).abs() <= relative_error * exact
        wrong += int(torch.count_nonzero(~near))  # what is no number is near to nothing
    return wrong


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, count, CHUNK):
        yield begin, min(begin + CHUNK, count)
