"""Batches: the same global batch in every step for every strategy, split between ranks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from parabench.case import Case
from parabench.data.datasets import count_of, dataset_of
from parabench.data.split import Drawn, Rows
from parabench.models.model import Model


def batches(
    case: Case, model: Model, data_rank: int, data_ranks: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (inputs, targets) of this rank's samples, `global_batch / data_ranks` of them, on `device`.

    What a step reads over all ranks depends on the step alone, never on strategy or world size.
    """
    dataset = dataset_of(case, model)
    samples = count_of(dataset)
    sampler: Rows | Drawn
    if case.split == "sample":
        sampler = Drawn(samples, case.global_batch, data_rank, data_ranks, case.seed)
    else:
        sampler = Rows(samples, case.global_batch, data_rank, data_ranks)
    loader = DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=case.workers,
        pin_memory=case.pin_memory,
        persistent_workers=case.workers > 0,
    )
    return _endless(loader, sampler, device)


def _endless(
    loader: DataLoader[tuple[Tensor, Tensor]], sampler: Rows | Drawn, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    for epoch in count():
        if isinstance(sampler, Drawn):
            sampler.set_epoch(epoch)
        for inputs, targets in loader:
            yield inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
