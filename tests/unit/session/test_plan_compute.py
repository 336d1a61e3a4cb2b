"""Plans of compute-only launches: ranks and nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from parabench.errors import UsageError
from parabench.machine.machine import Machine
from parabench.session.request import Request, plan_compute


def planned(*axes: str, cores: int = 4) -> list[tuple[str, int, int]]:
    """(strategy, ranks, nodes) of the cases."""
    request = Request(kind="compute", argv=[], out=Path("out"), suite="calibration", axes=axes)
    plan = plan_compute(request, Machine(cores=cores, gpus_reason="none")).plan
    return [(case.strategy, case.world_size, case.nodes) for case in plan.cases]


def test_plan_compute_divides_ranks_among_nodes() -> None:
    assert set(planned()) == {
        *((strategy, ranks, nodes) for strategy in ("ddp", "zero1", "fsdp") for ranks, nodes in ((2, 1), (16, 4))),
        ("tp", 2, 1), ("tp", 4, 1),
    }  # fmt: skip


def test_plan_compute_takes_the_world_sizes_and_strategies_given() -> None:
    assert set(planned("strategy=ddp", "world_size=4,8", cores=2)) == {("ddp", 4, 2), ("ddp", 8, 4)}


@pytest.mark.parametrize("axes", [("strategy=pp",), ("strategy=ddp,parameter_server", "world_size=4")])
def test_plan_compute_refuses_strategies_whose_ranks_differ(axes: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="cannot be predicted, because its ranks do different things"):
        planned(*axes)


def test_plan_compute_refuses_world_sizes_that_are_not_counts() -> None:
    with pytest.raises(UsageError, match="world_size is 0; it must be a whole number"):
        planned("world_size=0")
