"""What a session of what ranks compute alone plans: which ranks, on how many nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from parabench.errors import UsageError
from parabench.machine.machine import Machine
from parabench.plan.suite import Suite, load_suite, sweep
from parabench.session.request import ComputeRequest, plan_compute


def planned(suite: Suite, *axes: str, cores: int = 4) -> list[tuple[str, int, int]]:
    """(strategy, ranks, nodes) of the cases."""
    request = ComputeRequest(argv=[], out=Path("out"), suite=suite.name, axes=axes)
    plan = plan_compute(request, suite, Machine(cores=cores, gpus_reason="none")).plan
    return [(case.strategy, case.world_size, case.nodes) for case in plan.cases]


FORESIGHT = load_suite("foresight")


def test_a_rank_of_many_is_one_of_a_node() -> None:
    assert set(planned(FORESIGHT)) == {
        *((strategy, ranks, nodes) for strategy in ("ddp", "zero1", "fsdp") for ranks, nodes in ((2, 1), (16, 4))),
        ("tp", 2, 1), ("tp", 4, 1),
    }  # fmt: skip


def test_all_ranks_of_a_pipeline_are_measured_on_cores_of_their_own() -> None:
    """What the suite lists for others is no size of theirs; what was asked for is."""
    assert set(planned(FORESIGHT, "strategy=pp", "global_batch=8")) == {("pp", 2, 1), ("pp", 4, 1)}
    assert planned(FORESIGHT, "strategy=pp", "global_batch=8", cores=2) == [("pp", 2, 1)]
    assert planned(FORESIGHT, "strategy=pp", "world_size=4", "global_batch=16", cores=2) == [("pp", 4, 1)]


def test_a_pipeline_is_measured_whole_beside_strategies_whose_ranks_are_alike() -> None:
    found = planned(FORESIGHT, "strategy=pp,ddp", "global_batch=16", cores=2)
    assert ("ddp", 16, 8) in found
    assert [each for each in found if each[0] == "pp"] == [("pp", 2, 1)]


def test_axes_of_a_sweep_are_those_of_some_of_its_strategies() -> None:
    suite = FORESIGHT.__class__(
        name="s", path=None, question="q", sweeps=FORESIGHT.sweeps, protocol=FORESIGHT.protocol,
        compute=(sweep(strategy=("ddp", "pp"), bucket_mib=1, global_batch=8, world_size=2),),
    )  # fmt: skip
    assert set(planned(suite)) == {("ddp", 2, 1), ("pp", 2, 1)}


def test_where_no_rank_has_a_core_the_size_is_to_be_asked_for() -> None:
    suite = FORESIGHT.__class__(
        name="s", path=None, question="q", sweeps=FORESIGHT.sweeps, protocol=FORESIGHT.protocol,
        compute=(sweep(strategy="ddp", batch_per_rank=4, world_size=16),),
    )  # fmt: skip
    with pytest.raises(UsageError, match="pp needs a core or device for each rank, and here are 2"):
        planned(suite, "strategy=pp", cores=2)
