"""Data with a fixed order: all ranks read the same global batches, and take their samples."""

from itertools import chain
from typing import Any

import pytest
import torch

import zoo
from parabench.data.datasets import first_sample
from parabench.data.loader import Loading
from parabench.errors import UsageError
from parabench.plan.case import Case
from parabench.plan.validate import check

CPU = torch.device("cpu")
# 44 samples: five global batches of 8, and a rest of 4.
CASE = Case(model="zoo:plain", data="zoo:stream", device="cpu", seq_len=1, world_size=2, global_batch=8)


def read(case: Case, rank: int, ranks: int, steps: int = 6) -> list[list[int]]:
    """Return the labels of each batch of a rank."""
    batches = Loading(case, zoo.plain()).batches(rank, ranks, CPU)
    return [next(batches)[1].tolist() for _ in range(steps)]


@pytest.mark.parametrize("data", ["zoo:stream", "zoo:loader"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_take_parts_of_the_same_batches(data: str, ranks: int) -> None:
    case = CASE.replace(data=data)
    whole = read(case, 0, 1)
    parts = []
    for rank in range(ranks):
        torch.manual_seed(rank)  # the state of a rank must not matter
        parts.append(read(case, rank, ranks))
    assert [[*chain(*step)] for step in zip(*parts, strict=True)] == whole


def test_stream_is_read_without_the_last_partial_batch() -> None:
    labels = zoo.rows_of(44)[1].tolist()
    whole = read(CASE, 0, 1)
    assert whole[:5] == [labels[at : at + 8] for at in range(0, 40, 8)]
    assert whole[5] == labels[:8]


def test_shuffling_loader_uses_the_seed() -> None:
    case = CASE.replace(data="zoo:loader")
    first, again, other = read(case, 0, 1), read(case, 0, 1), read(case.replace(seed=1), 0, 1)
    assert first == again != other
    # An epoch has five whole batches. The next epoch has a different order.
    assert first[5] != first[0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data": "zoo:loader_of_four"}, "batches of 4 samples and global_batch is 8; use batch_size=8, or --set"),
        ({"data": "zoo:loader", "workers": 2}, "is a DataLoader, which has its own workers; drop workers"),
        ({"data": "zoo:loader", "model": "zoo:pads"}, r"which has its own Model\.collate; drop Model\.collate"),
        ({"data": "zoo:loader", "split": "sample"}, "has a fixed order; use split batch"),
        ({"global_batch": 48}, "gives no batch of 48 samples in epoch 0; give more, or a smaller global_batch"),
        ({"data": "zoo:uneven_stream"}, r"have the shapes \(8, 8\), \(3,\); the first dimension must be the samples"),
        ({"data": "zoo:ragged"}, "gives no first batch: .*; fix its items, or Model.collate"),
    ],
)
def test_check_rejects_unsuitable_ordered_data(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(CASE.replace(**fields))


def test_first_sample_reads_every_kind_of_data() -> None:
    for data, samples in (("zoo:stream", 1), ("zoo:loader", 8), ("zoo:augmented", 1), ("synthetic", 1)):
        inputs, targets = first_sample(CASE.replace(data=data), zoo.plain())
        assert (inputs.shape, targets.shape) == ((samples, zoo.WIDTH), (samples,))
