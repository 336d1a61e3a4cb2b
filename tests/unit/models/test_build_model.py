"""Custom models: reproducible in each process, and changed for the case."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zoo
from parabench import Model
from parabench.machine.machine import Machine
from parabench.models import BATCH_NORM, DROPOUT
from parabench.models.base import loss_of, suspects_of
from parabench.models.factory import build_model
from parabench.models.options import set_arithmetic
from parabench.plan.case import Case
from parabench.plan.validate import missing_requirement


def case_of(model: str, **fields: Any) -> Case:
    return Case(model=model, device="cpu", data="synthetic", seq_len=1, **fields)


def weights(model: Model) -> list[list[float]]:
    return [each.flatten().tolist() for each in model.module.parameters()]


@pytest.mark.parametrize("name", ["plain", "drawn_by_numpy", "drawn_by_python"])
def test_build_model_draws_the_same_numbers_again(name: str) -> None:
    case = case_of(f"zoo:{name}")
    first, second = (weights(build_model(case, seed=seed)) for seed in (3, 3))
    assert first == second
    assert weights(build_model(case, seed=4)) != first


def test_build_model_seeds_after_the_module_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "drawing.py").write_text("import torch\nfrom zoo import plain\nNOISE = torch.randn(5)\n")
    monkeypatch.syspath_prepend(tmp_path)
    first, second = (weights(build_model(case_of("drawing:plain"), seed=0)) for _ in range(2))
    assert first == second


def test_bfloat16_keeps_complex_and_integer_buffers() -> None:
    model = zoo.complex_buffer()
    model.module.register_buffer("counts", torch.arange(3))
    set_arithmetic(model, case_of("zoo:complex_buffer", precision="bf16-true"))
    kinds = {name: each.dtype for name, each in model.module.named_buffers()}
    assert kinds == {"1.turns": torch.complex64, "counts": torch.int64}
    assert {each.dtype for each in model.module.parameters()} == {torch.bfloat16}


# -- forward and loss -----------------------------------------------------------------------------------------------


class Output(dict[str, Tensor]):
    pass


@pytest.mark.parametrize("output", [Output(loss=torch.tensor(2.0)), zoo.Output(torch.zeros(1), torch.tensor(2.0))])
def test_loss_of_takes_the_loss_from_the_output(output: Any) -> None:
    model = Model(module=nn.Linear(1, 1))
    assert loss_of(model, output, (0, 1)).item() == 2.0


def test_loss_gets_targets_of_a_pair_or_the_whole_batch() -> None:
    model = Model(module=nn.Linear(1, 1), loss=lambda output, targets: (output, targets))
    assert loss_of(model, 1, (2, 3)) == (1, 3)
    assert loss_of(model, 1, (2, 3, 4)) == (1, (2, 3, 4))


# -- suspects --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Dropout(0.1), [DROPOUT]),
        (nn.Dropout(0.0), []),
        (nn.Dropout(0.1).eval(), []),
        (nn.LSTM(2, 2, num_layers=2, dropout=0.5), [DROPOUT]),
        (nn.MultiheadAttention(4, 2, dropout=0.5), [DROPOUT]),
        (nn.TransformerEncoderLayer(4, 2, dropout=0.0), []),
        (nn.Sequential(nn.BatchNorm2d(2), nn.Dropout2d(0.5)), [BATCH_NORM, DROPOUT]),
        (nn.BatchNorm2d(2).eval(), []),
        (nn.SyncBatchNorm(2), []),
    ],
)
def test_suspects_of_finds_dropout_and_batch_norm(module: nn.Module, expected: list[str]) -> None:
    assert suspects_of(module) == expected


# -- strategies that take their own steps ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"strategy": "parameter_server_async"},
            "trains with AdamW alone, and model zoo:own_step has its own; use ddp",
        ),
        ({"strategy": "deepspeed1"}, "takes no clip_norm or scheduler of model zoo:own_step; use fsdp"),
        ({"strategy": "ddp", "precision": "fp16-mixed"}, "scales the loss, without clip_norm or scheduler"),
        ({"strategy": "ddp"}, None),
    ],
)
def test_missing_requirement_names_unsupported_step_parts(fields: dict[str, Any], reason: str | None) -> None:
    lacking = missing_requirement(case_of("zoo:own_step", world_size=2, **fields), Machine(cores=2))
    assert lacking is None if reason is None else reason in str(lacking)
