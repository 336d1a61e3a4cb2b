"""Properties of a model and its data that make correct training runs differ from one device's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from parabench.models import BATCH_NORM, BUFFER, DROPOUT, IGNORED
from parabench.models.batches import targets_of, tensors_of


def suspects_of(module: nn.Module) -> list[str]:
    """Return the keys of `models.SUSPECTS` that the module has."""
    return sorted({key for each in module.modules() for key in _suspects(each)})


def _suspects(module: nn.Module) -> Iterator[str]:
    if not module.training:
        return
    if isinstance(module, nn.modules.dropout._DropoutNd):
        share = module.p
    else:
        share = module.dropout if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)) else 0.0
    if share > 0:
        yield DROPOUT
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, nn.SyncBatchNorm):
        yield BATCH_NORM


def ignores_labels(batch: Any) -> bool:
    """Return whether a batch has integer targets that torch's cross_entropy ignores."""
    targets = (each for each in tensors_of(targets_of(batch)) if each.dtype == torch.int64)
    return any(bool(torch.any(each == IGNORED)) for each in targets)


def buffer_suspect(names: Sequence[str]) -> list[str]:
    """Return the key of `models.SUSPECTS` for buffers of these names; nothing if there are none."""
    return [f"{BUFFER}:{first_of(names)}"] if names else []


def first_of(names: Sequence[str], most: int = 3) -> str:
    """Return the first few names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
