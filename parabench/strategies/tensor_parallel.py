"""Tensor parallel: attention and MLP are split column- then row-wise, so that one all-reduce closes each pair.

Shoeybi et al., "Megatron-LM", 2019. Norms, embeddings and the tied head are replicated, and every rank sees
the whole batch. With sequence parallel (Korthikanti et al., "Reducing activation recomputation in large transformer
models", 2022) each rank has its part of the sequence between the layers: all-gather before each pair and
reduce-scatter after it carry together what the all-reduce did, and what the norms see is split too.
"""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ParallelStyle, RowwiseParallel, parallelize_module

from parabench.errors import UsageError
from parabench.models.model import Model
from parabench.plan.case import Case
from parabench.strategies import mesh
from parabench.strategies.base import ParallelModel, StrategyContext


def tp(model: Model, context: StrategyContext) -> ParallelModel:
    """Split the layers over all ranks."""
    split_layers(model, context, mesh.line(context))
    return ParallelModel(module=model.module, data_rank=0, data_ranks=1)


def split_layers(model: Model, context: StrategyContext, among: DeviceMesh) -> None:
    """Apply the model's plan over the mesh `among`."""
    parallelize_module(model.module, among, plan_of(model, context.case))


def plan_of(model: Model, case: Case) -> dict[str, ParallelStyle]:
    """The model's plan as the case wants it. Raises UsageError where the model has none.

    Where data is split by dimension, a rank is fed its features only: the first layer's rows belong to it, and its
    output is summed over the ranks, so what comes after must take it whole.
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


def grid(context: StrategyContext) -> DeviceMesh:
    """Ranks in groups of `tp_size` consecutive ones that share layers ("tp"), and across those groups ("dp")."""
    inside = context.case.tp_size or context.world_size
    return mesh.grid(context, inside, ("dp", "tp"))
