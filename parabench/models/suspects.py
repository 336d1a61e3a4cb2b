"""Properties of a model and its data that change correct training runs, relative to one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from parabench.models import BATCH_NORM, BUFFER, DROPOUT, IGNORED
from parabench.models.batches import targets_of, tensors_of


def suspects_of(module: nn.Module) -> list[str]:
    """Return the keys of `models.SUSPECTS` that the module has."""
    found = set()
    for each in module.modules():
        dropout = 0.0
        if isinstance(each, nn.modules.dropout._DropoutNd):
            dropout = each.p
        elif isinstance(each, (nn.RNNBase, nn.MultiheadAttention)):
            dropout = each.dropout
        if each.training and dropout > 0:
            found.add(DROPOUT)
        normalizes = isinstance(each, nn.modules.batchnorm._BatchNorm) and not isinstance(each, nn.SyncBatchNorm)
        if each.training and normalizes:
            found.add(BATCH_NORM)
    return sorted(found)


def ignores_labels(batch: Any) -> bool:
    """Return whether a batch has integer targets that torch's cross_entropy ignores."""
    targets = (each for each in tensors_of(targets_of(batch)) if each.dtype == torch.int64)
    return any(bool(torch.any(each == IGNORED)) for each in targets)


def buffer_suspect(names: Sequence[str]) -> list[str]:
    """Return the key of `models.SUSPECTS` for buffers with these names; empty without names."""
    return [f"{BUFFER}:{first_of(names)}"] if names else []


def first_of(names: Sequence[str]) -> str:
    """Return the first three names, and the number of further ones."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def copies_of_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of a module's buffers by name."""
    return {name: each.detach().clone() for name, each in module.named_buffers()}


def set_buffers(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Set the module's buffers to these values, in place."""
    with torch.no_grad():
        for name, each in module.named_buffers():
            if name in values:
                each.copy_(values[name])


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of the buffers that a forward may change and read.

    Running statistics of norms are left out, because training does not read them.
    """
    norms = {id(each) for part in module.modules() if isinstance(part, _NormBase) for each in part.buffers()}
    return {name: each.clone() for name, each in module.named_buffers() if id(each) not in norms}


def changed(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[str]:
    """Return the names of buffers that differ, or that are missing in `before` or `after`."""
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
