"""Model states have the size that the formula of each strategy gives."""

from typing import Any

import pytest

from parabench.models import MODELS
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.strategies import STRATEGIES, ModelShape
from real_launches import succeeded
from slow_helpers import slow_but

GPT = MODELS["gpt-nano"]

K = 4.0 * GPT.parameters
# Tensor parallel splits a block's matrices and their biases, except the biases of its two row-wise layers.
SPLIT = 4.0 * GPT.blocks * (12 * GPT.width**2 + 7 * GPT.width)
# FSDP's root has the embeddings and the final norm.
ROOT = K - 4.0 * GPT.blocks * (12 * GPT.width**2 + 13 * GPT.width)

# {strategy: its options}. Nodes and grids have two ranks, so with four ranks all formulas differ.
RANKS = 4
OPTIONS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "zero1": {},
    "zero2": {},
    "zero2 in bfloat16": {"precision": "bf16-mixed"},
    "fsdp": {},
    "hsdp": {"ranks_per_node": 2},
    "tp": {},
    "tp in sequence": {"sequence_parallel": True},
    "tp_ddp": {"tp_size": 2},
    "tp_fsdp": {"tp_size": 2},
}
# Each kind of split.
USUAL = ("zero1", "zero2 in bfloat16", "tp_fsdp")


@pytest.mark.parametrize("name", slow_but(USUAL, OPTIONS))
def test_model_states_of_a_rank_have_the_theoretical_size(name: str) -> None:
    options, strategy = OPTIONS[name], name.partition(" ")[0]
    fixed: dict[str, Any] = {"device": "cpu", "backend": "gloo", "data": "synthetic", "seq_len": 4, "global_batch": 4}
    seen = succeeded(
        Case(strategy=strategy, world_size=RANKS, **fixed, **options), Protocol(warmup=2, steps=1, instrumented=0)
    )
    formula = STRATEGIES[strategy].memory
    sharing = options.get("tp_size", RANKS)
    shape = ModelShape(whole=K, tensor=SPLIT, root=ROOT, ranks=RANKS, sharing=sharing, node=2)
    parameters, gradients, optimizer = formula.states(shape)
    # The formula is for float32. Parameters are gathered in bfloat16.
    gathered = K / 2 if "precision" in options else 0.0
    expected = {
        "parameter_bytes": parameters - gathered,
        "gradient_bytes": gradients,
        "optimizer_bytes": optimizer,
    }
    for metric, size in expected.items():
        counted = [sample.value for sample in seen.samples if sample.metric == metric]
        assert counted == pytest.approx([size] * RANKS, rel=0.05), metric
        # zero1 distributes whole parameters, so only the mean is exact.
        assert sum(counted) / RANKS == pytest.approx(size, rel=1e-3), metric
