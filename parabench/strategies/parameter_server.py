"""Synchronous parameter server: gradients to rank 0, which updates the parameters and sends them back.

Rank 0's link carries everything: T = 2(n-1)K for K bytes of parameters (Li et al., "Scaling distributed machine
learning with the parameter server", 2014, with one server that is a worker too).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from parabench.collectives.wire import pieces
from parabench.models.model import Model
from parabench.strategies.base import OptimizerLike, ParallelModel, StepMarker, StrategyContext
from parabench.strategies.compute import ForwardBackward
from parabench.strategies.norm import norm_of
from parabench.strategies.optimizer import adamw
from parabench.strategies.remote import SERVER, FlatParameters, RemoteStep


def parameter_server(model: Model, context: StrategyContext) -> ParallelModel:
    """Each rank computes its part of the batch; rank 0 alone has the mean gradient and the optimizer.

    After `compute` the other ranks hold no gradients: they have sent them away.
    """
    case = context.case
    flat = FlatParameters(model.module, context, on_host=case.backend == "gloo")
    link = Link(flat, context.rank, context.world_size)
    forward_backward = ForwardBackward(module=model.module, loss=model.loss, context=context)

    def compute(inputs: Tensor, targets: Tensor, clock: StepMarker) -> Tensor:
        loss = forward_backward(inputs, targets, clock)
        link.average_on_server()
        return loss

    optimizer: OptimizerLike
    if context.rank == SERVER:
        optimizer = adamw(flat.parameters, fused=case.fused)
        optimizer.register_step_post_hook(lambda *_: link.parameters_from_server())
    else:
        optimizer = RemoteStep(flat.parameters, link.parameters_from_server)
    return ParallelModel(
        module=model.module,
        data_rank=context.rank,
        data_ranks=context.world_size,
        compute=compute,
        optimizer=optimizer,
        gradient_norm=lambda: norm_of([flat.gradient]) if context.rank == SERVER else None,
        facts=link.facts,
        # The buffer that gradients are sent from is held, whatever the parameters still have.
        numbers=lambda: {"gradient_bytes": flat.gradient.nbytes},
    )


class Link:
    """The messages of a step between the server and each worker, which the server counts."""

    def __init__(self, flat: FlatParameters, rank: int, world_size: int) -> None:
        self._flat, self._rank = flat, rank
        self._workers = [peer for peer in range(world_size) if peer != SERVER]
        self._gradient = pieces(flat.wire_gradient)
        # The server receives a piece of every worker while it adds the one before.
        most = [torch.empty_like(self._gradient[-1]) for _ in self._workers]
        self._landings = (most, [torch.empty_like(each) for each in most]) if rank == SERVER else ([], [])
        self._bytes = self._steps = 0

    def average_on_server(self) -> None:
        """Move every rank's gradient to the server, whose parameters get the mean."""
        had = self._flat.take_gradients()
        if self._rank == SERVER:
            self._collect()
            self._flat.wire_gradient.div_(1 + len(self._workers))
            self._flat.give_gradients(had)
        else:
            finish([work for piece in self._gradient for work in self._start([(dist.isend, piece, SERVER)])])

    def _collect(self) -> None:
        arriving = self._receive(0)
        for number, piece in enumerate(self._gradient):
            following = self._receive(number + 1)
            finish(arriving)
            for landing in self._landings[number % 2]:
                piece.add_(landing[: len(piece)])  # always in the order of the ranks: every run adds alike
            arriving = following

    def _receive(self, number: int) -> list[dist.Work]:
        """Post the receives of every worker's piece of that number; none after the last."""
        if number >= len(self._gradient):
            return []
        size = len(self._gradient[number])
        landings = zip(self._landings[number % 2], self._workers, strict=True)
        return self._start([(dist.irecv, landing[:size], worker) for landing, worker in landings])

    def parameters_from_server(self) -> None:
        """Every module gets the server's parameters."""
        flat = self._flat
        if self._rank == SERVER:
            flat.wire_values.copy_(flat.values)
            finish(self._start([(dist.isend, flat.wire_values, worker) for worker in self._workers]))
            self._steps += 1
        else:
            finish(self._start([(dist.irecv, flat.wire_values, SERVER)]))
            flat.values.copy_(flat.wire_values)

    def _start(self, messages: list[tuple[Any, Tensor, int]]) -> list[dist.Work]:
        """Start messages as one group, which NCCL needs: alone, they would block one another."""
        self._bytes += sum(tensor.nbytes for _, tensor, _ in messages)
        return dist.batch_isend_irecv([dist.P2POp(*message) for message in messages]) if messages else []

    def facts(self) -> dict[str, Any]:
        """What one step carries over the server's link, both ways."""
        return {"bytes_through_server": self._bytes // self._steps} if self._rank == SERVER and self._steps else {}


def finish(works: list[dist.Work]) -> None:
    """Wait for each, once."""
    for work in works:
        work.wait()
