"""Reference models: exact sizes, learnable synthetic data, the same training however they are split."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from parabench.models import BLOCKS, FIRST, MODELS, SEQUENCE, TENSOR
from parabench.models.factory import build_model, check_model, outside, split_widths
from parabench.plan.case import Case

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ("gpt-nano", "mlp", "mnist", "toy")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread, as ranks do; small models are not faster with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", MODELS)
def test_the_table_tells_what_building_shows(name: str) -> None:
    entry = MODELS[name]
    with torch.device("meta"):
        model = build_model(Case(model=name))
    assert sum(parameter.numel() for parameter in model.module.parameters()) == entry.parameters
    assert (len(model.blocks), model.vocabulary) == (entry.blocks, entry.vocabulary)
    offered = {
        BLOCKS: model.blocks,
        TENSOR: model.tensor_parallel,
        SEQUENCE: model.sequence_parallel,
        FIRST: model.first,
    }
    assert {need for need, given in offered.items() if given} == entry.brings
    if entry.heads is None:
        assert split_widths(model.module, model.tensor_parallel) == entry.widths
    if model.first is not None:
        assert model.module.get_submodule(model.first).in_features == entry.features
    check_model(name, model)
    assert outside(model) is None


@pytest.mark.parametrize("name", SMALL)
def test_parts_in_order_are_the_whole(name: str) -> None:
    """Pipelines require this."""
    model = build_model(Case(model=name, seq_len=8))
    inputs, _ = model.batch(3, torch.Generator().manual_seed(0))
    x = inputs
    for part in [model.stem or nn.Identity(), *model.blocks, model.head or nn.Identity()]:
        x = part(x)
    assert torch.equal(x, model.module(inputs))


@pytest.mark.parametrize("name", SMALL)
def test_synthetic_data_is_seeded_and_can_be_learnt(name: str) -> None:
    torch.manual_seed(0)
    model = build_model(Case(model=name, seq_len=16))
    inputs, targets = model.batch(160, torch.Generator().manual_seed(1))
    for mine, again in zip((inputs, targets), model.batch(160, torch.Generator().manual_seed(1)), strict=True):
        assert mine.device.type == "cpu"
        assert torch.equal(mine, again)
    unseen = model.batch(32, torch.Generator().manual_seed(2))
    assert not torch.equal(inputs[:32], unseen[0])
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=3e-4)
    before = model.loss(model.module(unseen[0]), unseen[1]).item()
    for some, theirs in zip(inputs.split(16), targets.split(16), strict=True):
        model.loss(model.module(some), theirs).backward()
        optimizer.step()
        optimizer.zero_grad()
    # It is the rule that is learnt, not the samples.
    assert model.loss(model.module(unseen[0]), unseen[1]).item() < before
