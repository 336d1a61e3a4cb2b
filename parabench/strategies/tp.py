"""Tensor parallel: attention and MLP are split column- then row-wise, so that one all-reduce closes each pair.

Shoeybi et al., "Megatron-LM", 2019. Norms, embeddings and the tied head are replicated, and every rank sees
the whole batch.
"""

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

from parabench.errors import UsageError
from parabench.models.model import Model
from parabench.strategies.recipe import Context, Parallel


def tp(model: Model, context: Context) -> Parallel:
    """Apply the model's plan to each of its blocks."""
    if not model.tensor_parallel:
        raise UsageError(f"model {context.case.model!r} has no tensor-parallel plan; give Model.tensor_parallel")
    place = context.place
    mesh = init_device_mesh(place.device.type, (place.world_size,))
    for block in model.blocks:
        parallelize_module(block, mesh, dict(model.tensor_parallel))
    return Parallel(module=model.module, data_rank=0, data_ranks=1)
