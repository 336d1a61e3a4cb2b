"""Batches: the same global batch in every step for every strategy, split between ranks."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler

from parabench.data import check_count
from parabench.data.datasets import BatchDataset, dataset_of
from parabench.models.base import Model
from parabench.plan.case import Case
from parabench.signals import HANG_REQUEST, die_with_parent


class Loading:
    """A case's data and the workers that load it, which are forked here and now.

    Which part of it a rank takes is known only when the strategy is built, in a group of ranks; a process that has
    joined one over InfiniBand should not fork any more (RDMAV_FORK_SAFE), and Python 3.12 warns where threads run.

    Raises UsageError for data that does not fill one global batch: there would never be a first one.
    """

    def __init__(self, case: Case, model: Model) -> None:
        self._case = case
        dataset: Any = dataset_of(case, model)
        self._samples = len(dataset)
        check_count(case.data, self._samples, case.global_batch)
        self._rank_batches = RankBatches()
        self._loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
            dataset,
            batch_sampler=self._rank_batches,
            collate_fn=(lambda batch: batch) if isinstance(dataset, BatchDataset) else None,
            num_workers=case.workers,
            pin_memory=case.pin_memory,
            persistent_workers=case.workers > 0,
            # Forked from the rank, a worker has the dataset and torch already.
            multiprocessing_context="fork" if case.workers else None,
            worker_init_fn=partial(_tie_to_rank, os.getpid()),
            # Workers' seeds come from it: a user's Dataset may draw numbers.
            generator=torch.Generator().manual_seed(case.seed),
        )
        if case.workers:
            # An epoch of nothing starts the workers, and leaves them waiting for the next one.
            assert not list(self._loader)
            _working.add(self._loader._iterator)

    def batches(
        self, data_rank: int, data_ranks: int, device: torch.device, *, columns: tuple[int, int] = (0, 1)
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Endless (inputs, targets) of this rank's samples, `global_batch / data_ranks` of them, on `device`.

        What a step reads over all ranks depends on the step alone, never on strategy or world size. `columns` is which
        of how many equal parts of each sample's features, the last dimension, is this rank's; its targets are whole.
        """
        case, samples = self._case, self._samples
        if case.split == "sample":
            sampler: ContiguousBatches | ShuffledBatches = ShuffledBatches(
                samples, case.global_batch, data_rank, data_ranks, case.seed
            )
        else:
            sampler = ContiguousBatches(samples, case.global_batch, data_rank, data_ranks)
        self._rank_batches.sampler = sampler
        dtype = None if case.arithmetic.parameters == "float32" else getattr(torch, case.arithmetic.parameters)
        return _endless(self._loader, sampler, columns, device, dtype)


# torch's iterators whose workers run.
_working: weakref.WeakSet[Any] = weakref.WeakSet()


def end_workers() -> None:
    """End the workers of all data of this process. Where the collector finds them, torch waits for each for 5 s in
    vain: the queue that would tell it has been closed before."""
    for each in tuple(_working):
        each._shutdown_workers()
    _working.clear()


class ContiguousBatches(Sampler[list[int]]):
    """Batches of rows `rank * rows` to `(rank + 1) * rows` of each global batch, in the data's own order.

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


class ShuffledBatches(BatchSampler):
    """What torch's DistributedSampler draws for this rank, another order every epoch.

    It deals a shuffled epoch out like cards, so that the ranks' batches of a step are together the next global batch
    of the same shuffle, whatever the number of ranks.
    """

    def __init__(self, count: int, global_batch: int, rank: int, ranks: int, seed: int) -> None:
        indices: Any = range(count)
        self._drawn: DistributedSampler[Any] = DistributedSampler(
            indices, ranks, rank, shuffle=True, seed=seed, drop_last=True
        )
        super().__init__(self._drawn, global_batch // ranks, drop_last=True)

    def set_epoch(self, epoch: int) -> None:
        self._drawn.set_epoch(epoch)


def columns_of(inputs: Tensor, rank: int, ranks: int) -> Tensor:
    """The `rank`th of `ranks` equal parts of the last dimension, as a rank of a row-parallel first layer takes it."""
    return inputs if ranks == 1 else inputs.chunk(ranks, dim=-1)[rank].contiguous()


class RankBatches:
    """The indices of each of this rank's batches, as `sampler` has them; none before there is one."""

    sampler: ContiguousBatches | ShuffledBatches | tuple[()] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)


def _endless(
    loader: DataLoader[tuple[Tensor, Tensor]],
    sampler: ContiguousBatches | ShuffledBatches,
    columns: tuple[int, int],
    device: torch.device,
    dtype: torch.dtype | None,
) -> Iterator[tuple[Tensor, Tensor]]:
    for epoch in count():
        if isinstance(sampler, ShuffledBatches):
            sampler.set_epoch(epoch)
        for inputs, targets in loader:
            part = columns_of(inputs, *columns)
            if dtype is not None and part.is_floating_point():  # what the first layer multiplies; tokens it looks up
                part = part.to(dtype)
            yield part.to(device, non_blocking=True), targets.to(device, non_blocking=True)


def _tie_to_rank(rank: int, worker: int) -> None:
    """DataLoader's own watch looks every 5 s whether the rank is still there, and a stopped worker can't look; one
    that was still starting when the rank was killed would watch the rank's heir. `rank` is the rank's process."""
    # What is garbage in the rank is not freed here: a process group's end waits for threads that a fork does not have.
    gc.freeze()
    die_with_parent(rank)
    # A hanging rank is asked where it stands and for its stack; a worker's in the same file would be taken for it.
    for number in (HANG_REQUEST, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
