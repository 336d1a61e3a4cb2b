"""A case's model before it is made parallel: the same parameters on every device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from parabench import Model
from parabench.models.factory import build_model
from parabench.models.options import move_model
from parabench.plan.case import Case
from parabench.strategies.base import RankInfo
from parabench.workloads import trainer

CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")
CASE = Case(strategy="single", world_size=1, device="cpu", data="synthetic", seq_len=8)


def test_prepare_builds_on_the_cpu_and_then_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[list[Tensor]] = []

    def building(case: Case, *, seed: int) -> Model:
        model = build_model(case, seed=seed)
        built.append([each.detach().clone() for each in model.module.parameters()])
        return model

    monkeypatch.setattr(trainer, "build_model", building)
    models = [trainer.prepare(CASE, RankInfo(0, 1, device))[0] for device in (CPU, ELSEWHERE)]
    for first, second in zip(*built, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert [{each.device for each in model.module.parameters()} for model in models] == [{CPU}, {ELSEWHERE}]


def test_move_model_moves_the_weights_of_the_loss() -> None:
    loss = nn.CrossEntropyLoss(weight=torch.ones(2))
    move_model(Model(module=nn.Linear(3, 2), loss=loss), ELSEWHERE)
    assert loss.weight is not None
    assert loss.weight.device == ELSEWHERE
