"""Timestamps of a loop, by hooks and an iterator."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from parabench.launch.results import Marks
from parabench.probes.step_clock import StepClock, read_marks
from parabench.watching.loop import BACKWARD, END, FORWARD, LOADED, OPTIMIZER, REQUESTED, WIDTH, Loop


class Trained:
    """A model of one weight, its optimizer, and a loop that marks up to ten steps."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "marks"
        self.clock = StepClock(self.path, 10, torch.device("cpu"), WIDTH)
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.begun: list[int] = []
        self.loop = Loop(self.clock)
        self.loop.begin_step = self._begin  # type: ignore[method-assign]

    def _begin(self, step: int) -> StepClock:
        self.begun.append(step)
        return self.clock

    def computes(self) -> None:
        self.model(torch.ones(1, 1)).sum().backward()

    def steps(self, batches: int) -> None:
        for _ in self.loop(range(batches)):
            self.computes()
            self.optimizer.step()

    @property
    def rows(self) -> Marks:
        return read_marks(self.path, 10, WIDTH)


@pytest.fixture
def trained(tmp_path: Path) -> Iterator[Trained]:
    """Yield a training run with the hooks of its loop. Check at the end that they are removed."""
    trained = Trained(tmp_path)
    with trained.loop.hooked(trained.model, trained.optimizer):
        yield trained
    assert trained.model._compiled_call_impl is None
    assert not trained.optimizer._optimizer_step_pre_hooks
    assert not trained.optimizer._optimizer_step_post_hooks


def test_loop_counts_steps_over_epochs(trained: Trained) -> None:
    trained.steps(2)
    trained.steps(2)
    trained.loop.finish()
    assert trained.loop.steps == 4
    assert trained.begun == [0, 1, 2, 2, 3, 4]  # step 2 starts twice, because a loader ended
    rows = trained.rows
    assert (np.diff(rows[:4], axis=1) >= 0).all()
    assert np.isnan(rows[4:]).all()
    assert (rows[1:4, REQUESTED] >= rows[:3, END]).all()


def test_loop_joins_accumulated_batches_into_a_step(trained: Trained) -> None:
    for at, _ in enumerate(trained.loop(range(7))):
        trained.computes()
        if at % 2:
            trained.optimizer.step()
    trained.loop.finish()
    rows = trained.rows
    assert trained.loop.steps == 3
    assert trained.loop.batches_of_step == 2
    assert np.isnan(rows[:3, FORWARD]).all()
    assert not np.isnan(rows[:3, [REQUESTED, LOADED, BACKWARD, OPTIMIZER, END]]).any()
    assert np.isnan(rows[3:]).all()  # no optimizer step after the seventh batch
    assert set(trained.loop.later_waits(range(9))) == {0, 1, 2}


def test_loop_times_closure_as_forward_and_backward(trained: Trained) -> None:
    optimizer = torch.optim.SGD(trained.model.parameters(), lr=0.1)
    computed: list[float] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (trained.model(torch.ones(1, 1)) - len(computed)).square().sum()
        loss.backward()
        computed.append(time.perf_counter())
        return loss

    with trained.loop.hooked(nn.Identity(), optimizer):
        for _ in trained.loop(range(2)):
            optimizer.step(closure)
    trained.loop.finish()
    assert trained.loop.steps == len(computed) == 2
    assert trained.rows[1, FORWARD] <= computed[-1] <= trained.rows[1, BACKWARD]
