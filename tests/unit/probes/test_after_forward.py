"""What is told of a module's forwards, and what is not to be changed by it."""

from __future__ import annotations

import torch
from torch import nn

from parabench.probes.ddp import after_forward


class Own(nn.Module):
    """A model of one layer, which torch compiles in place; nn.Linear alone it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(inputs)
        return found


def test_every_forward_is_told_while_the_block_runs() -> None:
    model, told = nn.Linear(1, 1), list[int]()
    with after_forward(model, lambda: told.append(1)):
        model(torch.ones(1, 1))
    model(torch.ones(1, 1))
    assert told == [1]


def test_after_forward_works_when_compiled_in_place() -> None:
    model, told = Own(), list[int]()
    model.compile(backend="eager", fullgraph=True)
    compiled = model._compiled_call_impl
    with after_forward(model, lambda: told.append(1)):
        assert not model._forward_hooks
        model(torch.ones(1, 1))
    assert told == [1]
    assert model._compiled_call_impl is compiled


def test_no_graph_breaks_at_it() -> None:
    model, told = nn.Linear(1, 1), list[int]()
    with after_forward(model, lambda: told.append(1)):
        whole = torch.compile(lambda x: model(x).sum(), backend="eager", fullgraph=True)
        assert torch.equal(whole(torch.ones(1, 1)), model(torch.ones(1, 1)).sum())
    assert told == [1]  # by the forward that was not compiled
