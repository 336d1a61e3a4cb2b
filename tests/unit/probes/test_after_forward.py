"""Callbacks after the forward of a module."""

import pytest
import torch
from torch import nn

from parabench.probes.ddp import after_forward


class Own(nn.Module):
    """A model of one layer. torch does not compile nn.Linear in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(inputs)
        return found


@pytest.mark.parametrize("compiled", [False, True])
def test_after_forward_reports_each_forward_in_the_block(compiled: bool) -> None:
    model, calls = Own(), list[int]()
    if compiled:
        model.compile(backend="eager", fullgraph=True)
    before = model._compiled_call_impl
    with after_forward(model, lambda: calls.append(1)):
        assert not model._forward_hooks
        model(torch.ones(1, 1))
    model(torch.ones(1, 1))
    assert calls == [1]
    assert model._compiled_call_impl is before


def test_after_forward_does_not_break_graphs() -> None:
    model, calls = nn.Linear(1, 1), list[int]()
    with after_forward(model, lambda: calls.append(1)):
        whole = torch.compile(lambda x: model(x).sum(), backend="eager", fullgraph=True)
        assert torch.equal(whole(torch.ones(1, 1)), model(torch.ones(1, 1)).sum())
    assert calls == [1]  # by the forward without compilation
