"""Which samples of an epoch are a rank's, batch by batch, or which of their features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import BatchSampler, DistributedSampler, Sampler


class ContiguousBatches(Sampler[list[int]]):
    """ContiguousBatches `rank * rows` to `(rank + 1) * rows` of each global batch, in the data's own order.

    The tail of an epoch that fills no global batch is left out.
    """

    def __init__(self, count: int, global_batch: int, rank: int, ranks: int) -> None:
        self._batches, self._global_batch = count // global_batch, global_batch
        self._rows = global_batch // ranks
        self._first = rank * self._rows

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[list[int]]:
        for batch in range(self._batches):
            start = batch * self._global_batch + self._first
            yield list(range(start, start + self._rows))


class ShuffledBatches(Sampler[list[int]]):
    """What torch's DistributedSampler draws for this rank, another order every epoch.

    It deals a shuffled epoch out like cards, so that the ranks' batches of a step are together the next global batch
    of the same shuffle, whatever the number of ranks.
    """

    def __init__(self, count: int, global_batch: int, rank: int, ranks: int, seed: int) -> None:
        indices: Any = range(count)
        self._sampler: DistributedSampler[Any] = DistributedSampler(
            indices, ranks, rank, shuffle=True, seed=seed, drop_last=True
        )
        self._batches = BatchSampler(self._sampler, global_batch // ranks, drop_last=True)

    def set_epoch(self, epoch: int) -> None:
        self._sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches)


def columns_of(inputs: Tensor, rank: int, ranks: int) -> Tensor:
    """The `rank`th of `ranks` equal parts of the last dimension, as a rank of a row-parallel first layer takes it."""
    return inputs if ranks == 1 else inputs.chunk(ranks, dim=-1)[rank].contiguous()
