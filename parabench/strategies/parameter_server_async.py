"""Asynchronous parameter server: rank 0 applies each gradient on arrival, and ranks do not wait for each other.

Gradients can be stale, so training differs from one device (Dean et al., 2012: Downpour SGD).
"""

from __future__ import annotations

from threading import Condition, Lock, Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from parabench.models.base import Model
from parabench.models.batches import Batch
from parabench.strategies.base import ForwardBackward, ParallelModel, StepMarker, StrategyContext, adamw
from parabench.strategies.parameter_server import SERVER, FlatParameters, RemoteStep

# A message is a number (a step, or the version in the reply), then a gradient (or parameters).
NUMBER, PAYLOAD = 1, 2
GOODBYE = -1


def parameter_server_async(model: Model, context: StrategyContext) -> ParallelModel:
    """Compute a gradient, send it to the server and receive the newest parameters, on each rank.

    The server's parameters and optimizer are in rank 0's host memory. Rank 0 computes with a copy.
    """
    case = context.case
    flat = FlatParameters(model.module, context, on_host=True)
    forward_backward = ForwardBackward(module=model.module, model=model, context=context, data_rank=context.rank)
    # Messages of threads use a separate group and host memory, with every device.
    group = dist.new_group(backend="gloo") if context.world_size > 1 else None
    peer: Server | Worker
    if context.rank == SERVER:
        versions = ParameterVersions(flat.wire_values, context.world_size, fused=case.fused)
        peer = Server(flat, versions, context.world_size, group)
        # This rank also has the state of the server.
        optimizer = RemoteStep(flat.parameters, peer.pull, versions.optimizer.state)
    else:
        peer = Worker(flat, group)
        optimizer = RemoteStep(flat.parameters, peer.pull)

    def compute(batch: Batch, clock: StepMarker) -> Tensor:
        loss = forward_backward(batch, clock)
        flat.take_gradients()
        peer.push()
        return loss

    return ParallelModel(
        module=model.module,
        data_rank=context.rank,
        data_ranks=context.world_size,
        compute=compute,
        optimizer=optimizer,
        gradient_norm=lambda: None,  # a gradient is never of the whole batch
        facts=peer.finish,
        numbers=peer.numbers,
    )


class Peer:
    """The communication of a rank in a step: `push` its gradient, then `pull` parameters, and count staleness."""

    def __init__(self, flat: FlatParameters) -> None:
        self._flat = flat
        self._step = self._version = 0
        self._staleness: list[int] = []

    def push(self) -> None:
        """Start sending the gradient to the server. The server itself sends nothing."""

    def _received(self, version: int) -> None:
        """Use the received parameters, whose last update is this rank's gradient, and record its staleness."""
        self._flat.values.copy_(self._flat.wire_values)
        self._staleness.append(version - 1 - self._version)
        self._version = version
        self._step += 1

    def numbers(self) -> dict[str, float]:
        """Return {metric: value} of this rank over all steps, including the warm-up."""
        count = len(self._staleness)
        late = {"staleness_mean": sum(self._staleness) / count, "staleness_max": max(self._staleness)} if count else {}
        return {"gradient_bytes": self._flat.gradient.nbytes, **late}


class Worker(Peer):
    """A rank that sends its gradients to the server."""

    def __init__(self, flat: FlatParameters, group: Any) -> None:
        super().__init__(flat)
        self._group = group
        self._sent, self._came = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        self._works: list[dist.Work | None] = []

    def push(self) -> None:
        """Start sending the gradient. The receives of the reply are posted first."""
        flat, group = self._flat, self._group
        self._sent[0] = self._step
        self._works = [
            dist.irecv(self._came, SERVER, group, NUMBER),
            dist.irecv(flat.wire_values, SERVER, group, PAYLOAD),
            dist.isend(self._sent, SERVER, group, NUMBER),
            dist.isend(flat.wire_gradient, SERVER, group, PAYLOAD),
        ]

    def pull(self) -> None:
        """Wait for the reply: the parameters after this update."""
        for work in self._works:
            assert work is not None  # this rank is in the group
            work.wait()
        self._works = []
        self._received(int(self._came))

    def finish(self) -> dict[str, Any]:
        """Send the last message, and wait for all other ranks."""
        self._sent[0] = GOODBYE
        dist.send(self._sent, SERVER, self._group, NUMBER)
        dist.barrier(self._group)
        return {}


