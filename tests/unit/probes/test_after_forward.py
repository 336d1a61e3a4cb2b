"""What is told of a module's forwards, and what is not to be changed by it."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
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


def test_a_model_that_is_compiled_in_place_is_told_of_around_that() -> None:
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


def test_a_copy_of_the_model_is_a_model_of_its_own() -> None:
    model, told = Own(), list[int]()
    with after_forward(model, lambda: told.append(1)):
        file = io.BytesIO()
        torch.save(model, file)
        loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
            other.layer.weight.data.fill_(2.0)
            other.layer.bias.data.zero_()
            assert other(torch.ones(1, 1)).item() == 2.0
            assert other._compiled_call_impl is None
        assert b"parabench" not in file.getvalue().replace(Own.__module__.encode(), b"")
    assert not told


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_model_can_be_traced_and_exported() -> None:
    model, told, one = Own(), list[int](), torch.ones(1, 1)
    with after_forward(model, lambda: told.append(1)):
        expected = model(one)
        assert torch.equal(torch.jit.trace(model, one)(one), expected)
        assert torch.equal(torch.export.export(model, (one,)).module()(one), expected)
        assert torch.equal(torch.func.functional_call(model, dict(model.named_parameters()), one), expected)
    assert told
    assert model._compiled_call_impl is None


class Wrapped(nn.Module):
    """A model whose attributes are, once it is made, those of the model within, as some wrappers have it; without one
    they cannot be set any more."""

    def __init__(self, within: nn.Module | None) -> None:
        super().__init__()
        self.layer = within or nn.Linear(1, 1)
        self.__dict__["made_of"] = within

    def __setattr__(self, name: str, value: Any) -> None:
        if "made_of" not in self.__dict__:
            super().__setattr__(name, value)
        elif self.made_of is None:
            raise AttributeError(f"{name} is not to be set")
        else:
            setattr(self.layer, name, value)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(inputs)
        return found


@pytest.mark.parametrize("within", [None, Own()])
def test_a_model_that_sets_attributes_in_its_own_way_is_told_of(within: nn.Module | None) -> None:
    model, told = Wrapped(within), list[int]()
    with after_forward(model, lambda: told.append(1)):
        model(torch.ones(1, 1))
    model(torch.ones(1, 1))
    assert told == [1]
