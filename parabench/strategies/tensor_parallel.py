"""Tensor parallel: attention and MLP are split by columns and then by rows, with one all-reduce (Megatron-LM, 2019).

With sequence parallel (Korthikanti et al., 2022), each rank has a part of the sequence between the layers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ParallelStyle, RowwiseParallel, parallelize_module
from torch.func import functional_call

from parabench.errors import UsageError
from parabench.models.base import Model
from parabench.plan.case import Case
from parabench.strategies.base import ParallelModel, StrategyContext, norm_of
from parabench.strategies.data_parallel import replicated
from parabench.strategies.fsdp import flat_mesh, grid_mesh, sharded


def tp(model: Model, context: StrategyContext) -> ParallelModel:
    """Split the layers over all ranks."""
    split_layers(model, context.case, flat_mesh(context))
    return ParallelModel(module=model.module, data_rank=0, data_ranks=1)


def tp_ddp(model: Model, context: StrategyContext) -> ParallelModel:
    """Use tensor parallel inside groups of tp_size consecutive ranks, and DistributedDataParallel between them."""
    # DDP supports only plain tensors, so it receives each rank's parts. `DistributedDataParallel(device_mesh=...)`
    # loses the module's parameters in the first forward (torch 2.13).
    mesh = grid_mesh(context, context.case.tp_size, ("dp", "tp"))
    split_layers(model, context.case, mesh["tp"])
    parts, data = Parts(model.module), mesh["dp"]
    return replace(
        replicated(parts, context, data.get_local_rank(), data.size(), process_group=data.get_group()),
        parameters=dict(zip(parts.names, parts.parts, strict=True)),
        full_tensor=parts.full_tensor,
        gradient_norm=lambda: norm_of(parts.placed(each, each.grad) for each in parts.parts if each.grad is not None),
    )


def tp_fsdp(model: Model, context: StrategyContext) -> ParallelModel:
    """Use tensor parallel inside groups of tp_size ranks, and FSDP2 between the groups (2-D in torchtitan)."""
    mesh = grid_mesh(context, context.case.tp_size, ("dp", "tp"))
    split_layers(model, context.case, mesh["tp"])
    data = mesh["dp"]
    return sharded(model, context, data, data.get_local_rank(), data.size())


def split_layers(model: Model, case: Case, mesh: DeviceMesh) -> None:
    """Apply the model's plan over the mesh. Raises UsageError if the model does not have one.

    If data is split by dimension, the first layer is split by rows, and its output is summed over ranks.
    """
    name = "sequence_parallel" if case.sequence_parallel else "tensor_parallel"
    plan: dict[str, ParallelStyle] = dict(getattr(model, name))
    if not plan:
        raise UsageError(f"model {case.model!r} has no {name} plan; give Model.{name}")
    if case.split == "dimension":
        if model.first is None:
            raise UsageError(
                f"model {case.model!r} has no layer that takes split features; give Model.first, or use split batch"
            )
        plan[model.first] = RowwiseParallel(input_layouts=Shard(-1))
    parallelize_module(model.module, mesh, plan)


class Parts(nn.Module):
    """A module with this rank's parts of the parameters of `whole`, as plain tensors in the same memory.

    `names` and `parameters()` have the same order.
    """

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        named = dict(whole.named_parameters())
        self.names = list(named)
        self.parts = nn.ParameterList(
            nn.Parameter(each.to_local().detach()) if isinstance(each, DTensor) else each for each in named.values()
        )
        self._layouts = {
            part: (parameter.device_mesh, parameter.placements, parameter.shape, parameter.stride())
            for part, parameter in zip(self.parts, named.values(), strict=True)
            if isinstance(parameter, DTensor)
        }
        # A tuple hides it from `modules()`, because DDP must not use its parameters.
        self._whole = (whole,)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call `whole` with this rank's parts as its parameters."""
        parameters = {name: self.placed(part, part) for name, part in zip(self.names, self.parts, strict=True)}
        return functional_call(self._whole[0], parameters, inputs, named)

    def placed(self, part: nn.Parameter, tensor: Tensor) -> Tensor:
        """Return `tensor`, which is `part` or its gradient, as a DTensor if it is sharded."""
        if part not in self._layouts:
            return tensor
        mesh, placements, shape, stride = self._layouts[part]
        return DTensor.from_local(tensor, mesh, placements, run_check=False, shape=shape, stride=stride)

    def full_tensor(self, part: nn.Parameter, tensor: Tensor) -> Tensor:
        """Gather and return the whole parameter or gradient of a part. A collective call."""
        placed = self.placed(part, tensor)
        return placed.full_tensor() if isinstance(placed, DTensor) else placed
