"""Loops of many kinds in one process: watching changes no loss, and all steps are recorded."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from parabench import watch
from process_helpers import query

pytestmark = pytest.mark.usefixtures("unanalyzed")

STEPS = 34  # instruments start at the 25th

# Yields batches, watched or not.
Steps = Callable[[Iterable[Any]], Iterable[Any]]


class Training:
    """A small model, its optimizer, its batches, and the losses of the loop."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = model or nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.batches = [torch.randn(6, 8) for _ in range(STEPS)]
        self.losses: list[float] = []

    def backward(self, batch: Tensor, model: nn.Module | None = None) -> Tensor:
        loss = (model or self.model)(batch).square().mean()
        loss.backward()
        self.losses.append(loss.item())
        return loss

    def step(self, batch: Tensor) -> None:
        self.backward(batch)
        self.optimizer.step()
        self.optimizer.zero_grad()


def skipping(training: Training, steps: Steps) -> None:
    """A loss scaler skips a step with infinite gradients."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for batch in steps([*training.batches, torch.full((6, 8), torch.inf), torch.ones(6, 8)][1:]):
        loss = training.model(batch).square().mean()
        scaler.scale(loss).backward()
        scaler.step(training.optimizer)
        scaler.update()
        training.optimizer.zero_grad()
        training.losses.append(loss.item())


def compiled_step(training: Training, steps: Steps) -> None:
    """Forward and loss are one compiled function."""
    loss_of = torch.compile(lambda batch: training.model(batch).square().mean(), backend="eager")
    for batch in steps(training.batches):
        loss = loss_of(batch)
        loss.backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        training.losses.append(loss.item())


def plain(training: Training, steps: Steps) -> None:
    for batch in steps(training.batches):
        training.step(batch)


class Unusual(nn.Module):
    """BatchNorm, dropout, a scalar, an empty and a frozen parameter, and an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.scale, self.empty = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(0))
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)
        self.unused = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        return self.net(x) * self.scale * self.frozen + self.empty.sum()


LOOPS: list[tuple[Callable[[Training, Steps], None], Callable[[], nn.Module] | None]] = [
    (plain, Unusual),
    (skipping, None),  # the skipped step is part of the next one
    (compiled_step, None),
]


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # torch's compiler
@pytest.mark.parametrize(("loop", "model"), LOOPS, ids=lambda each: getattr(each, "__name__", None) and each.__name__)
def test_watched_loop_trains_the_same(
    tmp_path: Path, loop: Callable[[Training, Steps], None], model: Callable[[], nn.Module] | None
) -> None:
    lines: list[str] = []
    losses = []
    for watched in (False, True):
        torch.manual_seed(0)
        training = Training(model and model())
        block: Any = nullcontext(iter)
        if watched:
            block = watch(training.model, training.optimizer, out=tmp_path, log=lines.append)
        with block as steps:
            loop(training, steps)
        losses.append(torch.tensor(training.losses))
    assert torch.equal(losses[0].nan_to_num(), losses[1].nan_to_num())
    assert not [line for line in lines if "error" in line]
    assert query(tmp_path / "results.db", "SELECT status FROM launch") == [("ok",)]
    assert query(tmp_path / "results.db", "SELECT count(*) FROM sample WHERE metric = 'step_s'") == [(STEPS,)]


# -- DDP, in a group of one rank ------------------------------------------------------------------------------------

TUNED_STEPS = 60  # longer than the comparison of two caps in three rounds


@pytest.mark.parametrize(("static_graph", "batches"), [(False, 2), (True, 1)])
def test_tuning_leaves_losses_identical(tmp_path: Path, alone: None, static_graph: bool, batches: int) -> None:
    """Each step accumulates `batches` batches."""
    lines: list[str] = []
    losses: dict[bool, list[float]] = {False: [], True: []}
    for tuned, found in losses.items():
        torch.manual_seed(0)
        net = nn.Sequential(nn.EmbeddingBag(50, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 4))
        module = DistributedDataParallel(net, static_graph=static_graph)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        given = [torch.randint(0, 50, (8, 3)) for _ in range(TUNED_STEPS * batches)]
        block: Any = nullcontext(iter)
        if tuned:
            block = watch(module, optimizer, out=tmp_path, tune={"bucket_mib": [0.01, 25]}, rounds=3, log=lines.append)
        with block as steps:
            for at, batch in enumerate(steps(given)):
                last = at % batches == batches - 1
                module.require_backward_grad_sync = last  # no_sync sets it
                loss = module(batch).square().mean()
                loss.backward()
                found.append(loss.item())
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
    assert losses[True] == losses[False]
    assert any(line.startswith("Tuning of 2 bucket caps over 3 rounds") for line in lines)
    assert not [line for line in lines if "error" in line]
