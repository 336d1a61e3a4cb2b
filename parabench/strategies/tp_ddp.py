"""Two dimensions: tensor parallel inside groups of tp_size ranks, DistributedDataParallel between the groups.

DDP takes plain tensors only, so it gets each rank's part of the layers as such, and its buckets and options are those
of `ddp`. (`DistributedDataParallel(device_mesh=...)` does the same with hooks, which lose the module's parameters in
the first forward: torch 2.13.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.func import functional_call

from parabench.models.model import Model
from parabench.strategies.base import ParallelModel, StrategyContext
from parabench.strategies.ddp import bucket_facts, gradient_sync, replicate
from parabench.strategies.norm import norm_of
from parabench.strategies.tensor_parallel import grid, split_layers


class Parts(nn.Module):
    """A module whose parameters are this rank's parts of `whole`'s, plain tensors in the same memory.

    `names` and `parameters()` go side by side.
    """

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        named = dict(whole.named_parameters())
        self.names = list(named)
        self.parts = nn.ParameterList(_part(parameter) for parameter in named.values())
        self._layouts = {
            part: (parameter.device_mesh, parameter.placements, parameter.shape, parameter.stride())
            for part, parameter in zip(self.parts, named.values(), strict=True)
            if isinstance(parameter, DTensor)
        }
        # In a tuple, so that it is no submodule: its parameters are not DDP's.
        self._whole = (whole,)

    def forward(self, *inputs: Any) -> Any:
        """What `whole` computes, with these parts."""
        parameters = {name: self.placed(part, part) for name, part in zip(self.names, self.parts, strict=True)}
        return functional_call(self._whole[0], parameters, inputs)

    def placed(self, part: nn.Parameter, tensor: Tensor) -> Tensor:
        """`tensor`, which is `part` or its gradient, as what it is a part of."""
        if part not in self._layouts:
            return tensor
        mesh, placements, shape, stride = self._layouts[part]
        return DTensor.from_local(tensor, mesh, placements, run_check=False, shape=shape, stride=stride)

    def whole(self, part: nn.Parameter, tensor: Tensor) -> Tensor:
        """The same, gathered. A collective call."""
        placed = self.placed(part, tensor)
        return placed.full_tensor() if isinstance(placed, DTensor) else placed

    def gradients(self) -> Iterator[Tensor]:
        """The gradients that are there, those of parts as what they are parts of."""
        for part in self.parts:
            if part.grad is not None:
                yield self.placed(part, part.grad)


def _part(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(parameter.to_local().detach()) if isinstance(parameter, DTensor) else parameter


def tp_ddp(model: Model, context: StrategyContext) -> ParallelModel:
    """Split the layers, then replicate each rank's part of them."""
    mesh = grid(context)
    split_layers(model, context, mesh["tp"])
    parts = Parts(model.module)
    module = replicate(parts, context, process_group=mesh.get_group("dp"))
    return ParallelModel(
        module=module,
        data_rank=mesh["dp"].get_local_rank(),
        data_ranks=mesh["dp"].size(),
        parameters=dict(zip(parts.names, parts.parts, strict=True)),
        whole=parts.whole,
        gradient_norm=lambda: norm_of(parts.gradients()),
        gradient_sync=gradient_sync(module, context.case),
        facts=lambda: bucket_facts(module),
    )
