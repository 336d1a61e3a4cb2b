"""Parameter servers: the asynchronous server applies each gradient once; faults end the launch."""

from statistics import fmean
from typing import Any

import pytest
import torch
from torch import nn

from parabench.models import MODELS
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.store.record import Launch, Status
from parabench.strategies.base import adamw
from parabench.strategies.parameter_server_async import ParameterVersions
from parabench.workloads.verify import LOSS_COST, NO_EXCHANGE, Reference, verify
from real_launches import launched, reference, succeeded

SHORT = Protocol(warmup=2, steps=3, instrumented=0)
# Enough steps for the loss to have fallen.
LONG = Protocol(warmup=2, steps=22, instrumented=0)
K = MODELS["gpt-nano"].parameters * 4


def case(strategy: str, **fields: Any) -> Case:
    settled: dict[str, Any] = {"device": "cpu", "backend": "gloo", "data": "synthetic", "seq_len": 8}
    return Case(strategy=strategy, **(settled | {"world_size": 2, "global_batch": 24} | fields))


def numbers(seen: Launch, metric: str) -> list[float | None]:
    """Return a metric of the whole launch for each rank."""
    return [sample.value for sample in seen.samples if sample.metric == metric and sample.step is None]


# -- synchronous (tests/process/test_strategies.py has its training) ---------------------------------------------------


@pytest.mark.parametrize("size", [1, 3])
def test_server_step_has_theoretical_bytes_and_states(size: int) -> None:
    seen = succeeded(case("parameter_server", world_size=size), SHORT)
    assert seen.facts["bytes_through_server"] == 2 * (size - 1) * K
    others = [0] * (size - 1)
    assert numbers(seen, "optimizer_bytes") == [2 * K, *others]
    assert numbers(seen, "gradient_bytes") == [K] * size
    assert numbers(seen, "parameter_bytes") == [K] * size


# -- the asynchronous server's parameters ---------------------------------------------------------------------------


def gradient_of(rank: int, step: int) -> torch.Tensor:
    return torch.randn(7, generator=torch.Generator().manual_seed(100 * rank + step))


@pytest.mark.parametrize(
    ("order", "staleness"),
    [
        ([0, 0, 0], [0, 0, 0]),
        ([0, 1, 0, 1], [0, 1, 1, 1]),
        ([0, 1, 2, 0, 1, 2], [0, 1, 2, 2, 2, 2]),
        ([2, 2, 2, 0, 1, 2], [0, 0, 0, 3, 4, 2]),
    ],
)
def test_every_arrival_is_one_step_on_the_newest_parameters(order: list[int], staleness: list[int]) -> None:
    initial = torch.linspace(-1, 1, 7)
    versions = ParameterVersions(initial, 3, fused=True)
    alone = nn.Parameter(initial.clone())
    optimizer = adamw([alone], fused=True)
    taken = [0, 0, 0]
    for version, rank in enumerate(order, start=1):
        message = gradient_of(rank, taken[rank])
        alone.grad = message.clone()
        optimizer.step()
        # The answer comes in the message's own memory.
        assert versions.apply(rank, taken[rank], message, into=message) == versions.version == version
        assert torch.equal(message, alone.detach())
        taken[rank] += 1
    steps = [order[:i].count(rank) for i, rank in enumerate(order)]
    assert versions.applied == list(zip(order, steps, staleness, strict=True))
    assert torch.equal(initial, torch.linspace(-1, 1, 7))


# -- the asynchronous server in processes ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone() -> Reference:
    """Return the results of one device."""
    return reference(case("parameter_server_async").reference(), LONG)


def verified(each: Case, rule_of: str, expected: Reference) -> Launch:
    """Launch a case, and verify it by the rule of the strategy `rule_of`."""
    seen = succeeded(each, LONG)
    seen.case = each.replace(strategy=rule_of)
    verify(seen, expected)
    return seen


@pytest.mark.parametrize(("size", "accumulation"), [(2, 3), (4, 1)])
def test_every_gradient_is_applied_once_and_the_loss_falls(size: int, accumulation: int, alone: Reference) -> None:
    each = case("parameter_server_async", world_size=size, grad_accumulation=accumulation)
    seen = verified(each, each.strategy, alone)
    assert seen.status is Status.OK, seen.failure
    assert [finding.code for finding in seen.findings] == [LOSS_COST]
    applied = seen.facts["applied"]
    steps = LONG.warmup + LONG.steps
    assert sorted([rank, step] for rank, step, _ in applied) == [[r, s] for r in range(size) for s in range(steps)]
    by_rank = [[late for of_rank, _, late in applied if of_rank == rank] for rank in range(size)]
    assert numbers(seen, "staleness_mean") == pytest.approx([fmean(each) for each in by_rank])
    assert numbers(seen, "staleness_max") == [max(each) for each in by_rank]
    # Somebody was second with a gradient of the first parameters.
    assert max(map(max, by_rank)) >= 1
    assert numbers(seen, "optimizer_bytes") == [2 * K] + [0] * (size - 1)
    assert numbers(seen, "parameter_bytes") == [2 * K] + [K] * (size - 1)


@pytest.mark.parametrize(
    ("strategy", "status", "message"),
    [
        ("killed_server", Status.CRASHED, "rank 0: ended by SIGKILL"),
        ("killed_async_worker", Status.CRASHED, "rank 1: ended by SIGKILL"),
        (
            "breaking_server",
            Status.FAILED,
            "rank 0: RuntimeError: the server lost rank 1: ArithmeticError: the optimizer broke",
        ),
        ("raising_async_worker", Status.FAILED, "rank 1: RuntimeError: the dog ate it"),
    ],
)
def test_fault_of_a_rank_or_thread_ends_the_launch(strategy: str, status: Status, message: str) -> None:
    seen = launched(case(f"faulty_helpers:{strategy}", world_size=3), SHORT)
    assert seen.status is status
    assert str(seen.failure).startswith(message)


# -- no exchange ----------------------------------------------------------------------------------------------------


def test_ranks_apart_keep_their_rule_and_are_labelled(alone: Reference) -> None:
    each = case("local_only", grad_accumulation=2)
    seen = verified(each, each.strategy, alone)
    assert seen.status is Status.OK, seen.failure
    assert [finding.code for finding in seen.findings] == [NO_EXCHANGE]
    # They are not one training: judged as such, they fail.
    assert verified(each, "ddp", alone).status is Status.WRONG
