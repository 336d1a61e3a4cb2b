"""Options of every model: activation checkpointing and torch.compile, block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from parabench.case import Case
from parabench.models.model import Model


def apply_options(model: Model, case: Case) -> None:
    """Change the model's blocks, or the whole module where it has none, in place: names and parameters stay."""
    blocks = model.blocks or [model.module]
    for block in blocks:
        # In this order: torch 2.13 fails to compile what is checkpointed over parameters that are DTensors.
        if case.compile:
            block.forward = torch.compile(block.forward)
        if case.activation_checkpointing:
            block.forward = checkpointed(block.forward)


def checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """`forward`, whose activations are not kept but computed again in backward."""

    def again(*inputs: Any) -> Any:
        return checkpoint(forward, *inputs, use_reentrant=False)

    return again
