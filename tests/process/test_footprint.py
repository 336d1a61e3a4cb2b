"""The tensors of each strategy's model states have the sizes that theory predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from parabench.models import MODELS
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from real_launches import succeeded
from slow_helpers import slow_but

GPT = MODELS["gpt-nano"]
assert GPT.width is not None
assert GPT.parameters is not None

K = 4.0 * GPT.parameters
# A block's matrices and their biases: what tensor parallel splits. The biases of its two row-wise layers are not.
SPLIT = 4.0 * GPT.blocks * (12 * GPT.width**2 + 7 * GPT.width)
# What stands outside the blocks, FSDP's root: embeddings and the final norm.
ROOT = K - 4.0 * GPT.blocks * (12 * GPT.width**2 + 13 * GPT.width)


@dataclass(frozen=True)
class Theory:
    """Bytes on a rank: parameters at the end of forward, gradients, AdamW's two moments."""

    parameters: float
    gradients: float
    optimizer: float


def whole_blocks_split(n: int) -> float:
    return K - SPLIT + SPLIT / n


# {strategy and options: theory for n ranks}. Two ranks are a node, and two share the layers of a grid, so with four
# ranks all of these differ.
RANKS = 4
THEORY: dict[str, tuple[dict[str, Any], Any]] = {
    "ddp": ({}, lambda n: Theory(K, K, 2 * K)),
    "zero1": ({}, lambda n: Theory(K, K, 2 * K / n)),
    "zero2": ({}, lambda n: Theory(K + K / n, K / n, 2 * K / n)),
    "zero2 in bfloat16": ({"precision": "bf16-mixed"}, lambda n: Theory(K / 2 + K / n, K / n, 2 * K / n)),
    "fsdp": ({}, lambda n: Theory(ROOT + K / n, K / n, 2 * K / n)),
    "hsdp": ({"ranks_per_node": 2}, lambda n: Theory(ROOT + K / 2, K / 2, 2 * K / 2)),
    "tp": ({}, lambda n: Theory(*(f * whole_blocks_split(n) for f in (1, 1, 2)))),
    "tp in sequence": ({"sequence_parallel": True}, lambda n: Theory(*(f * whole_blocks_split(n) for f in (1, 1, 2)))),
    "tp_ddp": ({"tp_size": 2}, lambda n: Theory(*(f * whole_blocks_split(2) for f in (1, 1, 2)))),
    "tp_fsdp": (
        {"tp_size": 2},
        lambda n: Theory(
            ROOT + whole_blocks_split(2) / (n // 2),
            whole_blocks_split(2) / (n // 2),
            2 * whole_blocks_split(2) / (n // 2),
        ),
    ),
}


# Of what is split these have each kind.
USUAL = ("zero1", "zero2 in bfloat16", "tp_fsdp")


@pytest.mark.parametrize("name", slow_but(USUAL, THEORY))
def test_the_state_of_a_rank_is_what_theory_says(name: str) -> None:
    options, theory = THEORY[name]
    each = Case(
        strategy=name.partition(" ")[0],
        world_size=RANKS,
        device="cpu",
        backend="gloo",
        data="synthetic",
        seq_len=4,
        global_batch=4,
        **options,
    )
    seen = succeeded(each, Protocol(warmup=2, steps=1, instrumented=0))
    expected: Theory = theory(RANKS)
    for metric, of_theory in (
        ("parameter_bytes", expected.parameters),
        ("gradient_bytes", expected.gradients),
        ("optimizer_bytes", expected.optimizer),
    ):
        counted = [sample.value for sample in seen.samples if sample.metric == metric]
        assert len(counted) == RANKS
        assert counted == pytest.approx([of_theory] * RANKS, rel=0.05), metric
        # zero1 deals out whole parameters, so that only the mean is exact.
        assert sum(counted) / RANKS == pytest.approx(of_theory, rel=1e-3), metric
