"""Every strategy over every algorithm computes the training that one device computes, and a wrong one is caught."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import trained_helpers
import wrong_helpers
from guard import GUARD_S
from parabench.collectives import ON_ANY_BACKEND
from parabench.errors import UsageError
from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.machine.machine import Machine
from parabench.models import MODELS
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.plan.validate import check_fit, missing_requirement
from parabench.store.record import MIB, Launch, Status
from parabench.strategies import Layout, entry_of
from parabench.strategies.fsdp import group_blocks
from parabench.workloads.verify import reference_of, verify
from rounding_helpers import FLOAT64_BOUND, bfloat16_bound, bfloat16_loss_bound
from trained_helpers import train_in_group

SHORT = Protocol(warmup=2, steps=2, instrumented=0)


def case(**fields: Any) -> Case:
    settled: dict[str, Any] = {"device": "cpu", "backend": "gloo", "data": "synthetic", "seq_len": 16, "world_size": 2}
    made = Case(**(settled | fields))
    layout = entry_of(made.strategy).layout
    if layout is Layout.GRID and made.tp_size is None:
        made = replace(made, tp_size=2)
    if made.ranks_per_node is None and (made.algorithm == "two_level" or made.strategy == "hsdp"):
        made = replace(made, ranks_per_node=made.world_size // 2)
    return made


@dataclass(frozen=True)
class Group:
    """Trainings that run one after the other in one group of ranks."""

    strategy: str
    algorithm: str
    world_size: int
    variants: tuple[Mapping[str, Any], ...]

    @property
    def cases(self) -> list[Case]:
        return [
            case(
                **{"strategy": self.strategy, "algorithm": self.algorithm, "world_size": self.world_size},
                **(SMALL | each),
            )
            for each in self.variants
        ]

    def __str__(self) -> str:
        return f"{self.strategy} {self.algorithm} of {self.world_size}"


# A block of it has 0.2 MiB.
SMALL = {"model": "trained_helpers:small_gpt", "seq_len": trained_helpers.TRAINED_TOKENS}

# What every strategy is tried with, over every algorithm.
EVERY_WAY: tuple[Mapping[str, Any], ...] = ({}, {"grad_accumulation": 2})

# What does not depend on the algorithm, tried over the backend's and, at two ranks, over one of ours: every other model
# that the strategy can split, and options.
OTHER_MODELS = tuple({"model": name, "seq_len": 1} for name in ("mlp", "mnist", "toy"))
OPTIONS: tuple[Mapping[str, Any], ...] = (
    {"precision": "bf16-mixed"},
    {"activation_checkpointing": True, "fused": False},
)
NO_SYNC_OFF = {"grad_accumulation": 2, "no_sync": False}
# Every combination of DDP's own, in several buckets, and each with accumulation in both its ways.
DDP_OPTIONS: tuple[Mapping[str, Any], ...] = tuple(
    {"bucket_mib": 0.1, "find_unused_parameters": unused, "static_graph": static, "gradient_as_bucket_view": view}
    | accumulated
    for unused, static, view in itertools.product((False, True), repeat=3)
    for accumulated in ({}, {"grad_accumulation": 2}, NO_SYNC_OFF)
)
SOME_DDP_OPTIONS = (NO_SYNC_OFF, DDP_OPTIONS[-1], DDP_OPTIONS[-2])
UNITS = (
    {"bucket_mib": 0.1} | NO_SYNC_OFF,
    {"bucket_mib": 0.5, "grad_accumulation": 2, "activation_checkpointing": True},
)
SEQUENCE = (
    {"sequence_parallel": True},
    {"sequence_parallel": True, "grad_accumulation": 2},
    {"sequence_parallel": True, "precision": "bf16-mixed"},
    {"sequence_parallel": True, "activation_checkpointing": True, "fused": False},
)
EXTRA: dict[str, tuple[Mapping[str, Any], ...]] = {
    "ddp": (*DDP_OPTIONS, {"split": "sample"}),
    "zero1": SOME_DDP_OPTIONS,
    "zero2": UNITS,
    "fsdp": UNITS,
    "hsdp": UNITS,
    "tp": (*SEQUENCE, {"model": "mlp", "seq_len": 1, "split": "dimension"}),
    "tp_ddp": (*SOME_DDP_OPTIONS, *SEQUENCE, {"tp_size": 1}, {"tp_size": 4}),
    "tp_fsdp": (*UNITS, *SEQUENCE, {"tp_size": 1}, {"tp_size": 4}),
}
# Those without a collective that an algorithm could do. (tests/process/test_pipeline.py has the schedules.)
POINT_TO_POINT: dict[str, tuple[Mapping[str, Any], ...]] = {
    "pp": tuple(
        {"schedule": schedule, "microbatches": 4} | model
        for schedule in ("gpipe", "1f1b", "interleaved")
        for model in OTHER_MODELS
    ),
    "layer_split": OTHER_MODELS,
    "parameter_server": (*EVERY_WAY, *OPTIONS, *OTHER_MODELS),
}
STRATEGIES = tuple(EXTRA)


def groups() -> Iterator[Group]:
    for size, (strategy, variants) in itertools.product((2, 4), POINT_TO_POINT.items()):
        yield Group(strategy, "native", size, tuple(filter(partial(possible, strategy, size), variants)))
    for size, strategy, algorithm in itertools.product((2, 4), STRATEGIES, ON_ANY_BACKEND):
        variants = EVERY_WAY
        if algorithm == "native" or (algorithm, size) == ("ring", 2):
            variants += (*filter(partial(possible, strategy, size), OTHER_MODELS), *OPTIONS)
        # Two ranks are no grid.
        if (algorithm, size) == ("ring", 4) or (
            (algorithm, size) == ("native", 2) and entry_of(strategy).layout is not Layout.GRID
        ):
            variants += EXTRA[strategy]
        yield Group(strategy, algorithm, size, variants)


def possible(strategy: str, size: int, fields: Mapping[str, Any]) -> bool:
    """Whether the model has what the strategy needs, and enough of it."""
    each = case(strategy=strategy, world_size=size, **fields)
    try:
        check_fit(each)
    except UsageError:
        return False
    return missing_requirement(each, Machine(cores=2)) is None


GROUPS = list(groups())
CASES = {each.id: each for group in GROUPS for each in group.cases}


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What one device computes: {id of the reference: where it is}."""
    folder = tmp_path_factory.mktemp("references")
    wanted = {each.reference().id: each.reference() for each in CASES.values()}
    train_in_group(list(wanted.values()), folder, None, deadline_s=GUARD_S)
    return {reference: folder / f"{reference}.pt" for reference in wanted}


