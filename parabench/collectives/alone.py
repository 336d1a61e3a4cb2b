"""Groups with a single real rank, for compute-only runs: collectives end at once, and nothing is sent.

The rank has the time and memory of a rank without communication, and wrong results. Unlike in PyTorch's backend `fake`,
works have a result, because DDP needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FakeProcessGroup, HashStore
from torch.distributed import ProcessGroup, Work

from parabench.collectives.algorithm import Algorithm
from parabench.collectives.async_queue import FutureWork
from parabench.collectives.process_group import AlgorithmGroup
from parabench.collectives.wire import Wire
from parabench.machine import accelerator

BACKEND = "alone"


class Log(Protocol):
    """An instrument that records the calls and waits of a rank."""

    def called(self, op: str, size: int, ranks: list[int]) -> int:
        """Record the start of a call of `size` bytes, and return its number in the step."""

    def returned(self) -> None:
        """Record that the call returns."""

    def waits(self, call: int) -> None:
        """Record a wait for the call with this number."""


# The log of this process; None in measured steps.
log: Log | None = None


def _nothing(*_: Any) -> None:
    pass


def _scattered(wire: Wire, output: Tensor, flat: Tensor, _: Any) -> None:
    output.copy_(flat.view(wire.size, -1)[wire.rank])


def _gathered(wire: Wire, output: Tensor, part: Tensor) -> None:
    # All ranks get the same numbers, so that computation can continue.
    parts = output.view(wire.size, -1)
    for some in (parts[: wire.rank], parts[wire.rank : wire.rank + 1], parts[wire.rank + 1 :]):
        some.copy_(part.view(1, -1))


ALONE = Algorithm(
    name=BACKEND, all_reduce=_nothing, reduce_scatter=_scattered, all_gather=_gathered, broadcast=_nothing
)


class _Work(FutureWork):
    """The work of a call that has ended."""

    def __init__(self, device: torch.device, call: int | None) -> None:
        super().__init__(device)
        self._call = call

    def wait(self, timeout: timedelta | None = None) -> bool:
        if log is not None and self._call is not None:
            log.waits(self._call)
        return super().wait(timeout)


class AloneGroup(AlgorithmGroup):
    """A group of `size` ranks with only `rank`."""

    def __init__(self, rank: int, size: int) -> None:
        inner = FakeProcessGroup._create_internal(rank, size)
        super().__init__(inner, ProcessGroup.BackendType.CUSTOM, rank, size, ALONE)

    def _by_host(self, tensor: Tensor) -> bool:
        return False

    def _run(self, op: str, job: Callable[[], None], results: list[Tensor], tensors: list[Tensor], opts: Any) -> Work:
        self._count(op, results)
        call = None
        if log is not None:
            parts = self.size() if op == "reduce_scatter" else 1
            size = parts * sum(tensor.nbytes for tensor in results)
            call = log.called(op, size, dist.get_process_group_ranks(self))
        with torch.inference_mode():
            job()
        work = _Work(results[0].device, call)
        work.finish(results)
        if log is not None:
            log.returned()
        return work


def join(rank: int, world_size: int, timeout_s: float) -> None:
    """Make this process the only real rank of a default group of `world_size`, and of all further groups."""

    def create(options: Any, _: object) -> AloneGroup:
        return AloneGroup(options.group_rank, options.group_size)

    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", accelerator.TYPE])
    dist.init_process_group(
        BACKEND, store=HashStore(), rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout_s)
    )
