"""Verification detects wrong algorithms, and buckets of DDP and units of FSDP have the right sizes."""

import itertools

import pytest
from torch import nn

import wrong_helpers
from parabench.models import MODELS
from parabench.plan.protocol import Protocol
from parabench.store.record import MIB, Status
from parabench.strategies.fsdp import group_blocks
from real_launches import judged, launched
from slow_helpers import slow_but
from trained_helpers import cpu_case

SHORT = Protocol(warmup=2, steps=2, instrumented=0)
STRATEGIES = ("ddp", "zero1", "zero2", "fsdp", "hsdp", "tp", "tp_ddp", "tp_fsdp")
# Between them gradients, shards and activations travel.
CAUGHT = (("FORGETFUL", "ddp"), ("FORGETFUL", "zero2"), ("FORGETFUL", "tp"), ("DOUBLING", "ddp"))


# What is forgotten changes a half of what is summed, what is doubled all of it: the one is caught with more room.
@pytest.mark.parametrize(
    ("algorithm", "strategy"),
    slow_but(CAUGHT, itertools.product(("FORGETFUL", "DOUBLING"), STRATEGIES)),
)
def test_a_wrong_algorithm_is_caught(strategy: str, algorithm: str) -> None:
    seen = judged(cpu_case(strategy=strategy, algorithm=f"wrong_helpers:{algorithm}"), SHORT)
    assert seen.status is Status.WRONG
    assert "on one device" in seen.failure.message


def test_updated_parameters_that_do_not_arrive_are_caught() -> None:
    seen = judged(cpu_case(strategy="zero1", algorithm="wrong_helpers:STALE"), SHORT)
    assert seen.status is Status.WRONG
    assert seen.failure.message.startswith("loss")


def test_replicas_that_part_are_caught_however_little() -> None:
    seen = judged(cpu_case(strategy="wrong_helpers:forgetting_late"), SHORT)
    assert SHORT.warmup + SHORT.steps == wrong_helpers.FORGETFUL_STEPS
    assert seen.status is Status.WRONG
    assert "blocks.0.down.bias of rank 1 differs from its first replica, one of 4 that differ" in seen.failure.message


def test_default_buckets_of_ddp_are_two() -> None:
    """PyTorch's default is a first bucket of 1 MiB, so it is not the same as its cap of 25."""
    buckets = launched(cpu_case(), SHORT).facts["bucket_bytes"]
    assert (sum(buckets), len(buckets)) == (MODELS["gpt-nano"].parameters * 4, 2)


def test_fsdp_units_follow_the_bucket_and_cover_the_model() -> None:
    units = launched(cpu_case(strategy="fsdp", bucket_mib=1.6), SHORT).facts["unit_bytes"]
    # Four blocks of 0.76 MiB in pairs, then what is left.
    assert (sum(units), len(units)) == (MODELS["gpt-nano"].parameters * 4, 3)


@pytest.mark.parametrize(
    ("bucket_mib", "expected"),
    [(None, [1, 1, 1, 1, 1]), (0.5, [1, 1, 1, 1, 1]), (2, [2, 1, 2]), (3, [2, 2, 1]), (100, [5])],
)
def test_blocks_are_grouped_as_they_fit(bucket_mib: float | None, expected: list[int]) -> None:
    mebibytes = (1, 1, 2, 1, 1)
    blocks = [nn.Linear(1, size * MIB // 4, bias=False) for size in mebibytes]
    units = group_blocks(blocks, bucket_mib)
    assert [block for unit in units for block in unit] == blocks
    assert [len(unit) for unit in units] == expected
