"""Load each rank's part of the global batches, which are the same with every strategy."""

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
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, default_collate

from parabench.data import check_count
from parabench.data.datasets import BatchDataset, dataset_of, is_stream
from parabench.errors import UsageError
from parabench.models.base import Model
from parabench.models.batches import Batch, map_inputs, map_tensors, rows_of, take_rows, tensors_of
from parabench.plan.case import Case
from parabench.signals import HANG_REQUEST, die_with_parent


class Loading:
    """The DataLoader of a case. Its constructor forks the workers, because a process with InfiniBand should not fork.

    Data with a fixed order must be equal on all ranks. Raises UsageError if the data does not fill one global batch.
    """

    def __init__(self, case: Case, model: Model) -> None:
        self._case, self._collate = case, model.collate or default_collate
        dataset: Any = dataset_of(case, model)
        self._stream = is_stream(dataset)
        self._rank_batches = RankBatches()
        # It seeds the workers, because a custom Dataset may draw random numbers.
        generator = torch.Generator().manual_seed(case.seed)
        if isinstance(dataset, DataLoader):
            self._loader: DataLoader[Batch] = dataset
            # Without a generator, a shuffling sampler would draw a different order on each rank.
            drawing: Any
            for drawing in (dataset, dataset.sampler, getattr(dataset.batch_sampler, "sampler", None)):
                if getattr(drawing, "generator", generator) is None:
                    drawing.generator = generator
        else:
            batches: dict[str, Any] = {"batch_size": case.global_batch, "drop_last": True}
            if not self._stream:
                self._samples = len(dataset)
                check_count(case.data, self._samples, case.global_batch)
                batches = {"batch_sampler": self._rank_batches}
            self._loader = DataLoader(
                dataset,
                collate_fn=(lambda batch: batch) if isinstance(dataset, BatchDataset) else model.collate,
                num_workers=case.workers,
                pin_memory=case.pin_memory,
                persistent_workers=case.workers > 0,
                # A worker that is forked from the rank has the dataset and torch.
                multiprocessing_context="fork" if case.workers else None,
                worker_init_fn=partial(_tie_to_rank, os.getpid()),
                generator=generator,
                **batches,
            )
        self._first: Iterator[Batch] | None = None
        if self._loader.num_workers:
            # An iterator starts the workers. For map-style data, its epoch is empty, and the workers stay.
            first = iter(self._loader)
            if self._stream:
                self._first = first
            else:
                for _ in first:
                    raise AssertionError("the first epoch of map-style data is not empty")
            _working.add(first)

    def batches(
        self, data_rank: int, data_ranks: int, device: torch.device, *, columns: tuple[int, int] = (0, 1)
    ) -> Iterator[Batch]:
        """Yield the `global_batch / data_ranks` samples of a rank in each global batch, on `device`, forever.

        `columns` is (position, number of parts) of the rank's part of the inputs' last dimension.
        """
        dtype = getattr(torch, self._case.arithmetic.parameters)
        position, parts = columns
        for batch in (self._stream_parts if self._stream else self._map_style)(data_rank, data_ranks):
            if parts > 1:  # for a row-parallel first layer
                batch = map_inputs(lambda inputs: inputs.chunk(parts, dim=-1)[position].contiguous(), batch)
            if dtype != torch.float32:
                batch = map_inputs(lambda inputs: inputs.to(dtype) if inputs.is_floating_point() else inputs, batch)
            # Copies from pinned memory do not block.
            yield map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)

    def is_random(self) -> bool:
        """Return whether the first item of custom map-style data differs between two readings."""
        dataset: Any = self._loader.dataset
        if self._stream or isinstance(dataset, BatchDataset):
            return False
        first, second = (tensors_of(self._collate([dataset[0]])) for _ in range(2))
        # NaN may be a padding value, and counts as equal.
        return not all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second, strict=True))

    def _map_style(self, data_rank: int, data_ranks: int) -> Iterator[Batch]:
        case = self._case
        for epoch in count():
            part = (self._samples, case.global_batch, data_rank, data_ranks)
            shuffles = case.split == "sample"
            self._rank_batches.indices = shuffled(*part, case.seed, epoch) if shuffles else contiguous(*part)
            yield from self._loader

    def _stream_parts(self, data_rank: int, data_ranks: int) -> Iterator[Batch]:
        case, name = self._case, f"data {self._case.data!r}"
        size = case.global_batch // data_ranks
        for epoch in count():
            batches = self._first if epoch == 0 and self._first is not None else iter(self._loader)
            found = False
            for batch in batches:
                try:
                    rows = rows_of(batch)
                except ValueError as error:
                    raise UsageError(f"{name}: {error}; the first dimension must be the samples") from None
                if rows == case.global_batch:
                    found = True
                    yield take_rows(batch, slice(data_rank * size, (data_rank + 1) * size))
                elif not found:  # the last batch of an epoch may be smaller
                    raise UsageError(
                        f"{name} gives batches of {rows} samples and global_batch is {case.global_batch}; use "
                        f"batch_size={case.global_batch}, or --set global_batch={rows}"
                    )
            if not found:
                raise UsageError(
                    f"{name} gives no batch of {case.global_batch} samples in epoch {epoch}; give more, or a smaller "
                    "global_batch"
                )


# torch's DataLoader iterators whose workers are running.
_working: weakref.WeakSet[Any] = weakref.WeakSet()


def end_workers() -> None:
    """End the workers of all data of this process. The garbage collector would wait 5 s for each."""
    for each in tuple(_working):
        each._shutdown_workers()
    _working.clear()


def contiguous(count: int, global_batch: int, rank: int, ranks: int) -> Iterator[list[int]]:
    """Yield the indices of a rank for each complete global batch: its contiguous part, in the order of the data."""
    rows = global_batch // ranks
    for start in range(rank * rows, count - count % global_batch, global_batch):
        yield list(range(start, start + rows))


def shuffled(count: int, global_batch: int, rank: int, ranks: int, seed: int, epoch: int) -> BatchSampler:
    """Return the batches of a rank's indices from torch's DistributedSampler, shuffled differently in each epoch.

    The batches of all ranks together are a global batch. It is the same for any number of ranks.
    """
    indices: Any = range(count)
    drawn: DistributedSampler[Any] = DistributedSampler(indices, ranks, rank, shuffle=True, seed=seed, drop_last=True)
    drawn.set_epoch(epoch)
    return BatchSampler(drawn, global_batch // ranks, drop_last=True)


class RankBatches:
    """A batch sampler that yields `indices`. They are set before each epoch."""

    indices: Iterable[list[int]] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.indices)


def _tie_to_rank(rank: int, worker: int) -> None:
    """Make a worker end when the process with the id `rank` ends. DataLoader's watchdog is slower and less reliable."""
    # Do not free garbage of the rank, because the end of a process group waits for threads that a fork does not have.
    gc.freeze()
    die_with_parent(rank)
    # These signals request the stack of a hanging rank. A worker must not write into the same file.
    for number in (HANG_REQUEST, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
