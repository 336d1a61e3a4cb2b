"""The axis `precision`: settings of a rank, steps with a scaled loss, refused values and warnings."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import fake_results as fake
from answers_helpers import check
from parabench.models import PRECISIONS, options
from parabench.models.factory import build_model
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.store.record import Status
from parabench.strategies.base import FIRST_SCALE, GROWTH_INTERVAL, LossScale, adamw
from parabench.workloads.verify import reference_of, verify
from real_launches import launched, succeeded
from trained_helpers import TRAINED_TOKENS

CPU = torch.device("cpu")
SHORT = Protocol(warmup=2, steps=6, instrumented=1)


def case(**fields: Any) -> Case:
    return Case(**({"device": "cpu", "backend": "gloo", "data": "synthetic", "seq_len": 16} | fields))


# -- settings of a rank


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Restore torch's settings after the test."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    for name in options.OVERRIDES:
        monkeypatch.delenv(name, raising=False)
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


@pytest.mark.parametrize(
    ("precision", "matmul", "cudnn"),
    [("ieee", "highest", False), ("tf32", "high", True), ("bf16-mixed", "highest", False)],
)
def test_matrix_products_and_convolutions_are_set_alike(
    precision: str, matmul: str, cudnn: bool, settings: None
) -> None:
    each = case(precision=precision)
    options.set_arithmetic(build_model(each), each)
    assert options.arithmetic_of(None) == {"arithmetic": {"matmul": matmul, "cudnn_tf32": cudnn, "overrides": {}}}
    # Torch's newer names for the same.
    assert torch.backends.cuda.matmul.fp32_precision == {"highest": "ieee", "high": "tf32"}[matmul]
    assert (torch.backends.cudnn.conv.fp32_precision == "tf32") is cudnn


def test_settings_that_override_torch_are_reported(settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    assert options.arithmetic_of(3)["arithmetic"]["overrides"] == {"NVIDIA_TF32_OVERRIDE": "1"}
    assert options.arithmetic_of(3)["arithmetic"]["steps_left_out"] == 3


# -- a scaled loss ---------------------------------------------------------------------------------------------------


def scaled(gradient: float) -> tuple[nn.Parameter, LossScale]:
    parameter = nn.Parameter(torch.ones(3))
    steps = LossScale(adamw([parameter], fused=True), CPU)
    parameter.grad = torch.full((3,), gradient * steps.scale)
    return parameter, steps


def test_step_uses_the_gradient_without_its_scale() -> None:
    parameter, steps = scaled(0.25)
    alone = nn.Parameter(torch.ones(3))
    alone.grad = torch.full((3,), 0.25)
    adamw([alone], fused=True).step()
    steps.step()
    assert torch.equal(parameter, alone)
    assert (steps.left_out, steps.scale) == (0, FIRST_SCALE)


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
def test_a_step_that_overflowed_is_left_out_and_the_scale_halved(wrong: float) -> None:
    parameter, steps = scaled(1.0)
    parameter.grad[1] = wrong
    steps.step()
    assert torch.equal(parameter, torch.ones(3))
    assert (steps.left_out, steps.scale) == (1, FIRST_SCALE / 2)


def test_scale_grows_after_steps_without_overflow() -> None:
    _, steps = scaled(1e-6)
    for _ in range(GROWTH_INTERVAL):
        assert steps.scale == FIRST_SCALE
        steps.step()
    assert steps.scale == 2 * FIRST_SCALE


# -- real ranks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bf16-true", "fp16-mixed"])
def test_ranks_train_as_one_device_does_in_the_same_precision(precision: str) -> None:
    small = {"model": "trained_helpers:small_gpt", "seq_len": TRAINED_TOKENS, "precision": precision}
    alone = succeeded(case(strategy="single", **small), SHORT)
    bytes_of_one = {s.metric: s.value for s in alone.samples if s.metric == "parameter_bytes"}["parameter_bytes"]
    numbers = alone.facts["model"]["parameters"]
    assert bytes_of_one == numbers * {"bfloat16": 2, "float32": 4}[PRECISIONS[precision].parameters]
    for strategy in ("ddp", "fsdp"):
        seen = launched(case(strategy=strategy, world_size=2, **small), SHORT)
        verify(seen, reference_of(alone))
        assert seen.status is Status.OK, seen.failure
        assert ("steps_left_out" in seen.facts["arithmetic"]) is PRECISIONS[precision].scaled


# -- warnings


@pytest.mark.parametrize(
    ("precision", "told", "said"),
    [
        ("ieee", {"matmul": "highest", "cudnn_tf32": False, "overrides": {}}, None),
        ("tf32", {"matmul": "high", "cudnn_tf32": True, "overrides": {}}, None),
        ("ieee", {"matmul": "high", "cudnn_tf32": False, "overrides": {}}, "ran at torch's precision 'high'"),
        ("ieee", {"matmul": "highest", "cudnn_tf32": True, "overrides": {}}, "cuDNN's TF32 was on"),
        (
            "ieee",
            {"matmul": "highest", "cudnn_tf32": False, "overrides": {"NVIDIA_TF32_OVERRIDE": "1"}},
            "NVIDIA_TF32_OVERRIDE=1 was set",
        ),
    ],
)
def test_another_arithmetic_than_the_cases_is_found(
    precision: str, told: dict[str, Any], said: str | None, tmp_path: Any
) -> None:
    each = fake.case(device="cuda", backend="nccl", world_size=2, precision=precision)
    results = fake.write(tmp_path / "r.db", [fake.launch(each, 0.01, facts={"arithmetic": told})])
    found = [finding.message for finding in check(results) if finding.code == "other_arithmetic"]
    assert len(found) == (said is not None)
    assert all(said in message for message in found)
