"""What the ranks of test_overlap run: collectives that can only finish while their caller goes on with something."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from guard import GUARD_S
from rounding_helpers import FLOAT64_BOUND
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from parabench.collectives.ring import RING


class RendezvousPoint:
    """Two threads that meet: neither gets past `meet` before the other has come."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2)
        self._open = threading.Event()
        self.met = 0

    def call(self) -> None:
        self._open.set()

    def come(self) -> None:
        """The collective's side: the first after `call` meets, those behind it pass."""
        if self._open.is_set():
            self._open.clear()
            self.meet()

    def meet(self) -> None:
        # A backward that waits for its reduction never comes here: that is then an error, not a hang.
        if self._barrier.wait(GUARD_S) == 0:
            self.met += 1


MEETING = RendezvousPoint()


def _meeting(function: Callable[..., None]) -> Callable[..., None]:
    def collective(*args: Any) -> None:
        MEETING.come()
        function(*args)

    return collective


assert RING.broadcast is not None
MEETS = replace(
    RING,
    name="meets",
    all_reduce=_meeting(RING.all_reduce),
    reduce_scatter=_meeting(RING.reduce_scatter),
    all_gather=_meeting(RING.all_gather),
    broadcast=_meeting(RING.broadcast),
)


def the_caller_goes_on(rank: int, size: int) -> Iterator[str]:
    """Every operation is under way while its caller does something else."""
    whole, part = torch.arange(4.0 * size), torch.empty(4)
    mine = whole[4 * rank : 4 * rank + 4].clone()
    gathered, sent = torch.empty(4 * size), whole.clone() if rank == 0 else torch.empty(4 * size)
    total = whole.clone()
    calls: dict[str, tuple[Callable[[], Any], Tensor, Tensor]] = {
        "all_reduce": (lambda: dist.all_reduce(total, async_op=True), total, whole * size),
        "reduce_scatter": (lambda: dist.reduce_scatter_single(part, whole, async_op=True), part, mine * size),
        "all_gather": (lambda: dist.all_gather_single(gathered, mine, async_op=True), gathered, whole),
        "broadcast": (lambda: dist.broadcast(sent, src=0, async_op=True), sent, whole),
    }
    for name, (call, result, expected) in calls.items():
        MEETING.call()
        work = call()
        MEETING.meet()
        work.wait()
        if not torch.equal(result, expected):
            yield f"{name} on rank {rank}: {result}"
    if MEETING.met != len(calls):
        yield f"{MEETING.met} of {len(calls)} met"


WIDTH, LAYERS, STEPS = 64, 4, 3
# Every layer is a bucket of its own, 32 KiB of weights.
BUCKET_MIB = 0.01


def backward_goes_on(rank: int, size: int) -> Iterator[str]:
    """The reduction of the last layer's bucket and the gradient of the first layer's output wait for each other."""
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

    # After the gradient of the first layer's output only that of its own weights is left.
    layers[0].register_forward_hook(meet_in_backward)
    for step in range(1, STEPS):
        module.zero_grad()
        loss = module(inputs[rank : rank + 1]).square().mean()
        MEETING.call()
        loss.backward()
        if MEETING.met != step:
            yield f"step {step}: {MEETING.met} met"
        for mine, expected in zip(layers.parameters(), alone.parameters(), strict=True):
            assert mine.grad is not None
            assert expected.grad is not None
            if not torch.allclose(mine.grad, expected.grad, rtol=FLOAT64_BOUND, atol=FLOAT64_BOUND):
                yield f"step {step}: the gradient of a {tuple(mine.shape)} is not one device's"