# A case of float32 is trained in float64. A rank that is forgotten changes gradients by a half.
TOLERANCE = {"ieee": FLOAT64_BOUND, "bf16-mixed": bfloat16_bound(trained_helpers.BLOCKS)}


# Two dimensions of ranks, each with a group of its own; in these two together, every operation.
GRIDS = ("hsdp", "tp_ddp", "tp_fsdp")
EVERY_OPERATION = (("tp_fsdp", "ring"), ("hsdp", "two_level"))


# What travels in the other strategies is what travels in these: gradients, shards, activations.
DISTINCT = ("ddp", "fsdp", "tp")


def marked(group: Group) -> Any:
    """Four ranks over every algorithm are in the soak too, under one strategy each. Here they are `native`, and of ours
    what has all three operations on a grid of ranks. Two ranks, which are no grid, meet every algorithm in the
    strategies that differ in what travels. The others take part when slow tests do."""
    strategy, algorithm = group.strategy, group.algorithm
    if group.world_size == 2:
        usual = strategy in DISTINCT or algorithm == "ring" or (algorithm == "native" and strategy not in GRIDS)
    else:
        native = algorithm == "native" and strategy not in ("zero1", "zero2")
        usual = native or (strategy, algorithm) in EVERY_OPERATION
    return pytest.param(group, id=str(group), marks=() if usual else pytest.mark.slow)


@pytest.mark.parametrize("group", [marked(group) for group in GROUPS])
def test_training_is_what_one_device_computes(group: Group, references: dict[str, Path], tmp_path: Path) -> None:
    train_in_group(group.cases, tmp_path, references, deadline_s=GUARD_S)
    for number, each in enumerate(group.cases):
        reports = [
            json.loads((tmp_path / f"case{number}-rank{rank}.json").read_text()) for rank in range(each.world_size)
        ]
        check(each, reports)


