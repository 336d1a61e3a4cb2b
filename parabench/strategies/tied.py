"""Weights that stages on several ranks share, and that must train as one: GPT's token embedding is its head's too.

As Megatron-LM does it (Narayanan et al., 2021; `finalize_model_grads`): each rank holds a copy, and the copies'
gradients are added up, so that the same update keeps them the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup


class TiedGradients:
    """This rank's copies of what `holders` says that several ranks hold.

    A collective call: every rank joins in making the group of each set of ranks, its own or not.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], holders: Mapping[str, tuple[int, ...]]) -> None:
        shared = {name: holders[name] for name, each in parameters.items() if each.requires_grad}
        groups = {ranks: dist.new_group(list(ranks)) for ranks in sorted(set(shared.values())) if len(ranks) > 1}
        rank = dist.get_rank()
        self._copies: list[tuple[nn.Parameter, ProcessGroup]] = [
            (parameters[name], groups[ranks]) for name, ranks in shared.items() if ranks in groups and rank in ranks
        ]

    def add_up(self) -> None:
        """Make every copy's gradient the sum of all copies', after backward."""
        for parameter, group in self._copies:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)
