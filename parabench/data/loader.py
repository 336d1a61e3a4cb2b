"""Batches: the same global batch in every step for every strategy, split between ranks."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, default_collate

from parabench.data import check_count
from parabench.data.datasets import BatchDataset, check_global_batch, dataset_of, is_stream, samples_in
from parabench.errors import UsageError
from parabench.models.base import Model
from parabench.models.batches import Batch, cast, map_inputs, take_rows, tensors_of, to_device
from parabench.plan.case import Case
from parabench.signals import HANG_REQUEST, die_with_parent


class Loading:
    """A case's data, with workers that are forked here and now.

    Which part of it a rank takes is known only when the strategy is built, in a group of ranks; a process that has
    joined one over InfiniBand should not fork any more (RDMAV_FORK_SAFE), and Python 3.12 warns where threads run.

    Of map-style data each rank loads its own samples. Data that comes in its own order (an IterableDataset, or a
    DataLoader with its own sampler) is read by every rank in whole global batches, of which it takes its samples: it
    must give the same ones on every rank.

    Raises UsageError for data that does not fill one global batch.
    """

    def __init__(self, case: Case, model: Model) -> None:
        self._case, self._collate = case, model.collate or default_collate
        dataset: Any = dataset_of(case, model)
        self._stream = is_stream(dataset)
        self._rank_batches = RankBatches()
        # Workers' seeds come from it: a user's Dataset may draw numbers.
        generator = torch.Generator().manual_seed(case.seed)
        options: dict[str, Any] = {
            "num_workers": case.workers,
            "pin_memory": case.pin_memory,
            "persistent_workers": case.workers > 0,
            # Forked from the rank, a worker has the dataset and torch already.
            "multiprocessing_context": "fork" if case.workers else None,
            "worker_init_fn": partial(_tie_to_rank, os.getpid()),
            "generator": generator,
        }
        if isinstance(dataset, DataLoader):
            self._loader: DataLoader[Batch] = dataset
            # A shuffling sampler without its own generator would draw another order on each rank.
            drawing: Any
            for drawing in (dataset, dataset.sampler, getattr(dataset.batch_sampler, "sampler", None)):
                if getattr(drawing, "generator", generator) is None:
                    drawing.generator = generator
        elif self._stream:
            self._loader = DataLoader(
                dataset, batch_size=case.global_batch, collate_fn=model.collate, drop_last=True, **options
            )
        else:
            self._samples = len(dataset)
            check_count(case.data, self._samples, case.global_batch)
            collate = (lambda batch: batch) if isinstance(dataset, BatchDataset) else model.collate
            self._loader = DataLoader(dataset, batch_sampler=self._rank_batches, collate_fn=collate, **options)
        self._first: Iterator[Batch] | None = None
        if self._loader.num_workers:
            # An iterator starts the workers. Of map-style data it is one of an epoch of nothing, after which they wait.
            first = iter(self._loader)
            if self._stream:
                self._first = first
            else:
                assert not list(first)
            _working.add(first)

    def batches(
        self, data_rank: int, data_ranks: int, device: torch.device, *, columns: tuple[int, int] = (0, 1)
    ) -> Iterator[Batch]:
        """Give this rank's samples of each global batch, `global_batch / data_ranks` of them, on `device`, forever.

        The samples of a step over all ranks depend on the step alone, never on strategy or world size. `columns` is the
        place of this rank's part of the features, the last dimension of the inputs, and the number of equal parts.
        """
        case = self._case
        if self._stream:
            found = self._parts_of_stream(data_rank, data_ranks)
        else:
            found = self._own_samples(data_rank, data_ranks)
        for batch in found:
            if columns[1] > 1:
                batch = map_inputs(partial(columns_of, rank=columns[0], ranks=columns[1]), batch)
            if case.arithmetic.parameters != "float32":
                batch = cast(batch, getattr(torch, case.arithmetic.parameters))
            yield to_device(batch, device)

    def is_random(self) -> bool:
        """Return whether the first item of a user's map-style data differs from one reading to the next."""
        dataset: Any = self._loader.dataset
        if self._stream or isinstance(dataset, BatchDataset):
            return False
        first, second = (tensors_of(self._collate([dataset[0]])) for _ in range(2))
        # NaN, such as a padding value, is equal to itself here.
        return not all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second, strict=True))

    def _own_samples(self, data_rank: int, data_ranks: int) -> Iterator[Batch]:
        case = self._case
        place = (self._samples, case.global_batch, data_rank, data_ranks)
        for epoch in count():
            drawn = case.split == "sample"
            self._rank_batches.indices = shuffled(*place, case.seed, epoch) if drawn else contiguous(*place)
            yield from self._loader

    def _parts_of_stream(self, data_rank: int, data_ranks: int) -> Iterator[Batch]:
        case = self._case
        size = case.global_batch // data_ranks
        rows = slice(data_rank * size, (data_rank + 1) * size)
        for epoch in count():
            batches = self._first if epoch == 0 and self._first is not None else iter(self._loader)
            whole = 0
            for batch in batches:
                if samples_in(batch, case) == case.global_batch:  # the last batch of an epoch may be smaller
                    whole += 1
                    yield take_rows(batch, rows)
                elif not whole:
                    check_global_batch(batch, case)
            if not whole:
                raise UsageError(
                    f"data {case.data!r} gives no batch of {case.global_batch} samples in epoch {epoch}; give more, or "
                    "a smaller global_batch"
                )


