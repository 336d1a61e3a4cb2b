"""Options of every model: activation checkpointing and torch.compile, block by block."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from parabench.models.model import Model
from parabench.plan.case import Case

# Inductor's own limit for a process.
MOST_COMPILE_THREADS = 32


def apply_options(model: Model, case: Case) -> None:
    """Change the model's blocks, or the whole module where it has none, in place: names and parameters stay."""
    blocks = model.blocks or [model.module]
    if case.compile:
        share_compile_threads()
    for block in blocks:
        # In this order: torch 2.13 fails to compile what is checkpointed over parameters that are DTensors.
        if case.compile:
            block.forward = torch.compile(block.forward)
        if case.activation_checkpointing:
            block.forward = checkpointed(block.forward)


def share_compile_threads() -> None:
    """Let the ranks of a node start as many compile workers together as it has cores, unless the user said how many.

    Inductor starts up to 32 for each rank (torch/_inductor/config.py, decide_compile_threads).
    """
    if "TORCHINDUCTOR_COMPILE_THREADS" in os.environ:
        return
    from torch._inductor import config

    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    config.compile_threads = max(1, min(MOST_COMPILE_THREADS, len(os.sched_getaffinity(0)) // ranks))


def checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """`forward`, whose activations are not kept but computed again in backward."""

    def again(*inputs: Any) -> Any:
        return checkpoint(forward, *inputs, use_reentrant=False)

    return again
