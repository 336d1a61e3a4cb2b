"""DeepSpeed through a fake package, and with the real package if it is installed."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from parabench import Model
from parabench.commands.list import contents, lines
from parabench.errors import UsageError
from parabench.plan.case import Case
from parabench.plan.plan import make_plan
from parabench.plan.protocol import Protocol
from parabench.plan.suite import Suite, sweep
from parabench.strategies.base import RankInfo, StrategyContext
from parabench.workloads import trainer as worker
from real_launches import verified
from rounding_helpers import FLOAT64_BOUND, wide
from trained_helpers import TRAINED_TOKENS, Marks

INSTALLED = importlib.util.find_spec("deepspeed") is not None


class Engine:
    """A fake of DeepSpeed's engine on one rank: it divides the loss by the parts, and steps after the last part."""

    def __init__(self, model: Any, optimizer: Any, config: dict[str, Any]) -> None:
        self.model, self.optimizer, self.config = model, optimizer, config
        self.calls: list[str] = []
        self.device_rank: int | None = None

    def __call__(self, inputs: torch.Tensor) -> Any:
        return self.model(inputs)

    def backward(self, loss: torch.Tensor) -> None:
        self.calls.append("backward")
        (loss / self.config["gradient_accumulation_steps"]).backward()

    def step(self) -> None:
        self.calls.append("step")
        if self.calls.count("step") % self.config["gradient_accumulation_steps"] == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    made: list[Engine] = []

    def initialize(
        *, args: Any, model: Any, optimizer: Any, dist_init_required: bool, config: dict[str, Any]
    ) -> tuple[Any, ...]:
        assert not dist_init_required
        # DeepSpeed asserts that a given local_rank is the environment's.
        assert not hasattr(args, "local_rank")
        made.append(Engine(model, optimizer, config))
        made[-1].device_rank = args.device_rank
        return made[-1], optimizer, None, None

    package, utils = ModuleType("deepspeed"), ModuleType("deepspeed.utils")
    package.initialize = initialize
    utils.safe_get_full_grad = lambda parameter: parameter.grad
    monkeypatch.setitem(sys.modules, "deepspeed", package)
    monkeypatch.setitem(sys.modules, "deepspeed.utils", utils)
    monkeypatch.delitem(sys.modules, "parabench.strategies.deepspeed", raising=False)
    return made


def built(**fields: Any) -> Any:
    case = Case(**({"device": "cpu", "backend": "gloo", "seq_len": 8} | fields))
    return worker.build(case, RankInfo(0, 1, torch.device("cpu")))


@pytest.fixture
def in_float64() -> Iterator[None]:
    with wide(Case()):
        yield


@pytest.mark.parametrize(("stage", "parts"), [(1, 1), (3, 2)])
def test_a_step_is_one_devices(stage: int, parts: int, engines: list[Engine], in_float64: None) -> None:
    small = {"model": "trained_helpers:small_gpt", "seq_len": TRAINED_TOKENS, "data": "synthetic"}
    mine = built(strategy=f"deepspeed{stage}", grad_accumulation=parts, **small)
    plain = built(strategy="single", **small)
    config = engines[0].config
    assert config["zero_optimization"] == {"stage": stage}
    assert config["train_micro_batch_size_per_gpu"] * parts == 8
    # Its default clips the gradient's norm at 1, which trains something else.
    assert config["gradient_clipping"] == 0
    for _ in range(2):
        losses = []
        for training in (mine, plain):
            moments = Marks()
            losses.append(float(training.compute(next(training.batches), moments)))
            assert moments.calls == (["skip"] if training is mine and parts > 1 else ["mark"])
        assert losses[0] == pytest.approx(losses[1], rel=FLOAT64_BOUND)
        assert mine.gradient_norm() == pytest.approx(plain.gradient_norm(), rel=FLOAT64_BOUND)
        for training in (mine, plain):
            training.optimizer.step()
            training.optimizer.zero_grad()
    assert engines[0].calls == ["backward", "step"] * parts * 2
    assert [p.grad for p in mine.parallel.parameters.values() if p.grad is not None and p.grad.any()] == []


@pytest.mark.parametrize(("device", "index"), [("cuda:3", 3), ("cpu", 0)])
def test_engine_uses_the_rank_s_device(device: str, index: int, engines: list[Engine]) -> None:
    zero = importlib.import_module("parabench.strategies.deepspeed").zero
    context = StrategyContext(7, 8, torch.device(device), Case(strategy="deepspeed1"))
    zero(Model(module=torch.nn.Linear(2, 2)), context)
    assert engines[0].device_rank == index


@pytest.mark.skipif(INSTALLED, reason="deepspeed is installed")
def test_without_the_package_it_is_named_with_the_remedy(machine: Any) -> None:
    suite = Suite(name="s", path=None, question="q", sweeps=(sweep(strategy="deepspeed2"),), protocol=Protocol())
    with pytest.raises(UsageError, match="strategy deepspeed2 needs a package that is not installed: pip install"):
        make_plan(suite, {}, Protocol(), machine, 0)
    assert [
        line for line in lines(contents()) if "deepspeed3" in line and "not installed: pip install deepspeed" in line
    ]


@pytest.mark.skipif(not INSTALLED, reason="deepspeed is not installed: pip install --no-build-isolation deepspeed")
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("fields", [{}, {"grad_accumulation": 2}, {"precision": "bf16-mixed"}], ids=str)
def test_the_package_itself_trains_as_one_device(stage: int, fields: dict[str, Any]) -> None:
    case = Case(strategy=f"deepspeed{stage}", world_size=2, device="cpu", backend="gloo", seq_len=16, **fields)
    protocol = Protocol(warmup=2, steps=3)
    seen = verified(case, protocol)
    assert not [sample for sample in seen.samples if sample.metric == "gradient_bytes"]
