"""Checkpointing and torch.compile do not change results; `dp` runs all devices in one process."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import real_launches
from parabench import Model
from parabench.models.options import apply_options
from parabench.models.reference import Block
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.store.record import Launch
from parabench.strategies.base import StrategyContext
from parabench.strategies.data_parallel import dp

SHORT = Protocol(warmup=2, steps=3, instrumented=1)


def verified(**fields: Any) -> Launch:
    return real_launches.verified(Case(**({"device": "cpu", "backend": "gloo", "data": "synthetic"} | fields)), SHORT)


@pytest.mark.slow  # half a minute each where no compiled code is cached
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_compiled_blocks_compute_the_same(strategy: str) -> None:
    verified(strategy=strategy, model="toy", world_size=2, seq_len=1, compile=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"strategy": "single"},
        {"strategy": "zero1"},
        {"strategy": "tp", "sequence_parallel": True},
        {"strategy": "tp_fsdp"},
        {"strategy": "ddp", "precision": "bf16-mixed"},
        {"strategy": "fsdp", "activation_checkpointing": True},
        {"strategy": "pp"},
    ],
    ids=str,
)
def test_compiled_transformers_compute_the_same(fields: dict[str, Any]) -> None:
    size = 1 if fields["strategy"] == "single" else 2
    verified(model="gpt-nano", seq_len=16, world_size=size, compile=True, **fields)


def case_of(**fields: Any) -> Case:
    return Case(device="cpu", backend="gloo", **fields)


def block_with(**options: Any) -> tuple[Block, list[torch.Size]]:
    """Run a block with options. Return it, and the shapes of the tensors that forward saves for backward."""
    torch.manual_seed(0)
    block = Block(16, 2)
    apply_options(Model(module=nn.Sequential(block), loss=torch.sub, blocks=[block]), case_of(**options))
    kept: list[torch.Size] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = block(torch.ones(2, 4, 16, requires_grad=True))
    out.sum().backward()
    return block, kept


def test_checkpointing_keeps_only_inputs_and_same_gradients() -> None:
    plain, kept = block_with()
    again, less = block_with(activation_checkpointing=True)
    assert torch.Size([2, 4, 64]) in kept  # the MLP's inner activation
    assert torch.Size([2, 4, 64]) not in less
    assert len(less) < len(kept)
    for mine, theirs in zip(again.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=0)
    assert [name for name, _ in again.named_parameters()] == [name for name, _ in plain.named_parameters()]


def test_a_block_is_compiled_by_itself_below_its_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """This test only traces the block; slow tests compile it."""
    from torch._inductor import config

    graphs: list[torch.fx.GraphModule] = []

    def counting(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counting))
    plain, _ = block_with()
    with config.patch(compile_threads=1):  # monkeypatch would delete the setting
        compiled, _ = block_with(compile=True, activation_checkpointing=True)
    assert graphs
    for mine, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert [name for name, _ in compiled.named_parameters()] == [name for name, _ in plain.named_parameters()]


def test_one_process_drives_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(nn, "DataParallel", lambda module, device_ids: given.update(ids=device_ids) or module)
    model = Model(module=nn.Linear(2, 1), loss=torch.sub)
    parallel = dp(model, StrategyContext(0, 4, torch.device("cpu"), case_of(strategy="dp", world_size=4)))
    assert given["ids"] == [0, 1, 2, 3]
    assert (parallel.data_rank, parallel.data_ranks) == (0, 1)
    # Without CUDA torch's DataParallel calls the module as it is: the launch is one process with the whole batch.
    monkeypatch.undo()
    seen = verified(strategy="dp", model="gpt-nano", seq_len=8, world_size=2)
    assert {sample.rank for sample in seen.samples} == {0}
