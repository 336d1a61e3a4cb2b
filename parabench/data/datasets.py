"""Datasets: samples by index, the same on every rank. Those here hand out whole batches, by one indexing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate

from parabench.data import DATASETS, check_count, source_of
from parabench.data import mnist as idx
from parabench.data import text as corpus
from parabench.errors import UsageError
from parabench.models import ModelEntry
from parabench.models.base import Model, make_samples
from parabench.plan.case import Case
from parabench.registry import call_factory, load, load_factory, users_code

# Mean and standard deviation of MNIST's pixels, from 0 to 1: pytorch/examples, mnist/main.py.
MNIST_MEAN, MNIST_STD = 0.1307, 0.3081

Pair = tuple[Tensor, Tensor]
Convert = Callable[[Tensor, Tensor], Pair]


class BatchDataset(Dataset[Pair]):
    """Samples that are there already, whose batches are two tensors (inputs, targets), first dimension the samples:
    what would be made of single samples by stacking them, at a fraction of the cost. `convert` makes of rows what a
    model takes."""

    def __init__(self, inputs: Tensor, targets: Tensor, convert: Convert | None = None) -> None:
        self._inputs, self._targets, self._convert = inputs, targets, convert

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitems__(self, indices: Sequence[int]) -> Pair:
        """The samples of these indices."""
        rows = self._inputs[indices], self._targets[indices]
        return self._convert(*rows) if self._convert else rows

    def __getitem__(self, index: int) -> Pair:
        inputs, targets = self.__getitems__([index])
        return inputs[0], targets[0]


def sequences(stream: Tensor, length: int) -> BatchDataset:
    """Sequences (n, length) of tokens, one after the other, int64; a target is the token after its input."""
    count = (stream.numel() - 1) // length
    inputs, targets = (stream[at : at + count * length].view(count, length) for at in (0, 1))
    return BatchDataset(inputs, targets, lambda inputs, targets: (inputs.long(), targets.long()))


def normalised(images: Tensor, digits: Tensor) -> Pair:
    """MNIST's images (n, 28, 28) as (n, 1, 28, 28), and their digits (n). They are kept as bytes, a quarter of the
    memory."""
    scaled = images.unsqueeze(1).float().div_(255)
    return scaled.sub_(MNIST_MEAN).div_(MNIST_STD), digits.long()


def dataset_of(case: Case, model: Model) -> Dataset[Any]:
    """What the case trains on. Raises UsageError for data that cannot be had."""
    name, _ = source_of(case.data)
    if name is None:
        return user_dataset(case)
    made: Dataset[Any] = load(DATASETS, "data", name)(case, model)
    return made


def synthetic(case: Case, model: Model) -> Dataset[Any]:
    """What the model makes for itself, from the case's seed."""
    if model.batch is None:
        raise UsageError(f"model {case.model!r} makes no synthetic data; give Model.batch, or another data")
    return BatchDataset(*make_samples(model.batch, case))


def text(case: Case, model: Model) -> Dataset[Any]:
    """The text as bytes or, with a vocabulary, as tokens."""
    if case.vocabulary:
        return sequences(_mapped(corpus.token_file(case.data, case.vocabulary), torch.int32), case.seq_len)
    return sequences(_mapped(corpus.path_of(case.data), torch.uint8), case.seq_len)


def mnist(case: Case, model: Model) -> Dataset[Any]:
    """The training images of the folder."""
    images, digits = idx.read(source_of(case.data)[1])
    return BatchDataset(torch.tensor(images), torch.tensor(digits), normalised)


def user_dataset(case: Case) -> Dataset[Any]:
    """What the user's function gives; one that takes an argument is given the case. Raises UsageError for what is no
    map-style Dataset."""
    factory = load_factory(DATASETS, "data", case.data, "Dataset")
    with users_code(f"data {case.data!r} cannot be made", "fix that function"):
        dataset = call_factory(factory, case)
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UsageError(
            f"data {case.data!r} gives {type(dataset).__name__}; return a Dataset with __len__ and __getitem__"
        )
    made: Dataset[Any] = dataset
    return made


def check_dataset(case: Case, model: ModelEntry) -> None:
    """Raise UsageError for a Dataset that is too short, or whose first and last item are nothing that the model takes.

    The last one shows whether it is as long as it says, and whether items are alike.
    """
    dataset: Any = user_dataset(case)

    def giving(failing: str, where: str) -> contextlib.AbstractContextManager[None]:
        return users_code(f"data {case.data!r} gives {failing}", f"fix its {where}")

    with giving("no length", "__len__"):
        count = len(dataset)
    check_count(case.data, count, case.global_batch)
    ends = []
    for at in (0, count - 1):
        with giving(f"no item {at}", "__getitem__"):
            ends.append(dataset[at])
    with giving("items that do not stack", "__getitem__"):
        batch = default_collate(ends)
    if not (isinstance(batch, (list, tuple)) and len(batch) == 2 and all(isinstance(each, Tensor) for each in batch)):
        raise UsageError(f"data {case.data!r} gives items that are no pair of numbers; each must be (input, target)")
    if model.vocabulary is not None and batch[0].is_floating_point():
        kind = str(batch[0].dtype).removeprefix("torch.")
        raise UsageError(f"data {case.data!r} gives inputs of {kind}, model {case.model} takes tokens; give integers")


def _mapped(path: Path, dtype: torch.dtype) -> Tensor:
    """The file's elements, not read but mapped: only what steps use is loaded, and once for all ranks."""
    return torch.from_file(str(path), shared=False, size=path.stat().st_size // dtype.itemsize, dtype=dtype)
