"""Asynchronous parameter server: rank 0 applies each gradient when it comes, and nobody waits for other ranks.

A gradient is stale when others' updates came between reading the parameters and applying it, so this is another
training than one device's (Dean et al., "Large scale distributed deep networks", 2012: Downpour SGD, with one server
that is a worker too).
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

# A message is a number (a step, or a version in answer to it), then a gradient (or parameters).
NUMBER, PAYLOAD = 1, 2
GOODBYE = -1


def parameter_server_async(model: Model, context: StrategyContext) -> ParallelModel:
    """Each rank computes on the parameters it has, sends the gradient to the server and takes its newest parameters.

    The server's parameters and optimizer live in rank 0's host memory, beside the copy that rank 0 computes on.
    """
    case = context.case
    flat = FlatParameters(model.module, context, on_host=True)
    forward_backward = ForwardBackward(module=model.module, model=model, context=context, data_rank=context.rank)
    # Messages of threads have a group of their own, and travel from host memory whatever the device.
    group = dist.new_group(backend="gloo") if context.world_size > 1 else None
    peer: Server | Worker
    if context.rank == SERVER:
        versions = ParameterVersions(flat.wire_values, context.world_size, fused=case.fused)
        peer = Server(flat, versions, context.world_size, group)
        # Its state is this rank's too; the version's own gradient is not this rank's to clear.
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
        gradient_norm=lambda: None,  # no gradient is the whole batch's
        facts=peer.finish,
        numbers=peer.numbers,
    )


class Peer:
    """What a rank does in a step besides computing: `push` its gradient, then `pull` parameters; and count."""

    def __init__(self, flat: FlatParameters) -> None:
        self._flat = flat
        self._step = self._version = 0
        self._staleness: list[int] = []

    def _received(self, version: int) -> None:
        """The newest parameters came; the update before that version was this rank's."""
        self._flat.values.copy_(self._flat.wire_values)
        self._staleness.append(version - 1 - self._version)
        self._version = version
        self._step += 1

    def numbers(self) -> dict[str, float]:
        """Of all steps, warm-up too."""
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
        """Start sending the gradient. The answer's receives are posted first, so that it need not wait for them."""
        flat, group = self._flat, self._group
        self._sent[0] = self._step
        self._works = [
            dist.irecv(self._came, SERVER, group, NUMBER),
            dist.irecv(flat.wire_values, SERVER, group, PAYLOAD),
            dist.isend(self._sent, SERVER, group, NUMBER),
            dist.isend(flat.wire_gradient, SERVER, group, PAYLOAD),
        ]

    def pull(self) -> None:
        """Wait for the answer: the parameters with this gradient applied."""
        for work in self._works:
            assert work is not None  # this rank is in the group
            work.wait()
        self._works = []
        self._received(int(self._came))

    def finish(self) -> dict[str, Any]:
        """Say goodbye, and leave together with all other ranks."""
        self._sent[0] = GOODBYE
        dist.send(self._sent, SERVER, self._group, NUMBER)
        dist.barrier(self._group)
        return {}


class Server(Peer):
    """Rank 0: a thread for each worker that applies what comes; what rank 0 itself computes is applied beside them."""

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

    def push(self) -> None:
        """Nothing travels: rank 0 has its own gradient already."""

    def pull(self) -> None:
        """Apply this rank's own gradient, and take the newest parameters."""
        self._check()
        flat = self._flat
        self._received(self._versions.apply(SERVER, self._step, flat.wire_gradient, flat.wire_values))

    def numbers(self) -> dict[str, float]:
        """With the server's own parameters."""
        held = self._flat.values.nbytes + self._versions.values.nbytes
        return {**super().numbers(), "parameter_bytes": held}

    def finish(self) -> dict[str, Any]:
        """Wait until every worker has said goodbye; returns the ledger."""
        with self._changed:
            self._changed.wait_for(lambda: self._working == 0 or self._error is not None)
        self._check()
        for thread in self._threads:
            thread.join()
        if self._group is not None:
            dist.barrier(self._group)
        return self._versions.facts()

    def _check(self) -> None:
        """Raise what ended a thread: its worker waits for an answer that won't come."""
        if self._error is not None:
            worker, error = self._error
            raise RuntimeError(f"the server lost rank {worker}: {type(error).__name__}: {error}") from error

    def _serve(self, worker: int) -> None:
        """A worker's thread: until goodbye, apply what comes and answer with the newest parameters."""
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
    """Parameters in host memory, one flat tensor, that go from version to version: one optimizer step a gradient.

    Every rank begins with version 0. `applied` is the ledger of the updates in order: (rank, step, staleness), the
    number of other ranks' updates that came before this one and after the rank's parameters. A hook of the optimizer
    itself writes it, so a gradient that was lost on the way is not in it, and one applied twice is twice.
    """

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
        """Update with the gradient that `rank` computed in its `step`, then copy the newest parameters `into` a tensor,
        which may be the gradient's own memory; returns their version. Safe to call from several threads."""
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

    def facts(self) -> dict[str, Any]:
        """Return the ledger as a fact."""
        return {"applied": [list(each) for each in self.applied]}
