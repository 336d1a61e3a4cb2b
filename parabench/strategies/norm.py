"""The L2 norm of a gradient that ranks may hold in parts: each rank adds up its own, then one number is reduced.

Nothing is gathered, and squares are taken piece by piece: the norm is read in a warm-up step, and it must not be what
the step's memory was largest for, nor leave torch's allocator with blocks that training never asks for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

# Elements that are squared at once. `torch.linalg.vector_norm(dtype=float64)` first copies a float32 tensor to float64
# (ATen/native/ReduceOpsUtils.h, make_reduction), so this bounds the copy: 8 MiB.
PIECE = 2**20


def squares_of(tensor: Tensor) -> Tensor:
    """The sum of squares of a plain tensor, as a float64 scalar on its device."""
    total = torch.zeros((), dtype=torch.float64, device=tensor.device)
    tensor = tensor.detach()
    if tensor.dim() == 0:
        tensor = tensor.reshape(1)
    # By rows, which no layout has to be copied for.
    rows = max(1, PIECE // max(1, math.prod(tensor.shape[1:])))
    for piece in tensor.split(rows):
        total += torch.linalg.vector_norm(piece, dtype=torch.float64).square()
    return total


def norm_of(gradients: Iterable[Tensor]) -> float:
    """L2 norm of all gradients together: plain ones, which every rank has whole, and DTensors, of which it has parts.

    With DTensors among them it is a collective call of all ranks. Each shard is on as many ranks as there are over the
    number of shards, whether by a mesh dimension that replicates it or by other meshes beside it, so each of these
    ranks adds that fraction of its squares.
    """
    whole: Tensor | float = 0.0
    parts: Tensor | None = None
    for gradient in gradients:
        if not isinstance(gradient, DTensor):
            whole = whole + squares_of(gradient)
            continue
        summed = [Replicate() if each.is_partial() else each for each in gradient.placements]
        if summed != list(gradient.placements):
            gradient = gradient.redistribute(placements=summed)
        mesh = gradient.device_mesh
        shards = math.prod(mesh.size(at) for at, each in enumerate(summed) if not each.is_replicate())
        own = squares_of(gradient.to_local()) * (shards / dist.get_world_size())
        parts = own if parts is None else parts + own
    if parts is not None:
        dist.all_reduce(parts)
        whole = whole + parts
    return math.sqrt(float(whole))


def norm_over_ranks(gradients: Iterable[Tensor], device: torch.device) -> float:
    """L2 norm of the gradients that all ranks hold, each counted by one of them. A collective call."""
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for gradient in gradients:
        squares += squares_of(gradient)
    dist.all_reduce(squares)
    return math.sqrt(float(squares))
