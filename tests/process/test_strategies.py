"""Every strategy over every algorithm computes what one device computes; test_pipeline.py has pipelines."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
    """Cases that one group of ranks trains one after the other."""

    strategy: str
    algorithm: str
    world_size: int
    variants: tuple[Fields, ...]
    slow: bool = False

    @property
    def cases(self) -> list[Case]:
        """Return the cases whose model has the parts that the strategy needs."""
        usual = {"strategy": self.strategy, "algorithm": self.algorithm, "world_size": self.world_size} | SMALL
        return [each for variant in self.variants if possible(each := cpu_case(**(usual | variant)))]

    def __str__(self) -> str:
        return f"{self.strategy} {self.algorithm} of {self.world_size}{', slow' if self.slow else ''}"


def possible(case: Case) -> bool:
    try:
        check_fit(case)
    except UsageError:
        return False
    return missing_requirement(case, Machine(cores=2)) is None


# A block has 0.2 MiB.
SMALL = {"model": "trained_helpers:small_gpt", "seq_len": trained_helpers.TRAINED_TOKENS}

TWICE: Fields = {"grad_accumulation": 2}
NO_SYNC_OFF = {"grad_accumulation": 2, "no_sync": False}
EVERY_WAY: tuple[Fields, ...] = ({}, TWICE)
BFLOAT16, TOY = {"precision": "bf16-mixed"}, {"model": "toy", "seq_len": 1}
# Models and options that depend neither on the algorithm nor on the number of ranks.
OTHERS: tuple[Fields, ...] = (
    {"model": "mlp", "seq_len": 1}, {"model": "mnist", "seq_len": 1}, TOY, BFLOAT16,
    {"activation_checkpointing": True, "fused": False},
)  # fmt: skip
# Tensors that ranks cannot share evenly, and another dtype of messages.
UNEVEN = (*EVERY_WAY, TOY, BFLOAT16)
# Every combination of DDP's options in several buckets.
DDP_OPTIONS: tuple[Fields, ...] = tuple(
    {"bucket_mib": 0.1, "find_unused_parameters": unused, "static_graph": static, "gradient_as_bucket_view": view}
    for unused, static, view in itertools.product((False, True), repeat=3)
)
DDP: tuple[Fields, ...] = tuple(
    options | accumulated for options in DDP_OPTIONS for accumulated in ({}, TWICE, NO_SYNC_OFF)
)
SOME_DDP = (NO_SYNC_OFF, DDP_OPTIONS[-1] | TWICE, DDP_OPTIONS[-1] | NO_SYNC_OFF)
# Each option alone.
USUAL_DDP = tuple(each for each in DDP if list(each.values()).count(True) == 1)
UNITS = (
    {"bucket_mib": 0.1} | NO_SYNC_OFF,
    {"bucket_mib": 0.5, "grad_accumulation": 2, "activation_checkpointing": True},
)
SEQUENCE = (
    {"sequence_parallel": True},
    {"sequence_parallel": True, "precision": "bf16-mixed"},
    {"sequence_parallel": True, "grad_accumulation": 2},
    {"sequence_parallel": True, "activation_checkpointing": True, "fused": False},
)
BY_FEATURES = {"model": "mlp", "seq_len": 1, "split": "dimension"}

# The groups of `make test`: all strategies and algorithms, and every operation on a grid of ranks. The other tests of
# collectives compare all algorithms with torch.
USUAL = [
    Group("parameter_server", "native", 2, (*EVERY_WAY, *OTHERS)),
    Group("ddp", "native", 2, (*EVERY_WAY, *OTHERS, *SOME_DDP, *USUAL_DDP, {"split": "sample"})),
    Group("zero1", "native", 2, (*EVERY_WAY, *SOME_DDP)),
    Group("zero2", "native", 2, (*EVERY_WAY, *UNITS)),
    Group("fsdp", "native", 2, (*EVERY_WAY, *OTHERS, *UNITS)),
    Group("tp", "native", 2, (*EVERY_WAY, *OTHERS, *SEQUENCE[:2], BY_FEATURES)),
    *(Group(strategy, "ring", 2, UNEVEN) for strategy in ("ddp", "fsdp", "tp")),
    Group("zero1", "ring", 2, EVERY_WAY),
    Group("ddp", "tree", 2, EVERY_WAY),
    Group("ddp", "two_level", 2, EVERY_WAY),
    Group("tp_ddp", "native", 4, (TWICE,)),
    Group("tp_fsdp", "ring", 4, (TWICE,)),
    Group("hsdp", "two_level", 4, (TWICE,)),
]
EXTRA: dict[str, tuple[Fields, ...]] = {
    "ddp": (*DDP, {"split": "sample"}),
    "zero1": SOME_DDP,
    "zero2": UNITS,
    "fsdp": UNITS,
    "hsdp": UNITS,
    "tp": (*SEQUENCE, BY_FEATURES),
    "tp_ddp": (*SOME_DDP, *SEQUENCE, {"tp_size": 1}, {"tp_size": 4}),
    "tp_fsdp": (*UNITS, *SEQUENCE, {"tp_size": 1}, {"tp_size": 4}),
}


def slow_groups() -> Iterator[Group]:
    for size in (1, 3, 4):  # a server without a worker, and workers that do not divide the batch evenly
        yield Group("parameter_server", "native", size, tuple({"global_batch": 24} | each for each in EVERY_WAY), True)
    for size, strategy, algorithm in itertools.product((2, 4), EXTRA, ON_ANY_BACKEND):
        variants = UNEVEN if algorithm in ("native", "ring") else EVERY_WAY
        full = 4 if strategy in ("hsdp", "tp_ddp", "tp_fsdp") else 2
        if (algorithm, size) in (("native", full), ("ring", 4)):
            variants = (*EVERY_WAY, *OTHERS, *EXTRA[strategy])
        yield Group(strategy, algorithm, size, variants, True)


# The reports of each group: {group: for each configuration, rank by rank}.
Reports = dict[str, list[list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Train the groups of the selected tests.

    The same ranks train all groups of a world size, because starting a process takes longer than training.
    """
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


@pytest.mark.parametrize(
    "group",
    [pytest.param(each, id=str(each)) for each in USUAL]
    + [pytest.param(each, id=str(each), marks=pytest.mark.slow) for each in slow_groups() if each.cases],
)
def test_training_is_what_one_device_computes(group: Group, reports: Reports) -> None:
    for each, seen in zip(group.cases, reports[str(group)], strict=True):
        check(each, seen)


# A case of float32 is trained in float64. A rank that is forgotten changes gradients by a half.
TOLERANCE = {"ieee": FLOAT64_BOUND, "bf16-mixed": bfloat16_bound(trained_helpers.BLOCKS)}


def check(each: Case, reports: list[dict[str, Any]]) -> None:
    """Compare the reports of the ranks with one device: the mean loss, and each parameter and its gradient."""
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
