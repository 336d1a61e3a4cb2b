"""Create the dataset of a case, which has the same samples on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from parabench.data import DATASETS, check_count, files, source_of
from parabench.errors import UsageError
from parabench.models import ModelEntry
from parabench.models.base import Model
from parabench.models.batches import Batch, map_tensors, rows_of, take_rows
from parabench.models.factory import make_samples
from parabench.plan.case import Case
from parabench.registry import call_factory, load, load_factory, users_code

# Mean and standard deviation of MNIST's pixels, from 0 to 1: pytorch/examples, mnist/main.py.
MNIST_MEAN, MNIST_STD = 0.1307, 0.3081


class BatchDataset(Dataset[Batch]):
    """A dataset of samples that are in memory as one batch. Indexing it is faster than stacking samples.

    `convert` is applied to each indexed batch.
    """

    def __init__(self, samples: Batch, convert: Callable[[Batch], Batch] | None = None) -> None:
        self._samples, self._convert = samples, convert

    def __len__(self) -> int:
        return rows_of(self._samples)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return the batch of the samples with these indices."""
        rows = take_rows(self._samples, indices)
        return self._convert(rows) if self._convert else rows

    def __getitem__(self, index: int) -> Batch:
        return map_tensors(lambda tensor: tensor[0], self.__getitems__([index]))


def sequences(stream: Tensor, length: int) -> BatchDataset:
    """Cut a stream of tokens into pairs of int64 sequences (n, length). The targets are the next tokens."""
    count = (stream.numel() - 1) // length
    inputs, targets = (stream[at : at + count * length].view(count, length) for at in (0, 1))
    return BatchDataset((inputs, targets), lambda rows: (rows[0].long(), rows[1].long()))


def dataset_of(case: Case, model: Model) -> Any:
    """Return the Dataset of a case, or its custom DataLoader. Raises UsageError if the data cannot be loaded."""
    name, _ = source_of(case.data)
    return user_dataset(case) if name is None else load(DATASETS, "data", name)(case, model)


def synthetic(case: Case, model: Model) -> Dataset[Any]:
    """Return the synthetic samples of the model. Raises UsageError if it has none."""
    if model.batch is None:
        raise UsageError(f"model {case.model!r} has no synthetic data; give Model.batch, or another data")
    return BatchDataset(make_samples(model.batch, case))


def text(case: Case, model: Model) -> Dataset[Any]:
    """Return a text as sequences of bytes or, with a vocabulary, of tokens."""
    path, dtype = files.text_path(case.data), torch.uint8
    if case.vocabulary:
        path, dtype = files.token_file(case.data, case.vocabulary), torch.int32
    # Only used pages of a mapped file are loaded, once for all ranks.
    size = path.stat().st_size // dtype.itemsize
    return sequences(torch.from_file(str(path), shared=False, size=size, dtype=dtype), case.seq_len)


def mnist(case: Case, model: Model) -> Dataset[Any]:
    """Return MNIST's normalized training images and their digits."""
    images, digits = files.read_mnist(source_of(case.data)[1])

    def normalized(rows: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Convert bytes (n, 28, 28) to float32 images (n, 1, 28, 28), and the digits (n) to int64."""
        scaled = rows[0].unsqueeze(1).float().div_(255)
        return scaled.sub_(MNIST_MEAN).div_(MNIST_STD), rows[1].long()

    return BatchDataset((torch.tensor(images), torch.tensor(digits)), normalized)


def user_dataset(case: Case) -> Any:
    """Call the user's function that makes the data. Return its Dataset or DataLoader.

    It receives the case if it has an argument. Raises UsageError if it fails or returns something else.
    """
    factory = load_factory(DATASETS, "data", case.data, "Dataset")
    with users_code(f"data {case.data!r} cannot be made", "fix that function"):
        made: Any = call_factory(factory, case)
    if not is_stream(made) and not (hasattr(made, "__len__") and hasattr(made, "__getitem__")):
        remedy = (
            "give it a __len__, or make it an IterableDataset"
            if hasattr(made, "__getitem__")
            else "return a Dataset, an IterableDataset or a DataLoader"
        )
        raise UsageError(f"data {case.data!r} gives {type(made).__name__}; {remedy}")
    return made


def is_stream(dataset: Any) -> bool:
    """Return whether data has a fixed order. Each rank then reads the global batches and takes its part."""
    return isinstance(dataset, (DataLoader, IterableDataset))


def check_dataset(case: Case, model: ModelEntry) -> None:
    """Raise UsageError if custom data is too short or does not suit the options of the case.

    The last item of map-style data is read to check its `__len__`.
    """
    dataset = user_dataset(case)
    if is_stream(dataset):
        if case.split == "sample":
            raise UsageError(f"data {case.data!r} has a fixed order; use split batch")
        given = {"workers": case.workers, "pin_memory": case.pin_memory, "Model.collate": "collate" in model.own}
        for name in (name for name, value in given.items() if value and isinstance(dataset, DataLoader)):
            raise UsageError(f"data {case.data!r} is a DataLoader, which has its own {name}; drop {name}")
        return
    with users_code(f"data {case.data!r} gives no length", "fix its __len__"):
        count = len(dataset)
    check_count(case.data, count, case.global_batch)
    with users_code(f"data {case.data!r} gives no item {count - 1}", "fix its __getitem__"):
        dataset[count - 1]


def first_sample(case: Case, model: Model) -> Batch:
    """Return a batch that starts with the first sample of the case's data, to determine shapes."""
    dataset = dataset_of(case, model)
    if isinstance(dataset, DataLoader):
        return next(iter(dataset))
    item = next(iter(dataset)) if is_stream(dataset) else dataset[0]
    collate = model.collate if model.collate and not isinstance(dataset, BatchDataset) else default_collate
    return collate([item])
