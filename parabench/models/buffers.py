"""Buffers of a module: copies of them, and which ones a forward changes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


def copies_of_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of a module's buffers by name."""
    return {name: each.detach().clone() for name, each in module.named_buffers()}


def set_buffers(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Give the module's buffers these values, in place."""
    with torch.no_grad():
        for name, each in module.named_buffers():
            if name in values:
                each.copy_(values[name])


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of the buffers that a forward may change and read. Running statistics of norms are left out: in
    training mode, forward changes them and does not read them."""
    norms = {id(each) for part in module.modules() if isinstance(part, _NormBase) for each in part.buffers()}
    return {name: each.clone() for name, each in module.named_buffers() if id(each) not in norms}


def changed(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the buffers that differ, or that one of both does not have."""
    return [
        name
        for name in dict.fromkeys((*before, *after))
        if name not in before or name not in after or not same(before[name], after[name])
    ]


def same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same bits, NaN included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return one.contiguous().view(-1).view(torch.uint8).equal(other.contiguous().view(-1).view(torch.uint8))
