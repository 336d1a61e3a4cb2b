"""What the tests of pipelines run in ranks: models of several kinds, and trainings whose every number is kept."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from guard import GUARD_S
from rounding_helpers import wide, widened
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from parabench import Model
from parabench.collectives import join
from parabench.launch.rank import die_with_driver, join_group
from parabench.launch.rendezvous import LOOPBACK
from parabench.launch.workload import RankEnv
from parabench.models.base import build_model
from parabench.models.gpt import GPT, next_token_loss
from parabench.plan.case import Case
from parabench.strategies import pipeline
from parabench.strategies.base import ParallelModel, RankInfo, StrategyContext
from parabench.workloads import trainer as worker

STEPS = 5
VOCABULARY = 64
BLOCKS = 8


# -- models ---------------------------------------------------------------------------------------------------------


def tokens(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences that count up from anywhere, modulo the vocabulary."""
    drawn = (torch.randint(VOCABULARY, (n, 1), generator=generator) + torch.arange(9)) % VOCABULARY
    return drawn[:, :-1], drawn[:, 1:]


def eight() -> Model:
    """A decoder of eight blocks; its head's weight is its token embedding."""
    module = GPT(BLOCKS, 2, 16, VOCABULARY, 16)
    return Model(
        module=module,
        loss=next_token_loss,
        batch=tokens,
        vocabulary=VOCABULARY,
        blocks=list(module.blocks),
        stem=module.stem,
        head=module.head,
    )


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        # What goes to the next rank is not contiguous.
        y: Tensor = x + torch.tanh(self.linear(x).transpose(0, 1)).transpose(0, 1)
        return y.transpose(1, 2).contiguous().transpose(1, 2)


class Knot(nn.Module):
    """Eight layers with ties of every kind: a weight in two places, one in all, a whole layer twice, one frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Embedding(VOCABULARY, 12)
        self.layers = nn.ModuleList(Layer(12) for _ in range(8))
        self.layers[4].linear.weight = self.layers[1].linear.weight
        self.layers[7] = self.layers[0]
        for layer in self.layers:
            layer.linear.bias = self.layers[0].linear.bias
        self.layers[5].linear.weight.requires_grad_(False)
        self.head = nn.Linear(12, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


def knot() -> Model:
    """The same without a word to the pipeline about what is tied."""
    module = Knot()
    return Model(
        module=module,
        loss=next_token_loss,
        batch=tokens,
        vocabulary=VOCABULARY,
        blocks=list(module.layers),
        stem=module.stem,
        head=module.head,
    )


# -- trainings ------------------------------------------------------------------------------------------------------


class NoClock:
    """A clock that only sees that forward and backward take turns."""

    skipped = 0

    def mark(self) -> None:
        raise AssertionError("a pipeline has no moment between forward and backward")

    def skip(self) -> None:
        self.skipped += 1


class Noting(PipelineStage):
    """A stage that notes in which order its rank works: (stage, "F" or "B", micro-batch)."""

    order: ClassVar[list[tuple[int, str, int]]] = []

    def forward_one_chunk(self, chunk: int, *rest: Any, **named: Any) -> Any:
        self.order.append((self.stage_index, "F", chunk))
        return super().forward_one_chunk(chunk, *rest, **named)

    def backward_one_chunk(self, chunk: int, *rest: Any, **named: Any) -> Any:
        self.order.append((self.stage_index, "B", chunk))
        return super().backward_one_chunk(chunk, *rest, **named)


# Models that stay alive while a case is trained: what a rank gives back must not hang on that.
models: list[Model] = []


def kept(case: Case) -> Model:
    """The case's model, which does not end when nobody else wants it."""
    models.append(build_model(case))
    return models[-1]


def trained(cases: Sequence[Case], folder: Path) -> None:
    """Train every case in one group of ranks, and keep what this rank saw of each."""
    die_with_driver()
    os.environ.update(LOOPBACK)
    torch.set_num_threads(1)
    pipeline.PipelineStage = Noting  # type: ignore[misc]
    worker.build_model = kept  # type: ignore[assignment]
    rank = int(os.environ["RANK"])
    join_group(cases[0], RankEnv(folder=folder, timeout_s=GUARD_S), rank)
    for number, case in enumerate(cases):
        torch.save(train(case, rank), folder / f"case{number}-rank{rank}.pt")
        models.clear()
        gc.collect()
    join.leave()


def train(case: Case, rank: int) -> dict[str, Any]:
    """A few steps with plain SGD: AdamW turns the rounding of a gradient that is zero into whole steps."""
    with wide(case):
        return _train(case, rank)


def _train(case: Case, rank: int) -> dict[str, Any]:
    training, parallel, _ = worker.build(case, RankInfo(rank, case.world_size, torch.device("cpu")))
    alive = {
        each.data_ptr(): each.nbytes for each in gc.get_objects() if type(each) is nn.Parameter and not each.is_meta
    }
    held = dict(parallel.parameters or {})
    optimizer = torch.optim.SGD(held.values(), lr=0.2)
    clock = NoClock()
    losses, gradients, norm = [], {}, None
    for step in range(STEPS):
        Noting.order.clear()
        inputs, targets = widened(next(training.batches))
        loss = training.compute(inputs, targets, clock if case.strategy != "single" else _Clock())
        if step == 0:
            gradients = {name: each.grad.clone() for name, each in held.items() if each.grad is not None}
            norm = training.gradient_norm()
        optimizer.step()
        optimizer.zero_grad()
        if loss is not None:
            losses.append(float(loss))
    return {
        "loss": losses,
        "gradients": gradients,
        "parameters": {name: each.detach().clone() for name, each in held.items()},
        "norm": norm,
        "skipped": clock.skipped,
        "alive_bytes": sum(alive.values()),
        "facts": parallel.facts(),
        "numbers": parallel.numbers(),
        "order": list(Noting.order),
    }


class _Clock:
    def mark(self) -> None: ...

    def skip(self) -> None: ...


# -- a rank that dies -----------------------------------------------------------------------------------------------


def killed(model: Model, context: StrategyContext) -> ParallelModel:
    """A pipeline whose second rank is killed while the others wait for its messages, in the third step."""
    parallel = pipeline.pp(model, context)
    if context.rank == 1:
        calls = itertools.count()
        compute = parallel.compute
        assert compute is not None

        def dying(inputs: Tensor, targets: Tensor, clock: Any) -> Tensor | None:
            if next(calls) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return compute(inputs, targets, clock)

        return replace(parallel, compute=dying)
    return parallel
