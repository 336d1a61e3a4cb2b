"""Every strategy over every algorithm computes what one device computes; test_pipeline.py has pipelines."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import trained_helpers
from guard import GUARD_S
from parabench.collectives import ON_ANY_BACKEND
from parabench.errors import UsageError
from parabench.machine.machine import Machine
from parabench.plan.case import Case
from parabench.plan.validate import check_fit, missing_requirement
from rounding_helpers import FLOAT64_BOUND, bfloat16_bound, bfloat16_loss_bound
from trained_helpers import cpu_case, reports_of, train_in_groups

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """Configurations that one group of ranks trains one after the other; `rare` ones take part in slow tests only."""

    strategy: str
    algorithm: str
    world_size: int
    variants: tuple[Fields, ...]
    rare: bool = False

    @property
    def cases(self) -> list[Case]:
        return [
            cpu_case(strategy=self.strategy, algorithm=self.algorithm, world_size=self.world_size, **(SMALL | each))
            for each in self.variants
        ]

    def __str__(self) -> str:
        return f"{self.strategy} {self.algorithm} of {self.world_size}{', rare' if self.rare else ''}"


# A block of it has 0.2 MiB.
SMALL = {"model": "trained_helpers:small_gpt", "seq_len": trained_helpers.TRAINED_TOKENS}

# Every strategy is trained like this over every algorithm.
EVERY_WAY: tuple[Fields, ...] = ({}, {"grad_accumulation": 2})

# Other models, and options that depend neither on the algorithm nor on the number of ranks, are trained over the
# backend's own algorithm.
TOY = {"model": "toy", "seq_len": 1}
OTHER_MODELS = ({"model": "mlp", "seq_len": 1}, {"model": "mnist", "seq_len": 1}, TOY)
BFLOAT16 = {"precision": "bf16-mixed"}
OPTIONS: tuple[Fields, ...] = (BFLOAT16, {"activation_checkpointing": True, "fused": False})
# These depend on both: tensors that ranks cannot share evenly, and the dtype that travels.
UNEVEN = (TOY, BFLOAT16)
NO_SYNC_OFF = {"grad_accumulation": 2, "no_sync": False}
# Every combination of DDP's options, in several buckets, each with both kinds of accumulation.
DDP_OPTIONS: tuple[Fields, ...] = tuple(
    {"bucket_mib": 0.1, "find_unused_parameters": unused, "static_graph": static, "gradient_as_bucket_view": view}
    | accumulated
    for unused, static, view in itertools.product((False, True), repeat=3)
    for accumulated in ({}, {"grad_accumulation": 2}, NO_SYNC_OFF)
)
SOME_DDP_OPTIONS = (NO_SYNC_OFF, DDP_OPTIONS[-1], DDP_OPTIONS[-2])
# Each option by itself; the other combinations are rare.
USUAL_DDP_OPTIONS = (*SOME_DDP_OPTIONS, *(each for each in DDP_OPTIONS if list(each.values()).count(True) == 1))
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
EXTRA: dict[str, tuple[Fields, ...]] = {
    "ddp": (*DDP_OPTIONS, {"split": "sample"}),
    "zero1": SOME_DDP_OPTIONS,
    "zero2": UNITS,
    "fsdp": UNITS,
    "hsdp": UNITS,
    "tp": (*SEQUENCE, {"model": "mlp", "seq_len": 1, "split": "dimension"}),
    "tp_ddp": (*SOME_DDP_OPTIONS, *SEQUENCE, {"tp_size": 1}, {"tp_size": 4}),
    "tp_fsdp": (*UNITS, *SEQUENCE, {"tp_size": 1}, {"tp_size": 4}),
}
# Variants whose parts other variants of `make test` have.
RARE: dict[str, tuple[Fields, ...]] = {
    **dict.fromkeys(("zero1", "zero2", "hsdp", "tp_ddp", "tp_fsdp"), (*OTHER_MODELS, *OPTIONS)),
    "ddp": tuple(each for each in DDP_OPTIONS if each not in USUAL_DDP_OPTIONS),
    "tp": (SEQUENCE[1], SEQUENCE[3]),
}
# Strategies with two dimensions of ranks, each with separate groups, need four ranks.
GRIDS = ("hsdp", "tp_ddp", "tp_fsdp")
# What travels in the other strategies travels in these too: gradients, shards, activations.
DISTINCT = ("ddp", "fsdp", "tp")
# These groups of four ranks take part in `make test`: they have every operation on a grid of ranks, and two dimensions.
OF_FOUR = (("tp_ddp", "native"), ("tp_fsdp", "ring"), ("hsdp", "two_level"))


def groups() -> Iterator[Group]:
    for size in (1, 3):  # a server without a worker, and two workers that do not divide the batch evenly with it
        yield Group("parameter_server", "native", size, tuple({"global_batch": 24} | each for each in EVERY_WAY))
    for size in (2, 4):
        yield from split(Group("parameter_server", "native", size, (*EVERY_WAY, *OPTIONS, *OTHER_MODELS)))
    for size, strategy, algorithm in itertools.product((2, 4), EXTRA, ON_ANY_BACKEND):
        full = 4 if strategy in GRIDS else 2
        variants = EVERY_WAY
        if (algorithm, size) == ("native", full):
            variants += (*OTHER_MODELS, *OPTIONS)
        elif algorithm == "native" or (algorithm, size) == ("ring", 2):
            variants += UNEVEN
        if (algorithm, size) == ("ring", 4) or (algorithm == "native" and size == full == 2):
            variants += EXTRA[strategy]
        yield from split(Group(strategy, algorithm, size, variants))


def split(group: Group) -> Iterator[Group]:
    """Yield the possible variants of a group, the usual ones first, then the rare ones."""
    possible_ones = [*filter(partial(possible, group.strategy, group.world_size), group.variants)]
    rare = list(RARE.get(group.strategy, ()))
    if group.strategy in GRIDS:
        rare.append(EVERY_WAY[0])
    if (group.algorithm, group.world_size) == ("ring", 4):
        rare += EXTRA[group.strategy]
    for is_rare in (False, True):
        chosen = tuple(each for each in possible_ones if (each in rare) is is_rare)
        if chosen:
            yield Group(group.strategy, group.algorithm, group.world_size, chosen, is_rare)


def possible(strategy: str, size: int, fields: Fields) -> bool:
    """Return whether the model has what the strategy needs, and enough of it."""
    each = cpu_case(strategy=strategy, world_size=size, **fields)
    try:
        check_fit(each)
    except UsageError:
        return False
    return missing_requirement(each, Machine(cores=2)) is None


def marked(group: Group) -> Any:
    """Mark a group as slow unless it is in `make test`. Every algorithm meets DDP there; tests/process/
    test_collectives.py compares all of them with torch, and the soak has four ranks over every algorithm."""
    strategy, algorithm = group.strategy, group.algorithm
    if strategy == "parameter_server" and group.world_size != 2:
        usual = False  # test_parameter_server.py verifies launches of one and three ranks
    elif group.world_size == 4:
        usual = (strategy, algorithm) in OF_FOUR
    elif algorithm in ("native", "ring"):
        usual = strategy not in GRIDS and (algorithm == "native" or strategy in (*DISTINCT, "zero1"))
    else:
        usual = strategy == "ddp" and algorithm in ("tree", "two_level")
    return pytest.param(group, id=str(group), marks=() if usual and not group.rare else pytest.mark.slow)


# The reports of each group: {group: for each configuration, rank by rank}.
Reports = dict[str, list[list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Train the groups of the selected tests. The same ranks train all groups of their number, because what a process
    does for the first time takes longer than the training."""
    chosen = [item.callspec.params["group"] for item in request.session.items if item.module is request.module]
    folder = tmp_path_factory.mktemp("references")
    references = {each.reference().id: each.reference() for group in chosen for each in group.cases}
    train_in_groups([list(references.values())], folder, None, deadline_s=GUARD_S)
    paths = {reference: folder / f"{reference}.pt" for reference in references}
    found = {}
    for size in {group.world_size for group in chosen}:
        alike = [group for group in chosen if group.world_size == size]
        folder = tmp_path_factory.mktemp(f"{size}ranks")
        train_in_groups([group.cases for group in alike], folder, paths, deadline_s=GUARD_S * len(alike))
        for at, group in enumerate(alike):
            found[str(group)] = [reports_of(folder, at, case, size) for case in range(len(group.cases))]
    return found


@pytest.mark.parametrize("group", [*map(marked, groups())])
def test_training_is_what_one_device_computes(group: Group, reports: Reports) -> None:
    for each, seen in zip(group.cases, reports[str(group)], strict=True):
        check(each, seen)


# A case of float32 is trained in float64. A rank that is forgotten changes gradients by a half.
TOLERANCE = {"ieee": FLOAT64_BOUND, "bf16-mixed": bfloat16_bound(trained_helpers.BLOCKS)}


def check(each: Case, reports: list[dict[str, Any]]) -> None:
    """Compare what the ranks saw with one device: ranks with a loss have their part of the batch's, and some rank has
    each parameter and its gradient."""
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
    if each.strategy == "parameter_server":  # which alone has the mean gradient; every rank has the parameters
        assert [report["gradients"] for report in reports[1:]] == [{}] * (each.world_size - 1)
        assert {len(report["parameters"]) for report in reports} == {len(reports[0]["gradients"])} != {0}


# The operations that must run through the algorithm.
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