class Server(Peer):
    """Rank 0: a thread for each worker applies its gradients. The main thread applies rank 0's gradients."""

    def __init__(self, flat: FlatParameters, versions: ParameterVersions, world_size: int, group: Any) -> None:
        super().__init__(flat)
        self._versions, self._group = versions, group
        self._changed = Condition()
        self._working = world_size - 1
        self._error: tuple[int, BaseException] | None = None
        workers = [rank for rank in range(world_size) if rank != SERVER]
        self._threads = [Thread(target=self._serve, args=(worker,), daemon=True) for worker in workers]
        for thread in self._threads:
            thread.start()

    def pull(self) -> None:
        """Apply this rank's gradient, and use the newest parameters."""
        self._check()
        flat = self._flat
        self._received(self._versions.apply(SERVER, self._step, flat.wire_gradient, flat.wire_values))

    def numbers(self) -> dict[str, float]:
        """Return {metric: value} of this rank. It also holds the server's parameters."""
        held = self._flat.values.nbytes + self._versions.values.nbytes
        return {**super().numbers(), "parameter_bytes": held}

    def finish(self) -> dict[str, Any]:
        """Wait for the last message of every worker. Return {"applied": [[rank, step, staleness], ...]}."""
        with self._changed:
            self._changed.wait_for(lambda: self._working == 0 or self._error is not None)
        self._check()
        for thread in self._threads:
            thread.join()
        if self._group is not None:
            dist.barrier(self._group)
        return {"applied": [list(each) for each in self._versions.applied]}

    def _check(self) -> None:
        """Raise the error that ended a thread of the server, because its worker will not receive a reply."""
        if self._error is not None:
            worker, error = self._error
            raise RuntimeError(f"the server lost rank {worker}: {type(error).__name__}: {error}") from error

    def _serve(self, worker: int) -> None:
        """Apply the gradients of a worker and reply with the newest parameters, until its last message."""
        try:
            number, payload = torch.zeros(1, dtype=torch.int64), torch.empty_like(self._flat.wire_values)
            while True:
                dist.recv(number, worker, self._group, NUMBER)
                if int(number) == GOODBYE:
                    break
                dist.recv(payload, worker, self._group, PAYLOAD)
                number[0] = self._versions.apply(worker, int(number), payload, into=payload)
                dist.send(number, worker, self._group, NUMBER)
                dist.send(payload, worker, self._group, PAYLOAD)
        except BaseException as error:  # the main thread raises it
            with self._changed:
                self._error = self._error or (worker, error)
                self._changed.notify_all()
        else:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()


class ParameterVersions:
    """Parameters in host memory, as one flat tensor. Each gradient is one optimizer step, and gives a new version.

    All ranks start with version 0. `applied` has (rank, step, staleness) of each update.
    """

    # Staleness is the number of updates between the version of the rank's parameters and this update. A hook of the
    # optimizer writes `applied`, so it has exactly the applied gradients.

    def __init__(self, values: Tensor, ranks: int, *, fused: bool) -> None:
        self.values = nn.Parameter(values.clone())
        self.optimizer = adamw([self.values], fused=fused)
        self.optimizer.register_step_post_hook(lambda *_: self._note())
        self.applied: list[tuple[int, int, int]] = []
        self._read = [0] * ranks
        self._now = (0, 0)
        self._lock = Lock()

    @property
    def version(self) -> int:
        return len(self.applied)

    def apply(self, rank: int, step: int, gradient: Tensor, into: Tensor) -> int:
        """Apply a gradient of `rank` and `step`, copy the newest parameters `into` a tensor, and return their version.

        `into` may be the gradient. Several threads may call this.
        """
        with self._lock:
            self._now = (rank, step)
            self.values.grad = gradient
            self.optimizer.step()
            self.values.grad = None
            into.copy_(self.values.detach())
            self._read[rank] = self.version
            return self.version

    def _note(self) -> None:
        rank, step = self._now
        self.applied.append((rank, step, self.version - self._read[rank]))
