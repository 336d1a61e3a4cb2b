"""Tensor parallel: attention and MLP are split by columns and then by rows, with one all-reduce (Megatron-LM, 2019).

With sequence parallel (Korthikanti et al., 2022), each rank has a part of the sequence between the layers.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from parabench.strategies.data_parallel import bucket_facts, gradient_sync, replicate
from parabench.strategies.fsdp import flat_mesh, grid_mesh, sharded


def tp(model: Model, context: StrategyContext) -> ParallelModel:
    """Split the layers over all ranks."""
    split_layers(model, context, flat_mesh(context))
    return ParallelModel(module=model.module, data_rank=0, data_ranks=1)


def tp_ddp(model: Model, context: StrategyContext) -> ParallelModel:
    """Use tensor parallel inside groups of tp_size ranks, and DistributedDataParallel between the groups."""
    # DDP supports only plain tensors, so it receives each rank's parts. `DistributedDataParallel(device_mesh=...)`
    # loses the module's parameters in the first forward (torch 2.13).
    mesh = tensor_parallel_mesh(context)
    split_layers(model, context, mesh["tp"])
    parts = Parts(model.module)
    module = replicate(parts, context, process_group=mesh.get_group("dp"))
    return ParallelModel(
        module=module,
        data_rank=mesh["dp"].get_local_rank(),
        data_ranks=mesh["dp"].size(),
        parameters=dict(zip(parts.names, parts.parts, strict=True)),
        full_tensor=parts.full_tensor,
        gradient_norm=lambda: norm_of(parts.gradients()),
        gradient_sync=gradient_sync(module, context.case),
        facts=lambda: bucket_facts(module),
    )


def tp_fsdp(model: Model, context: StrategyContext) -> ParallelModel:
    """Use tensor parallel inside groups of tp_size ranks, and FSDP2 between the groups (2-D in torchtitan)."""
    mesh = tensor_parallel_mesh(context)
    split_layers(model, context, mesh["tp"])
    data = mesh["dp"]
    return sharded(model, context, data, data.get_local_rank(), data.size())


def tensor_parallel_mesh(context: StrategyContext) -> DeviceMesh:
    """Return a mesh with groups of `tp_size` consecutive ranks that share layers ("tp"), and groups across ("dp")."""
    return grid_mesh(context, context.case.tp_size or context.world_size, ("dp", "tp"))


def split_layers(model: Model, context: StrategyContext, among: DeviceMesh) -> None:
    """Apply the model's plan over the mesh `among`."""
    parallelize_module(model.module, among, plan_of(model, context.case))


def plan_of(model: Model, case: Case) -> dict[str, ParallelStyle]:
    """Return the model's plan for the case. Raises UsageError if the model does not have one.

    If data is split by dimension, the first layer is split by rows, and its output is summed over ranks.
    """
    plan = dict(model.sequence_parallel if case.sequence_parallel else model.tensor_parallel)
    if not plan:
        name = "sequence_parallel" if case.sequence_parallel else "tensor_parallel"
        raise UsageError(f"model {case.model!r} has no {name} plan; give Model.{name}")
    if case.split == "dimension":
        if model.first is None:
            raise UsageError(
                f"model {case.model!r} has no layer that takes split features; give Model.first, or use split batch"
            )
        plan[model.first] = RowwiseParallel(input_layouts=Shard(-1))
    return plan


class Parts(nn.Module):
    """A module with this rank's parts of the parameters of `whole`, as plain tensors in the same memory.

    `names` and `parameters()` have the same order.
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
        # A tuple hides it from `modules()`, because DDP must not use its parameters.
        self._whole = (whole,)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Compute `whole` with these parts."""
        parameters = {name: self.placed(part, part) for name, part in zip(self.names, self.parts, strict=True)}
        return functional_call(self._whole[0], parameters, inputs, named)

    def placed(self, part: nn.Parameter, tensor: Tensor) -> Tensor:
        """Return `tensor`, which is `part` or its gradient, as a DTensor if it is sharded."""
        if part not in self._layouts:
            return tensor
        mesh, placements, shape, stride = self._layouts[part]
        return DTensor.from_local(tensor, mesh, placements, run_check=False, shape=shape, stride=stride)

    def full_tensor(self, part: nn.Parameter, tensor: Tensor) -> Tensor:
        """Return the whole tensor. A collective call."""
        placed = self.placed(part, tensor)
        return placed.full_tensor() if isinstance(placed, DTensor) else placed

    def gradients(self) -> Iterator[Tensor]:
        """Yield the gradients, as DTensors if they are sharded."""
        for part in self.parts:
            if part.grad is not None:
                yield self.placed(part, part.grad)


def _part(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(parameter.to_local().detach()) if isinstance(parameter, DTensor) else parameter
