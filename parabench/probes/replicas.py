"""Whether ranks that hold the same parameters still hold the same ones after training.

Data parallel keeps replicas equal to the last bit: every rank updates with the same reduced gradient. A reduction that
was left out, of one layer or in one late step, sets them apart at once, however small the difference in the loss.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def fingerprints(
    parameters: Mapping[str, nn.Parameter], whole: Callable[[nn.Parameter, Tensor], Tensor]
) -> dict[str, int]:
    """{name: CRC-32 of the whole parameter's bytes}; `whole` gathers what is sharded, so all ranks must call this."""
    return {name: _crc(whole(parameter, parameter.detach())) for name, parameter in parameters.items()}


def _crc(tensor: Tensor) -> int:
    return zlib.crc32(tensor.contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes())


def replicas_apart(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A fact for `verify`: the first parameter in which a rank's replica is not rank 0's, those ranks, and in how many
    parameters; nothing where all are equal."""
    first: Mapping[str, int] = results[0].get("fingerprints", {}) if results else {}
    apart = {
        name: ranks
        for name, crc in first.items()
        if (ranks := [rank for rank, each in enumerate(results) if each.get("fingerprints", {}).get(name, crc) != crc])
    }
    if not apart:
        return {}
    name, ranks = next(iter(apart.items()))
    return {"replicas_apart": {"parameter": name, "ranks": ranks, "parameters": len(apart)}}
