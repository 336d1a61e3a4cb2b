"""What a user might hand in, right and wrong: models and Datasets by name; and a rank that reads with workers."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.utils.data import Dataset, IterableDataset

from parabench import Model
from parabench.data.loader import Loading
from parabench.plan.case import Case

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


def nothing_at_all() -> None:
    """One who forgot to return it."""


def quitter() -> Model:
    sys.exit(3)


def module_class() -> Model:
    return Model(module=nn.Linear, loss=nn.CrossEntropyLoss(), batch=features)


def lazy() -> Model:
    return model(module=nn.LazyLinear(4))


def loss_class() -> Model:
    return model(loss=nn.CrossEntropyLoss)


def foreign_head() -> Model:
    return model(head=nn.Linear(4, 4))


class Ends(nn.Module):
    """An inside and an outside layer, and layers between them."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.inside = nn.Linear(12, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))
        self.outside = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inside(x)
        for layer in self.layers:
            x = layer(x)
        return self.outside(x)


def blocks_alone() -> Model:
    net = Ends(4)
    return model(module=net, blocks=net.layers)


def blocks_and_ends() -> Model:
    net = Ends(4)
    return model(module=net, blocks=net.layers, stem=net.inside, head=net.outside)


def as_long(case: Case) -> Model:
    """A context that is whatever the case wants."""
    made = sequential(case)
    return replace(made, context=case.seq_len)


def as_deep(case: Case) -> Model:
    """A block for every eight tokens; it also minds that what it is asked with can be launched."""
    assert case.device != "auto"
    layers = [nn.Linear(12, 12) for _ in range(case.seq_len // 8)]
    return model(module=nn.Sequential(*layers), blocks=layers)


def table_batch() -> Model:
    """Samples that come from a table, which on the meta device holds nothing."""
    weights = torch.ones(12, 4)

    def batch(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(n, 12, generator=generator)
        return inputs, (inputs @ weights).argmax(1)

    return model(batch=batch)


def batch_of(make: Callable[[Tensor, Tensor], Any]) -> Callable[[], Model]:
    """A model whose batch gives what `make` makes of a good one."""
    return lambda: model(batch=lambda n, generator: make(*features(n, generator)))


def quit_batch(inputs: Tensor, targets: Tensor) -> Any:
    sys.exit("no samples\ntoday")


few_samples = batch_of(lambda inputs, targets: (inputs[:4], targets[:4]))
no_samples = batch_of(lambda inputs, targets: (inputs[:0], targets[:0]))
fewer_targets = batch_of(lambda inputs, targets: (inputs, targets[1:]))
dict_batch = batch_of(lambda inputs, targets: {"inputs": inputs, "targets": targets})
list_batch = batch_of(lambda inputs, targets: (inputs.tolist(), targets.tolist()))
tensor_batch = batch_of(lambda inputs, targets: inputs)
three_batch = batch_of(lambda inputs, targets: (inputs, targets, targets))
scalar_batch = batch_of(lambda inputs, targets: (inputs, targets.sum()))
meta_batch = batch_of(lambda inputs, targets: (inputs.to("meta"), targets))
quitting_batch = batch_of(quit_batch)

none_blocks = partial(model, blocks=None)
none_plan = partial(model, tensor_parallel=None)
list_plan = partial(model, sequence_parallel=["0"])
plan_of_words = partial(model, tensor_parallel={"0": "colwise"})
worded_vocabulary = partial(model, vocabulary="x")
worded_context = partial(model, context="x")
no_context = partial(model, context=0)
worded_stem = partial(model, stem="a")
numbered_head = partial(model, head=3)
numbered_first = partial(model, first=3)

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


def dict_rows() -> Rows:
    return Rows([{"input": torch.zeros(12), "target": 0}] * 40)


def no_rows() -> Rows:
    return Rows([None] * 40)


def uneven_rows() -> Rows:
    return Rows([(torch.zeros(12 + i), 0) for i in range(40)])


def boastful_rows() -> Dataset[Any]:
    class Boastful(Rows):
        def __len__(self) -> int:
            return 80

    return Boastful([(torch.zeros(12), 0)] * 40)


def quitting_rows() -> Rows:
    sys.exit(3)


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
    """Take a batch from each worker, so that all have come so far, stop them, say who they are, and wait to be
    killed."""
    read = Loading(case, model()).batches(0, 1, torch.device("cpu"))
    for _ in range(case.workers):
        next(read)
    workers = [child.pid for child in psutil.Process().children()]
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    (folder / "part").write_text(json.dumps(workers))
    (folder / "part").rename(folder / "workers")
    signal.pause()