def check(each: Case, reports: list[dict[str, Any]]) -> None:
    """What the ranks saw, against one device: those who see a loss see their part of the batch's, and every
    parameter and its gradient is somewhere."""
    expected = reports[0]["expected_loss"]
    assert len(expected) == trained_helpers.TRAINED_STEPS
    losses = [report["loss"] for report in reports if report["loss"]]
    means = [sum(seen) / len(losses) for seen in zip(*losses, strict=True)]
    targets = (each.global_batch or 0) * each.seq_len
    loss_bound = {"ieee": FLOAT64_BOUND, "bf16-mixed": bfloat16_loss_bound(trained_helpers.BLOCKS, targets)}
    assert means == pytest.approx(expected, rel=loss_bound[each.precision]), each.label
    missing = set.intersection(*(set(report["missing"]) for report in reports))
    assert not missing, f"no rank has the gradients of {missing}: {each.label}"
    tolerance = TOLERANCE[each.precision]
    for rank, report in enumerate(reports):
        for kind in ("gradients", "parameters"):
            apart = {parameter: d for parameter, d in report[kind].items() if d > tolerance}
            assert not apart, f"rank {rank}'s {kind} are not one device's: {each.label}"
        ran = {op: call["algorithm"] for op, call in report["calls"].items()}
        if each.algorithm != "native" and each.world_size == 4:  # so that no dimension of a grid is of one rank
            assert ran.keys() >= TRAVELS[each.strategy], each.label
            assert {name.partition("(")[0] for name in ran.values()} <= {each.algorithm, "native"}, ran


# What must be seen to run through the algorithm.
TRAVELS = {
    "ddp": {"all_reduce"},
    "zero1": {"all_reduce", "broadcast"},
    "zero2": {"all_gather", "reduce_scatter"},
    "fsdp": {"all_gather", "reduce_scatter"},
    "hsdp": {"all_gather", "reduce_scatter", "all_reduce"},
    "tp": {"all_reduce"},
    "tp_ddp": {"all_reduce"},
    "tp_fsdp": {"all_reduce", "all_gather", "reduce_scatter"},
}


def verified(each: Case) -> Launch:
    """A real launch, verified as a session verifies it."""
    reference = launch(LaunchSpec.of(each.reference(), SHORT, deadline_s=GUARD_S))
    assert reference.status is Status.OK, reference.failure
    seen = launch(LaunchSpec.of(each, SHORT, deadline_s=GUARD_S))
    assert seen.status is Status.OK, seen.failure
    verify(seen, reference_of(reference))
    return seen


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("algorithm", ["FORGETFUL", "DOUBLING"])
def test_a_wrong_algorithm_is_caught(strategy: str, algorithm: str) -> None:
    seen = verified(case(strategy=strategy, algorithm=f"wrong_helpers:{algorithm}"))
    assert seen.status is Status.WRONG
    assert seen.failure is not None
    assert "on one device" in seen.failure.message


def test_updated_parameters_that_do_not_arrive_are_caught() -> None:
    seen = verified(case(strategy="zero1", algorithm="wrong_helpers:STALE"))
    assert seen.status is Status.WRONG
    assert seen.failure is not None
    assert seen.failure.message.startswith("loss")


@pytest.mark.parametrize("precision", ["ieee", "bf16-mixed"])
def test_replicas_that_part_are_caught_however_little(precision: str) -> None:
    seen = verified(case(strategy="wrong_helpers:forgetting_late", precision=precision))
    assert SHORT.warmup + SHORT.steps == wrong_helpers.FORGETFUL_STEPS
    assert seen.status is Status.WRONG
    assert seen.failure is not None
    assert "blocks.0.down.bias of rank 1 is not rank 0's, one of 4 that differ" in seen.failure.message


@pytest.mark.parametrize("size", [3, 5, 7])
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_odd_numbers_of_ranks_train_right(algorithm: str, size: int) -> None:
    seen = verified(case(algorithm=algorithm, world_size=size, global_batch=105, seq_len=4))
    assert seen.status is Status.OK, seen.failure
    assert seen.facts["collectives"]["all_reduce"]["algorithm"] == algorithm


def test_buckets_of_ddp_follow_the_cap_and_hold_the_whole_model() -> None:
    whole = MODELS["gpt-nano"].parameters * 4
    buckets = {
        cap: launch(LaunchSpec.of(case(bucket_mib=cap), SHORT, deadline_s=GUARD_S)).facts["bucket_bytes"]
        for cap in (0.5, 2, 25, None)
    }
    assert {cap: sum(sizes) for cap, sizes in buckets.items()} == dict.fromkeys(buckets, whole)
    assert len(buckets[0.5]) > len(buckets[2]) > len(buckets[25]) == 1
    # PyTorch's default is a first bucket of 1 MiB, so it is not the same as its cap of 25.
    assert len(buckets[None]) == 2


def test_units_of_fsdp_follow_the_bucket_and_hold_the_whole_model() -> None:
    units = {
        size: launch(LaunchSpec.of(case(strategy="fsdp", bucket_mib=size), SHORT, deadline_s=GUARD_S)).facts[
            "unit_bytes"
        ]
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
