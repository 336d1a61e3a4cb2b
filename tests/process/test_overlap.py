"""Reductions overlap with backward: two threads that wait for each other show it without a clock."""

import copy
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from guard import GUARD_S
from parabench.collectives.ring import RING
from parabench.plan.case import Case
from ranks_helpers import complaints_of_ranks
from rounding_helpers import FLOAT64_BOUND


class RendezvousPoint:
    """A barrier of two threads for the first collective after `call`."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2)
        self._open = threading.Event()
        self.met = 0

    def call(self) -> None:
        self._open.set()

    def come(self) -> None:
        """Meet if this is the first collective after `call`."""
        if self._open.is_set():
            self._open.clear()
            self.meet()

    def meet(self) -> None:
        # A backward that waits for its reduction never comes here: that is then an error, not a hang.
        if self._barrier.wait(GUARD_S) == 0:
            self.met += 1


MEETING = RendezvousPoint()


def _all_reduce(*args: Any) -> None:
    MEETING.come()
    RING.all_reduce(*args)


MEETS = replace(RING, name="meets", all_reduce=_all_reduce)


WIDTH, LAYERS, STEPS = 64, 4, 3
# Every layer is a separate bucket of 32 KiB of weights.
BUCKET_MIB = 0.01


def backward_goes_on(rank: int, size: int) -> Iterator[str]:
    """Check that the reduction of the last bucket and the gradient of the first layer can wait for each other."""
    torch.manual_seed(0)
    # In float64, where rounding is far below what a wrong reduction does.
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).double()
    inputs = torch.randn(size, WIDTH, dtype=torch.float64)
    alone = copy.deepcopy(layers)
    alone(inputs).square().mean().backward()
    module = DistributedDataParallel(layers, bucket_cap_mb=BUCKET_MIB)

    # In its first step DDP has a single bucket, which cannot overlap.
    module(inputs[rank : rank + 1]).square().mean().backward()

    def meet_in_backward(_: nn.Module, __: Any, output: Tensor) -> None:
        output.register_hook(lambda _: MEETING.meet())

    # After the gradient of the first layer's output, only the gradient of its weights remains.
    layers[0].register_forward_hook(meet_in_backward)
    for step in range(1, STEPS):
        module.zero_grad()
        loss = module(inputs[rank : rank + 1]).square().mean()
        MEETING.call()
        loss.backward()
        if MEETING.met != step:
            yield f"step {step}: {MEETING.met} met"
        for mine, expected in zip(layers.parameters(), alone.parameters(), strict=True):
            if not torch.allclose(mine.grad, expected.grad, rtol=FLOAT64_BOUND, atol=FLOAT64_BOUND):
                yield f"step {step}: the gradient of a {tuple(mine.shape)} is not one device's"


def test_backward_continues_during_a_reduction(tmp_path: Path) -> None:
    case = Case(algorithm="test_overlap:MEETS", world_size=2, device="cpu", backend="gloo")
    assert complaints_of_ranks(backward_goes_on, case, tmp_path) == [[], []]
