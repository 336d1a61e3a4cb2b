"""What a strategy is given and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from parabench.case import Case


@dataclass(frozen=True, slots=True)
class Place:
    """Where this rank is."""

    rank: int
    world_size: int
    device: torch.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """A model made parallel. `data_rank` of `data_ranks` says which part of each global batch this rank takes.

    `facts` is read after training: how the strategy really ran (bucket sizes, units).
    """

    module: nn.Module
    data_rank: int
    data_ranks: int
    facts: Callable[[], dict[str, Any]] = field(default=dict)


@dataclass(frozen=True, slots=True)
class Context:
    """What a recipe may look at besides the model."""

    case: Case
    place: Place
