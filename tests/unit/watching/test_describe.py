"""The configuration of a watched loop, from its model, optimizer and batches."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from parabench.models import IEEE
from parabench.plan.case import Case
from parabench.watching.describe import OWN_STRATEGY, name_of, precision_of, size_of, strategy_of
from parabench.watching.group import Group
from parabench.watching.observer import Observer
from parabench.watching.schedule import Schedule


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(8, 32, dtype=torch.long), (8, 32)),
        ((torch.zeros(8, 3, 32, 32), torch.zeros(8, dtype=torch.long)), (8, 1)),
        ({"input_ids": torch.zeros(4, 128, dtype=torch.long), "labels": torch.zeros(4, 128)}, (4, 128)),
        ([["a", "b"], torch.tensor(3.0)], None),
        (["a", "b"], None),
        (torch.zeros(0, 3), None),
        (torch.zeros(5, 7), (5, 1)),
    ],
)
def test_size_of_batch(batch: object, size: tuple[int, int] | None) -> None:
    assert size_of(batch) == size


def test_strategy_of_wrapped_model(alone: None) -> None:
    plain = Small()
    assert strategy_of(plain, sgd(plain), 1) == "single"
    assert strategy_of(plain, sgd(plain), 2) == OWN_STRATEGY
    replicated = DistributedDataParallel(Small())
    assert strategy_of(replicated, sgd(replicated), 2) == "ddp"
    sharded = fully_shard(Small(), mesh=init_device_mesh("cpu", (1,)))
    assert strategy_of(sharded, sgd(sharded), 2) == "fsdp"
    hybrid = fully_shard(Small(), mesh=init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b")))
    assert strategy_of(hybrid, sgd(hybrid), 2) == OWN_STRATEGY


def case_of(folder: Path, module: nn.Module, *, batches: int = 1, bf16: bool = False, **options: Any) -> Case:
    """Return the case of a loop on four ranks of two hosts. Each step has `batches` batches of 3 samples."""
    group, optimizer = Group(None, 0, ("a", "a", "b", "b")), sgd(module)
    observer = Observer(
        module=module, optimizer=optimizer, group=group, schedule=Schedule(), folder=folder, began_s=0.0, log=print,
        **options,
    )  # fmt: skip
    with observer.watching():
        for at, batch in enumerate(observer([torch.ones(3, 16, dtype=torch.long)] * 4)):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                module(batch[:, :2].float()).sum().backward()
            if at % batches == batches - 1:
                optimizer.step()
    return observer.case()


def test_case_is_read_from_the_loop(tmp_path: Path, alone: None) -> None:
    module = DistributedDataParallel(Small(), bucket_cap_mb=4)
    case = case_of(tmp_path, module, batches=2, bf16=True)
    assert case.label == "ddp native 4 MiB grad_accumulation 2, 4 ranks on 2 nodes"
    assert (case.global_batch, case.seq_len, case.precision) == (24, 16, "bf16-mixed")
    assert case.model == "test_describe:Small"
    assert (case.device, case.backend, case.data) == ("cpu", "gloo", "own")
    assert type(case).from_dict(case.to_dict()) == case
    named = case_of(tmp_path, module, name="mine", global_batch=5)
    assert (named.model, named.global_batch, named.precision) == ("mine", 5, IEEE)


def test_name_of_compiled_model() -> None:
    compiled = nn.Module()
    compiled._orig_mod = Small()  # an attribute of torch.compile's OptimizedModule
    assert name_of(compiled) == "test_describe:Small"


@pytest.mark.parametrize(("name", "value"), [("fp32_precision", "tf32"), ("allow_tf32", True)])
def test_precision_of_detects_both_settings_of_tf32(monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    monkeypatch.setattr("parabench.watching.describe.device_of", lambda module: torch.device("cuda"))
    matmul = torch.backends.cuda.matmul
    before = getattr(matmul, name)
    assert precision_of(Small(), None) == IEEE
    try:
        setattr(matmul, name, value)
        assert precision_of(Small(), None) == "tf32"
    finally:
        setattr(matmul, name, before)
