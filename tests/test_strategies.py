"""Every strategy over every algorithm computes the training that one device computes, and a wrong one is caught."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ranks_helpers
from torch import nn

from parabench.case import Case, Protocol
from parabench.launcher import launch
from parabench.models import MODELS
from parabench.ranks import run_ranks
from parabench.record import MIB, Launch, Status
from parabench.strategies.fsdp import group_blocks
from parabench.verify import reference_of, verify

DEADLINE_S = 120.0
SHORT = Protocol(warmup=2, steps=2)


def case(**fields: Any) -> Case:
    settled: dict[str, Any] = {"device": "cpu", "backend": "gloo", "data": "synthetic", "seq_len": 16}
    made = Case(**(settled | {"world_size": 2} | fields))
    return replace(made, ranks_per_node=made.world_size // 2) if made.algorithm == "two_level" else made


def name(each: Case) -> str:
    return f"{each.strategy} {each.algorithm} of {each.world_size} {each.dtype}"


def trained(each: Case, folder: Path, reference: Path | None) -> None:
    folder.mkdir(exist_ok=True)
    ended = run_ranks(
        ranks_helpers.trained,
        (each, folder, reference),
        size=each.world_size,
        deadline_s=DEADLINE_S,
        logs=folder / "logs",
    )
    assert ended.ok, [path.read_text() for path in folder.glob("logs/**/stderr.log")]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What one device computes, for each dtype."""
    made = {}
    for dtype in ("float32", "bfloat16"):
        folder = tmp_path_factory.mktemp(dtype)
        trained(case(dtype=dtype).reference(), folder, None)
        made[dtype] = folder / "reference.pt"
    return made


STRATEGIES = ("ddp", "fsdp", "tp")
ALGORITHMS = ("native", "ring", "tree", "two_level")
EVERY = [
    case(strategy=strategy, algorithm=algorithm, world_size=size)
    for size in (2, 4)
    for strategy in STRATEGIES
    for algorithm in ALGORITHMS
]
BFLOAT16 = [
    case(strategy=strategy, algorithm=algorithm, dtype="bfloat16")
    for strategy in STRATEGIES
    for algorithm in ("native", "tree")
]

# Seen at most: gradients and parameters 1e-6 apart in float32 (another order of summation), 8e-3 in bfloat16 (8 bits
# of mantissa); losses 9e-8 and 2e-5.
TOLERANCE = {"float32": 1e-5, "bfloat16": 4e-2}
LOSS_TOLERANCE = {"float32": 1e-6, "bfloat16": 2e-4}


@pytest.mark.parametrize("each", [*EVERY, *BFLOAT16], ids=name)
def test_training_is_what_one_device_computes(each: Case, references: dict[str, Path], tmp_path: Path) -> None:
    trained(each, tmp_path, references[each.dtype])
    reports = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(each.world_size)]
    expected = reports[0]["expected_loss"]
    assert len(expected) == ranks_helpers.TRAINED_STEPS
    means = [sum(losses) / each.world_size for losses in zip(*(r["loss"] for r in reports), strict=True)]
    assert means == pytest.approx(expected, rel=LOSS_TOLERANCE[each.dtype])
    tolerance = TOLERANCE[each.dtype]
    for rank, report in enumerate(reports):
        for kind in ("gradients", "parameters"):
            apart = {parameter: d for parameter, d in report[kind].items() if d > tolerance}
            assert not apart, f"rank {rank}'s {kind} are not one device's"


def verified(each: Case) -> Launch:
    """A real launch, verified as a session verifies it."""
    reference = launch(each.reference(), SHORT, deadline_s=DEADLINE_S)
    assert reference.status is Status.OK, reference.failure
    seen = launch(each, SHORT, deadline_s=DEADLINE_S)
    assert seen.status is Status.OK, seen.failure
    verify(seen, reference_of(reference))
    return seen


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("algorithm", ["FORGETFUL", "DOUBLING"])
def test_a_wrong_algorithm_is_caught(strategy: str, algorithm: str) -> None:
    seen = verified(case(strategy=strategy, algorithm=f"ranks_helpers:{algorithm}"))
    assert seen.status is Status.WRONG
    assert seen.failure is not None
    assert "on one device" in seen.failure.message


@pytest.mark.parametrize("size", [3, 5, 7])
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_odd_numbers_of_ranks_train_right(algorithm: str, size: int) -> None:
    seen = verified(case(algorithm=algorithm, world_size=size, global_batch=105, seq_len=4))
    assert seen.status is Status.OK, seen.failure
    assert seen.facts["collectives"]["all_reduce"]["algorithm"] == algorithm


def test_buckets_of_ddp_follow_the_cap_and_hold_the_whole_model() -> None:
    whole = MODELS["gpt-nano"].parameters * 4
    buckets = {
        cap: launch(case(bucket_mib=cap), SHORT, deadline_s=DEADLINE_S).facts["bucket_bytes"]
        for cap in (0.5, 2, 25, None)
    }
    assert {cap: sum(sizes) for cap, sizes in buckets.items()} == dict.fromkeys(buckets, whole)
    assert len(buckets[0.5]) > len(buckets[2]) > len(buckets[25]) == 1
    # PyTorch's default is a first bucket of 1 MiB, so it is not the same as its cap of 25.
    assert len(buckets[None]) == 2


def test_units_of_fsdp_follow_the_bucket_and_hold_the_whole_model() -> None:
    units = {
        size: launch(case(strategy="fsdp", bucket_mib=size), SHORT, deadline_s=DEADLINE_S).facts["unit_bytes"]
        for size in (None, 1.6, 25)
    }
    assert {size: sum(each) for size, each in units.items()} == dict.fromkeys(units, MODELS["gpt-nano"].parameters * 4)
    # Four blocks of 0.76 MiB, then what is left.
    assert {size: len(each) for size, each in units.items()} == {None: 5, 1.6: 3, 25: 2}


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


def test_no_blocks_make_no_units() -> None:
    assert group_blocks([], 25) == []
