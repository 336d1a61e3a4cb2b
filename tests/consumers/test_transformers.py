"""Models of transformers: their parts, and strategies that compute the same as one device."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from command_line import parabench
from parabench.models import TENSOR
from parabench.models.base import loss_of, output_of
from parabench.models.factory import make_samples
from parabench.plan.case import Case
from paths import ROOT
from trained_helpers import cpu_case
from transformers_helpers import CONFIGS, VOCABULARY, built
from verified_helpers import verified

SEQ_LEN = 16
STRATEGIES = ("ddp", "fsdp")
TRAINED = (*CONFIGS, "peft_llama")
WITH_PLAN = {"llama": "tp", "tied_llama": "tp", "qwen2": "tp_ddp"}


def cases_of(name: str) -> list[Case]:
    strategies = (*STRATEGIES, WITH_PLAN[name]) if name in WITH_PLAN else STRATEGIES
    return [cpu_case(strategy=each, model=f"transformers_helpers:{name}", seq_len=SEQ_LEN) for each in strategies]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, str]:
    """Return how the training run of each case ended; the same two ranks train all of them."""
    cases = [case for name in TRAINED for case in cases_of(name)]
    return dict(zip(cases, verified(cases, tmp_path_factory.mktemp("trained")), strict=True))


@pytest.mark.parametrize("name", TRAINED)
def test_every_strategy_trains_what_one_device_does(name: str, ended: dict[Case, str]) -> None:
    assert {case.strategy: ended[case] for case in cases_of(name)} == {case.strategy: "ok" for case in cases_of(name)}


@pytest.mark.parametrize("name", CONFIGS)
def test_configuration_gives_module_blocks_and_loss(name: str) -> None:
    model = built(name)
    batch = make_samples(model.batch, cpu_case(seq_len=SEQ_LEN))
    loss = loss_of(model, output_of(model, model.module, batch), batch)
    assert loss.shape == ()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.module.parameters())
    assert batch["input_ids"].shape == (64, SEQ_LEN)
    assert (model.vocabulary, model.context) == (VOCABULARY, None if name == "t5" else 32)
    held = sum(parameter.numel() for block in model.blocks for parameter in block.parameters())
    assert len(model.blocks) == (4 if name == "t5" else 2)
    assert held > sum(parameter.numel() for parameter in model.module.parameters()) / 3


def test_pairs_of_tokens_and_next_tokens_are_shifted_once() -> None:
    model = built("llama")
    tokens = torch.arange(2 * SEQ_LEN).reshape(2, SEQ_LEN) % VOCABULARY
    pair = (tokens[:, :-1], tokens[:, 1:])
    logits = model.module(input_ids=pair[0]).logits
    # A causal model of transformers gives no loss for the last token.
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), pair[1][:, :-1].flatten())
    torch.testing.assert_close(loss_of(model, output_of(model, model.module, pair), pair), expected)


def test_published_plan_is_used_if_torch_has_its_styles() -> None:
    plan = built("llama").tensor_parallel
    assert isinstance(plan["model.layers.*.self_attn.q_proj"], ColwiseParallel)
    assert isinstance(plan["model.layers.*.mlp.down_proj"], RowwiseParallel)
    # Tied weights stay whole: each style would give its module its own.
    assert {"lm_head", "model.embed_tokens"} <= plan.keys()
    assert not {"lm_head", "model.embed_tokens"} & built("tied_llama").tensor_parallel.keys()
    for name, why in (("mixtral", "moe_tp_experts"), ("qwen3", "replicated_with_grad_allreduce"), ("gpt2", "no")):
        model = built(name)
        assert not model.tensor_parallel
        assert why in model.why_missing[TENSOR]


def test_model_without_a_language_model_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images.py").write_text(
        "from parabench import Model\nfrom transformers import ViTConfig\n"
        "def factory():\n    return Model.from_transformers(ViTConfig())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    done = parabench("check", "--model", "images:factory")
    assert done.exit_code == 2
    assert "transformers has no language model for ViTConfig; give Model(module=...)" in done.stderr


def test_the_example_is_benchmarked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "examples" / "hf_llama.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    command = ["run", "strategies", "--model", "hf_llama:factory", "--out", "out", "--set", "strategy=tp"]
    done = parabench(
        *command, "--set", "world_size=2", "--set", "device=cpu", "--launches", "1", "--warmup", "2", "--steps", "3"
    )
    assert done.exit_code == 0, done.output
    with closing(sqlite3.connect("out/results.db")) as store:
        assert store.execute("select strategy, status from launch where repetition >= 0").fetchall() == [("tp", "ok")]
