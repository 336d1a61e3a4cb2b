"""Datasets: samples by index, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from parabench.case import Case
from parabench.data import source
from parabench.errors import UsageError
from parabench.models.model import Model

# Enough that no batch repeats within the steps that are verified, little enough to be made at once.
SYNTHETIC_BATCHES = 8


class Tokens(Dataset[tuple[Tensor, Tensor]]):
    """Sequences of `length` tokens, one after the other; a target is the token after its input."""

    def __init__(self, stream: Tensor, length: int) -> None:
        self._stream, self._length = stream, length
        self._count = (stream.numel() - 1) // length

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self._length
        window = self._stream[start : start + self._length + 1].long()
        return window[:-1], window[1:]


def dataset_of(case: Case, model: Model) -> Dataset[Any]:
    """What the case trains on. Raises UsageError for data that the model cannot take."""
    if case.data == "synthetic":
        if model.batch is None:
            raise UsageError(f"model {case.model!r} makes no synthetic data; give Model.batch, or another data")
        inputs, targets = model.batch(SYNTHETIC_BATCHES * case.global_batch, torch.Generator().manual_seed(case.seed))
        return TensorDataset(inputs, targets)
    stream = torch.frombuffer(bytearray(source.read_bytes(case.data)), dtype=torch.uint8)
    return Tokens(stream, case.seq_len)


def count_of(dataset: Dataset[Any]) -> int:
    """How many samples it has."""
    assert isinstance(dataset, Sequence) or hasattr(dataset, "__len__")
    return len(dataset)