# torch's iterators whose workers run.
_working: weakref.WeakSet[Any] = weakref.WeakSet()


def end_workers() -> None:
    """End the workers of all data of this process. If the collector finds them instead, torch waits 5 s for each: the
    queue that would wake it is closed by then."""
    for each in tuple(_working):
        each._shutdown_workers()
    _working.clear()


def contiguous(count: int, global_batch: int, rank: int, ranks: int) -> Iterator[list[int]]:
    """Give rows `rank * rows` to `(rank + 1) * rows` of each global batch, in the data's own order.

    The tail of an epoch that fills no global batch is left out.
    """
    rows = global_batch // ranks
    for start in range(rank * rows, count - count % global_batch, global_batch):
        yield list(range(start, start + rows))


def shuffled(count: int, global_batch: int, rank: int, ranks: int, seed: int, epoch: int) -> BatchSampler:
    """Return what torch's DistributedSampler draws for this rank, another order every epoch.

    It deals a shuffled epoch out like cards, so that the ranks' batches of a step are together the next global batch
    of the same shuffle, whatever the number of ranks.
    """
    indices: Any = range(count)
    drawn: DistributedSampler[Any] = DistributedSampler(indices, ranks, rank, shuffle=True, seed=seed, drop_last=True)
    drawn.set_epoch(epoch)
    return BatchSampler(drawn, global_batch // ranks, drop_last=True)


def columns_of(inputs: Tensor, rank: int, ranks: int) -> Tensor:
    """Return the `rank`th of `ranks` equal parts of the last dimension, for a row-parallel first layer."""
    return inputs if ranks == 1 else inputs.chunk(ranks, dim=-1)[rank].contiguous()


class RankBatches:
    """The indices of each of this rank's batches in an epoch, which are set before it starts."""

    indices: Iterable[list[int]] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.indices)


def _tie_to_rank(rank: int, worker: int) -> None:
    """Let a worker die with the process `rank`. DataLoader's own watchdog looks every 5 s, and not in a stopped worker.
    If the rank is killed while a worker starts, it would watch another process."""
    # Garbage of the rank is not freed here: a process group's end waits for threads that a fork does not have.
    gc.freeze()
    die_with_parent(rank)
    # A hanging rank is asked for its stack; a worker's stack in the same file would be taken for it.
    for number in (HANG_REQUEST, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
