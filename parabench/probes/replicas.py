"""Check whether replicas of parameters are equal after training.

With data parallel, replicas are bitwise equal. If a reduction is missing, they differ, even if the losses are similar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from parabench.strategies.base import ParallelModel, full_tensor

# The weights repeat after this number of elements, because those of a whole parameter may not fit.
PIECE = 2**18
# {bytes of an element: the integer type of this size}
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
# Odd, and its multiples are spread over 64 bits: 2^64 over the golden ratio (Knuth, TAOCP 3, 6.4), as a signed integer.
SPREAD = 0x9E3779B97F4A7C15 - 2**64


def checksums(parallel: ParallelModel, world_size: int) -> dict[str, int]:
    """Return the `fingerprints` of a pure data-parallel model; {} for others, whose replicas may differ in bits.

    All ranks must call this, because the `full_tensor` of a strategy may communicate.
    """
    if not parallel.data_ranks == world_size > 1 or parallel.parameters is None:
        return {}
    if parallel.full_tensor is full_tensor:
        return fingerprints(parallel.parameters)
    return fingerprints({name: parallel.full_tensor(each, each.detach()) for name, each in parallel.parameters.items()})


def fingerprints(parameters: Mapping[str, Tensor]) -> dict[str, int]:
    """Return {name: checksum} of this rank's parameters or shards. Ranks with the same name hold replicas.

    Shards without a replica are left out.
    """
    # Do not use `DTensor.full_tensor`: it calls `allgather_into_tensor_coalesced_`, and gloo would read CUDA pointers
    # on the host (pytorch/pytorch#132471).
    sums = {}
    for name, tensor in parameters.items():
        if not isinstance(tensor, DTensor):
            sums[name] = checksum(tensor.detach())
        elif any(each.is_replicate() and tensor.device_mesh.size(at) > 1 for at, each in enumerate(tensor.placements)):
            coordinates: Sequence[int] = tensor.device_mesh.get_coordinate() or ()
            sharded = [at for at, each in enumerate(tensor.placements) if not each.is_replicate()]
            shards = (f" (shard {coordinates[at] + 1} of {tensor.device_mesh.size(at)})" for at in sharded)
            sums["".join([name, *shards])] = checksum(tensor.to_local().detach())
    return dict(zip(sums, torch.stack([*sums.values()]).tolist(), strict=True)) if sums else {}


def checksum(tensor: Tensor) -> Tensor:
    """Return a 64-bit checksum of a tensor, on its device: the weighted sum of its elements' bits, modulo 2^64."""
    bits = tensor.contiguous().view(-1).view(INTEGERS.get(tensor.element_size(), torch.int64))
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for piece in bits.split(PIECE):
        total.mul_(SPREAD).add_((weights(tensor.device)[: piece.numel()] * piece).sum())
    return total


@cache
def weights(device: torch.device) -> Tensor:
    """Return the 64-bit weights of PIECE elements."""
    # They are odd, so they have an inverse, and one different element always changes the sum. They are scattered, so
    # that several differences cancel only by chance.
    numbers = torch.arange(PIECE, device=device).mul_(SPREAD)
    return numbers.bitwise_xor_(numbers >> 32).mul_(SPREAD).bitwise_or_(1)


def replicas_apart(checksums: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    """Compare the `fingerprints` of all ranks. Return {"replicas_apart": difference}, or {} if they are equal.

    The difference has the first "parameter" that differs from the lowest rank's replica, the "ranks" with other values,
    and the number of such "parameters".
    """
    first: dict[str, int] = {}
    apart: dict[str, list[int]] = {}
    for rank, each in enumerate(checksums):
        for name, value in each.items():
            if first.setdefault(name, value) != value:
                apart.setdefault(name, []).append(rank)
    if not apart:
        return {}
    name = next(name for name in first if name in apart)
    return {"replicas_apart": {"parameter": name, "ranks": apart[name], "parameters": len(apart)}}
