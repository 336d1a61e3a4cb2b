"""Synchronous parameter server: rank 0 receives all gradients, updates the parameters and sends them back.

T = 2(n-1)K for K bytes of parameters (Li et al., 2014, with one server that is also a worker).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from parabench.collectives.wire import finish, pieces
from parabench.errors import UsageError
from parabench.machine import accelerator
from parabench.models.base import Model
from parabench.models.batches import Batch
from parabench.strategies.base import (
    ForwardBackward,
    OptimizerLike,
    ParallelModel,
    StepMarker,
    StrategyContext,
    norm_of,
    optimizer_for,
)

# The rank that holds the optimizer.
SERVER = 0


def parameter_server(model: Model, context: StrategyContext) -> ParallelModel:
    """Compute a part of the batch on each rank. Only rank 0 has the mean gradient and the optimizer."""
    case = context.case
    flat = FlatParameters(model.module, context, on_host=case.backend == "gloo")
    link = Link(flat, context.rank, context.world_size)
    forward_backward = ForwardBackward(module=model.module, model=model, context=context, data_rank=context.rank)

    def compute(batch: Batch, clock: StepMarker) -> Tensor:
        loss = forward_backward(batch, clock)
        link.average_on_server()
        return loss

    optimizer: OptimizerLike
    if context.rank == SERVER:
        made = optimizer_for(model, flat.parameters, case)
        made.register_step_post_hook(lambda *_: link.parameters_from_server())
        optimizer = made
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
        # This buffer for gradients is always held.
        numbers=lambda: {"gradient_bytes": flat.gradient.nbytes},
    )


class Link:
    """Exchange gradients and parameters with the server, and count the bytes of these messages."""

    def __init__(self, flat: FlatParameters, rank: int, world_size: int) -> None:
        self._flat, self._rank = flat, rank
        self._workers = [peer for peer in range(world_size) if peer != SERVER]
        self._gradient = pieces(flat.wire_gradient)
        # The server receives a piece of every worker while it adds the previous piece.
        most = [torch.empty_like(self._gradient[-1]) for _ in self._workers]
        self._landings = (most, [torch.empty_like(each) for each in most]) if rank == SERVER else ([], [])
        self._bytes = self._steps = 0

    def average_on_server(self) -> None:
        """Send the gradients of all ranks to the server, and set their mean as the gradient there."""
        had = self._flat.take_gradients()
        if self._rank != SERVER:
            finish([work for piece in self._gradient for work in self._start([(dist.isend, piece, SERVER)])])
            return
        arriving = self._receive(0)
        for number, piece in enumerate(self._gradient):
            following = self._receive(number + 1)
            finish(arriving)
            for landing in self._landings[number % 2]:
                piece.add_(landing[: len(piece)])  # in the order of ranks, so that runs are reproducible
            arriving = following
        self._flat.wire_gradient.div_(1 + len(self._workers))
        self._flat.set_gradients(had)

    def _receive(self, number: int) -> list[dist.Work]:
        """Post the receives of one piece of the gradient from every worker. After the last piece, return no works."""
        if number >= len(self._gradient):
            return []
        size = len(self._gradient[number])
        landings = zip(self._landings[number % 2], self._workers, strict=True)
        return self._start([(dist.irecv, landing[:size], worker) for landing, worker in landings])

    def parameters_from_server(self) -> None:
        """Copy the server's parameters to the modules of all ranks. All ranks call this together."""
        flat = self._flat
        if self._rank == SERVER:
            flat.wire_values.copy_(flat.values)
            finish(self._start([(dist.isend, flat.wire_values, worker) for worker in self._workers]))
            self._steps += 1
        else:
            finish(self._start([(dist.irecv, flat.wire_values, SERVER)]))
            flat.values.copy_(flat.wire_values)

    def _start(self, messages: list[tuple[Any, Tensor, int]]) -> list[dist.Work]:
        """Start messages as one group. With NCCL, single messages would block each other."""
        self._bytes += sum(tensor.nbytes for _, tensor, _ in messages)
        return dist.batch_isend_irecv([dist.P2POp(*message) for message in messages]) if messages else []

    def facts(self) -> dict[str, Any]:
        """Return {"bytes_through_server": bytes of one step in both directions} on the server, else nothing."""
        return {"bytes_through_server": self._bytes // self._steps} if self._rank == SERVER and self._steps else {}


class FlatParameters:
    """The trainable parameters of `module` as views of one buffer, `values`, and their gradients in `gradient`.

    Messages use `wire_values` and `wire_gradient`: the same memory, or pinned host memory (`on_host`). Raises
    UsageError if parameters have different dtypes.
    """

    def __init__(self, module: nn.Module, context: StrategyContext, *, on_host: bool) -> None:
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        dtypes = {str(p.dtype) for p in self.parameters}
        if len(dtypes) != 1:
            raise UsageError(
                f"{context.case.strategy} sends parameters of one dtype, model {context.case.model!r} has "
                f"{', '.join(sorted(dtypes)) or 'no parameters'}; convert the module, or use another strategy"
            )
        self.values = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        for parameter, view in zip(self.parameters, self._views(self.values), strict=True):
            parameter.data = view
        self.gradient = torch.zeros_like(self.values)
        self._gradients = self._views(self.gradient)
        self.wire_values, self.wire_gradient = self.values, self.gradient
        if on_host and self.values.device.type == accelerator.TYPE:
            self.wire_values = torch.empty_like(self.values, device="cpu", pin_memory=True).copy_(self.values)
            self.wire_gradient = torch.zeros_like(self.gradient, device="cpu", pin_memory=True)

    def _views(self, buffer: Tensor) -> list[Tensor]:
        parts = buffer.split([p.numel() for p in self.parameters])
        return [part.view_as(p) for part, p in zip(parts, self.parameters, strict=True)]

    def take_gradients(self) -> list[bool]:
        """Move all gradients into the buffer for messages. Return for each parameter whether it had one."""
        had = []
        for parameter, view in zip(self.parameters, self._gradients, strict=True):
            had.append(parameter.grad is not None)
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad)
                parameter.grad = None
        self.wire_gradient.copy_(self.gradient)  # without effect if they are the same
        return had

    def set_gradients(self, had: list[bool]) -> None:
        """Set the received gradients. Unused parameters do not get one, as on one device."""
        self.gradient.copy_(self.wire_gradient)
        for parameter, view, had_gradient in zip(self.parameters, self._gradients, had, strict=True):
            if had_gradient or bool(view.any()):
                parameter.grad = view


class RemoteStep:
    """An optimizer whose `step()` receives the parameters. `state` is the optimizer state if this rank holds it."""

    def __init__(
        self, parameters: list[nn.Parameter], step: Callable[[], None], state: Mapping[Any, Any] | None = None
    ) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": parameters}]
        self.state: Mapping[Any, Any] = {} if state is None else state
        self.step = step

    def zero_grad(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None
