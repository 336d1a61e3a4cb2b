"""The parts of a step that a model may define, gradient accumulation, and the model before it is made parallel."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zoo
from parabench import Model
from parabench.errors import UsageError
from parabench.models.factory import build_model
from parabench.models.options import move_model
from parabench.plan.case import Case
from parabench.strategies import base
from parabench.strategies.base import RankInfo, StrategyContext, clip_gradients, optimizer_for
from parabench.workloads import trainer
from parabench.workloads.trainer import Training
from trained_helpers import Marks

CPU = torch.device("cpu")
CASE = Case(strategy="single", device="cpu", data="synthetic", global_batch=8)


# -- optimizers -----------------------------------------------------------------------------------------------------


def test_optimizer_for_gives_adamw_over_what_is_trained() -> None:
    net = zoo.frozen_body().module
    made = optimizer_for(Model(module=net), net.parameters(), CASE)
    assert type(made) is torch.optim.AdamW
    (group,) = made.param_groups
    assert [id(each) for each in group["params"]] == [id(each) for each in net.parameters() if each.requires_grad]
    assert {name: group[name] for name in base.SETTINGS} == base.SETTINGS


def test_optimizer_for_calls_the_models_own_with_its_groups() -> None:
    model = zoo.own_step()
    made = optimizer_for(model, model.module.parameters(), CASE)
    assert type(made) is torch.optim.SGD
    assert [(len(group["params"]), group["weight_decay"]) for group in made.param_groups] == [(3, 0.1), (3, 0)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_optimizer", "optimizer gives NoneType; return a torch.optim.Optimizer from it"),
        ("closing", "LBFGS steps with a closure, and parabench's step has none; use another"),
    ],
)
def test_optimizer_for_refuses_what_cannot_step(name: str, message: str) -> None:
    model = getattr(zoo, name)()
    with pytest.raises(UsageError, match=message):
        optimizer_for(model, model.module.parameters(), CASE)


# -- clipping -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0.01, 1.0, 1e6])
def test_clip_gradients_does_what_torch_does(most: float) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    net(torch.randn(5, 4)).square().sum().backward()
    theirs = copy.deepcopy(net)
    for mine, its in zip(net.parameters(), theirs.parameters(), strict=True):
        its.grad = mine.grad.clone()
    norm = nn.utils.clip_grad_norm_(theirs.parameters(), most)
    clip_gradients(net.parameters(), float(norm), most)
    for mine, its in zip(net.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad, rtol=1e-6, atol=0)


def test_steps_clip_then_update_then_schedule() -> None:
    """The gradient is always 1. It is clipped to a half, and the rate halves after each step."""
    weight = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    training = Training(
        case=CASE,
        parallel=base.ParallelModel(module=nn.Identity(), data_rank=0, data_ranks=1),
        compute=lambda batch, clock: _backward(weight),
        optimizer=optimizer,
        batches=iter([(weight, weight)] * 3),
        gradient_norm=lambda: 1.0,
        clip=lambda: clip_gradients([weight], 1.0, 0.5),
        scheduler=zoo.halved(optimizer),
    )
    training.take(Marks(), 3)
    assert weight.item() == pytest.approx(-0.5 * (1 + 0.5 + 0.25), rel=1e-5)
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert training.grad_norm == 1.0


def _backward(loss: Tensor) -> Tensor:
    loss.backward()
    return loss.detach()


# -- parts of a batch -----------------------------------------------------------------------------------------------


def computed(model: Model, batch: Any, data_rank: int = 0, **fields: Any) -> list[float]:
    """Return the losses of two steps on a batch, computed with these fields of the case."""
    case = Case(**{"device": "cpu", "data": "synthetic", "global_batch": 8, **fields})
    context = StrategyContext(data_rank, case.world_size, CPU, case)
    compute = base.ForwardBackward(module=model.module, model=model, context=context, data_rank=data_rank)
    return [float(compute(batch, Marks())) for _ in range(2)]


def test_accumulated_gradients_equal_the_whole_batch() -> None:
    model = zoo.model(zoo.chain(), loss=lambda out, y: nn.functional.cross_entropy(out, y).reshape(1))
    batch = zoo.features(8, torch.Generator().manual_seed(0))
    whole = computed(model, batch, strategy="single")
    gradients = [each.grad.clone() for each in model.module.parameters()]
    model.module.zero_grad()
    assert computed(model, batch, strategy="single", grad_accumulation=4) == pytest.approx(whole, rel=1e-5)
    for mine, expected in zip(model.module.parameters(), gradients, strict=True):
        torch.testing.assert_close(mine.grad, expected, rtol=1e-4, atol=1e-6)


def test_same_split_draws_the_same_numbers_for_a_part() -> None:
    model = zoo.dropout()
    batch = zoo.features(8, torch.Generator().manual_seed(0))
    halves = [tuple(each[rows] for each in batch) for rows in (slice(4), slice(4, 8))]
    level = {"verification": "same_split"}
    ranks = [
        computed(model, half, rank, world_size=2, grad_accumulation=2, **level) for rank, half in enumerate(halves)
    ]
    one = computed(model, batch, strategy="single", grad_accumulation=4, **level)
    assert [sum(each) / 2 for each in zip(*ranks, strict=True)] == pytest.approx(one, rel=1e-6)
    assert one[0] != one[1]
    assert computed(model, batch, strategy="single", grad_accumulation=4, seed=1, **level) != one


# -- before the model is made parallel --------------------------------------------------------------------------------

META = torch.device("meta")
UNBUILT = Case(strategy="single", world_size=1, device="cpu", data="synthetic", seq_len=8)


def test_prepare_builds_on_the_cpu_and_then_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[list[Tensor]] = []

    def building(case: Case, *, seed: int) -> Model:
        model = build_model(case, seed=seed)
        built.append([each.detach().clone() for each in model.module.parameters()])
        return model

    monkeypatch.setattr(trainer, "build_model", building)
    models = [trainer.prepare(UNBUILT, RankInfo(0, 1, device))[0] for device in (CPU, META)]
    for first, second in zip(*built, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert [{each.device for each in model.module.parameters()} for model in models] == [{CPU}, {META}]


def test_move_model_moves_the_weights_of_the_loss() -> None:
    loss = nn.CrossEntropyLoss(weight=torch.ones(2))
    move_model(Model(module=nn.Linear(3, 2), loss=loss), META)
    assert loss.weight is not None
    assert loss.weight.device == META
