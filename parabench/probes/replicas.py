"""Check whether replicas of parameters are equal after training.

Data parallel keeps replicas equal to the last bit, because every rank updates with the same reduced gradient. A missing
reduction, of one layer or in one late step, makes them differ, however small the difference in the loss is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from parabench.strategies.base import ParallelModel, full_tensor

# Elements that are weighted at once: a full device has no room for 64-bit copies of a parameter.
PIECE = 2**20
# {bytes of an element: the integer type of this size}
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
# Odd, and its multiples are spread over 64 bits: 2^64 over the golden ratio (Knuth, TAOCP 3, 6.4), as a signed integer.
SPREAD = 0x9E3779B97F4A7C15 - 2**64


def checksums(parallel: ParallelModel, world_size: int) -> dict[str, int]:
    """Return `fingerprints` of a pure data-parallel model, which alone promises bitwise equal replicas; else nothing.

    All ranks must call this: a strategy's own `full_tensor` communicates.
    """
    if not parallel.data_ranks == world_size > 1 or parallel.parameters is None:
        return {}
    if parallel.full_tensor is full_tensor:
        return fingerprints(parallel.parameters)
    return fingerprints({name: parallel.full_tensor(each, each.detach()) for name, each in parallel.parameters.items()})


def fingerprints(parameters: Mapping[str, Tensor]) -> dict[str, int]:
    """Return {name: checksum} of what this rank holds. The name of a shard says which shard it is, so that ranks with
    equal names hold replicas; a shard without a replica is left out.

    Nothing is gathered. `DTensor.full_tensor` would call `allgather_into_tensor_coalesced_`, and gloo reads CUDA
    pointers on the host there (pytorch/pytorch#132471).
    """
    sums = {}
    for name, tensor in parameters.items():
        if not isinstance(tensor, DTensor):
            sums[name] = checksum(tensor.detach())
        elif any(each.is_replicate() and tensor.device_mesh.size(at) > 1 for at, each in enumerate(tensor.placements)):
            sums[name + _shard(tensor)] = checksum(tensor.to_local().detach())
    return dict(zip(sums, torch.stack([*sums.values()]).tolist(), strict=True)) if sums else {}


def _shard(tensor: DTensor) -> str:
    """Return which shard this rank holds, such as " (shard 1 of 2)": its coordinates along the sharded dimensions."""
    coordinates: Sequence[int] = tensor.device_mesh.get_coordinate() or ()
    sharded = [at for at, each in enumerate(tensor.placements) if not each.is_replicate()]
    shards = (f" (shard {coordinates[at] + 1} of {tensor.device_mesh.size(at)})" for at in sharded)
    return "".join(shards)


def checksum(tensor: Tensor) -> Tensor:
    """Return a 64-bit checksum of a tensor, on its device: the sum of its elements' bits, each times a different
    weight.

    It wraps around. Weights are odd and so have an inverse modulo 2^64: one different element always changes the sum.
    They are scattered, so that several differences cancel only by chance.
    """
    bits = tensor.contiguous().view(-1).view(INTEGERS.get(tensor.element_size(), torch.int64))
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, bits.numel(), PIECE):
        piece = bits[start : start + PIECE].to(torch.int64)
        weights = torch.arange(start, start + piece.numel(), device=tensor.device).mul_(SPREAD)
        weights = weights.bitwise_xor_(weights >> 32).mul_(SPREAD).bitwise_or_(1)
        total += weights.mul_(piece).sum()
    return total


def replicas_apart(checksums: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    """Compare the `fingerprints` of all ranks, in order. Return the fact that `verify` reads: the first parameter that
    differs from the lowest rank's replica, the ranks where it differs, and how many parameters differ; or nothing."""
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
