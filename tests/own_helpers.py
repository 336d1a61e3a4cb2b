"""What a user might hand in, right and wrong: models and Datasets by name; and a rank that reads with workers."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.utils.data import Dataset, IterableDataset

from parabench.case import Case
from parabench.data.loader import batches
from parabench.models.model import Model

# -- models ---------------------------------------------------------------------------------------------------------


def model(**fields: Any) -> Model:
    """A classifier of 12 features; `fields` replace what it has."""
    module = fields.pop("module", None) or nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))
    return Model(module=module, **{"loss": nn.CrossEntropyLoss(), "batch": features, **fields})


def features(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(n, 12, generator=generator)
    return inputs, inputs[:, :4].argmax(1)


def bare() -> Model:
    return model(batch=None)


def rich() -> Model:
    """One for every strategy: a first layer of its own, then a pair."""
    module = nn.Sequential(nn.Linear(12, 16), nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))
    plan = {"1": ColwiseParallel(), "3": RowwiseParallel()}
    return model(module=module, blocks=list(module), tensor_parallel=plan, first="0")


def stubborn() -> Model:
    """One that the meta device cannot build."""
    made = model()
    assert float(made.module[0].weight.sum()) != 0
    return made


def sequential(case: Case) -> Model:
    """A reader of 512 tokens, as long as the case wants."""

    def batch(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(512, (n, case.seq_len + 1), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]

    module = nn.Sequential(nn.Embedding(512, 16), nn.Linear(16, 512))
    return Model(
        module=module,
        loss=lambda logits, targets: nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()),
        batch=batch,
        vocabulary=512,
        context=128,
    )


def few_words() -> Model:
    return model(vocabulary=4)


def broken() -> Model:
    raise OSError("no weights\nat all")


def no_model() -> nn.Module:
    return nn.Linear(1, 1)


def greedy(case: Case, more: int) -> Model:
    return model()


def empty() -> Model:
    return model(module=nn.ReLU())


def stray_block() -> Model:
    return model(blocks=[nn.Linear(1, 1)])


def wrong_first() -> Model:
    return model(first="1")


def paired_first() -> Model:
    return model(tensor_parallel={"0": ColwiseParallel(), "2": RowwiseParallel()}, first="0")


def wrong_plan() -> Model:
    return model(tensor_parallel={"blocks.*.up": ColwiseParallel()})


no_factory = 3


# -- Datasets -------------------------------------------------------------------------------------------------------


class Rows(Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        return self._items[index]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


def rows() -> Rows:
    return Rows([(torch.full((12,), float(i)), i % 4) for i in range(40)])


def random_rows() -> Dataset[Any]:
    """What it gives is drawn anew each time: with workers, by their seeds."""

    class Drawn(Rows):
        def __getitem__(self, index: int) -> Any:
            return torch.rand(12), index

    return Drawn(list(range(40)))


def long_rows(case: Case) -> Rows:
    return Rows([(torch.arange(case.seq_len) + i, torch.arange(case.seq_len)) for i in range(40)])


def few_rows() -> Rows:
    return Rows([(torch.zeros(12), 0)])


def single_rows() -> Rows:
    return Rows([torch.zeros(12)] * 40)


def worded_rows() -> Rows:
    return Rows([("a word", 0)] * 40)


def stream() -> Stream:
    return Stream()


def broken_rows() -> Rows:
    raise RuntimeError("no such bucket")


def holey_rows() -> Dataset[Any]:
    class Holey(Rows):
        def __getitem__(self, index: int) -> Any:
            raise KeyError(index)

    return Holey([None] * 40)


# -- a rank that reads with workers ---------------------------------------------------------------------------------


def read_with_workers(case: Case, folder: Path) -> None:
    """Take a batch, stop the workers, say who they are, and wait to be killed."""
    read = batches(case, model(), 0, 1, torch.device("cpu"))
    next(read)
    workers = [child.pid for child in psutil.Process().children()]
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    (folder / "part").write_text(json.dumps(workers))
    (folder / "part").rename(folder / "workers")
    signal.pause()
