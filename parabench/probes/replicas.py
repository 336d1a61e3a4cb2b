"""Whether ranks that hold the same parameters still hold the same ones after training.

Data parallel keeps replicas equal to the last bit: every rank updates with the same reduced gradient. A reduction that
was left out, of one layer or in one late step, sets them apart at once, however small the difference in the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from parabench.probes import Probe, ProbeReport

if TYPE_CHECKING:
    from parabench.strategies.base import ParallelModel

# Elements that are weighted at once: on a device whole models fill, a parameter has no room for copies of 64 bits.
PIECE = 2**20
# Of each size of element the integer that has its bits.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
# Odd, and its multiples are spread over 64 bits: 2^64 over the golden ratio (Knuth, TAOCP 3, 6.4), as a signed integer.
SPREAD = 0x9E3779B97F4A7C15 - 2**64


class ReplicasProbe(Probe):
    """Checksums of a rank's parameters, where all ranks must end with the same."""

    def report(self, report: ProbeReport) -> None:
        report.checksums |= checksums(self.rank.parallel, self.rank.info.world_size)


def checksums(parallel: ParallelModel, world_size: int) -> dict[str, int]:
    """{parameter: checksum}, a collective call; nothing of a strategy other than pure data parallel, which alone
    promises equal replicas to the last bit."""
    if not parallel.data_ranks == world_size > 1 or parallel.parameters is None:
        return {}
    return fingerprints(parallel.parameters, parallel.full_tensor)


def fingerprints(
    parameters: Mapping[str, nn.Parameter], whole: Callable[[nn.Parameter, Tensor], Tensor]
) -> dict[str, int]:
    """{name: checksum of the whole parameter}; `whole` gathers what is sharded, so all ranks must call this."""
    sums = [checksum(whole(parameter, parameter.detach())) for parameter in parameters.values()]
    return dict(zip(parameters, torch.stack(sums).tolist(), strict=True)) if sums else {}


def checksum(tensor: Tensor) -> Tensor:
    """A 64-bit number of a tensor's bits, on its device: the sum of its elements' bits, each times a weight of its own.

    It wraps around. Weights are odd, which has an inverse modulo 2^64, so one element that differs always shows. They
    are scattered, so that several do not cancel but by chance; elements that change places have others.
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
    """A fact for `verify` of what `fingerprints` gave on each rank: the first parameter in which a rank's replica is
    not rank 0's, those ranks, and in how many parameters; nothing where all are equal."""
    first = checksums[0] if checksums else {}
    apart = {
        name: ranks
        for name, own in first.items()
        if (ranks := [rank for rank, each in enumerate(checksums) if each.get(name, own) != own])
    }
    if not apart:
        return {}
    name, ranks = next(iter(apart.items()))
    return {"replicas_apart": {"parameter": name, "ranks": ranks, "parameters": len(apart)}}
