"""Tensor parallel: attention and MLP are split column- then row-wise, so that one all-reduce closes each pair.

Shoeybi et al., "Megatron-LM", 2019. Norms, embeddings and the tied head are replicated, and every rank sees
the whole batch.
"""

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

from parabench.errors import UsageError
from parabench.models.model import Model
from parabench.strategies.recipe import Context, Parallel


def tp(model: Model, context: Context) -> Parallel:
    """Split the layers over all ranks."""
    place = context.place
    split_layers(model, context, init_device_mesh(place.device.type, (place.world_size,)))
    return Parallel(module=model.module, data_rank=0, data_ranks=1)


def split_layers(model: Model, context: Context, mesh: DeviceMesh) -> None:
    """Apply the model's plan over `mesh`."""
    plan = model.tensor_parallel
    if not plan:
        raise UsageError(f"model {context.case.model!r} has no tensor-parallel plan; give Model.tensor_parallel")
    parallelize_module(model.module, mesh, dict(plan))
