"""Real launches that several training runs share."""

from collections.abc import Sequence

import numpy as np
import pytest

from guard import GUARD_S
from hang_helpers import pass_when
from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.cohorts import cohorts
from parabench.plan.protocol import Protocol
from parabench.plan.schedule import TrainingSchedule
from parabench.store.record import Launch, Phase, Status
from parabench.workloads.verify import verify
from process_helpers import run_code
from real_launches import reference
from trained_helpers import cpu_case

ROUNDS, SETTLE, TIMED = 2, 1, 2
# As many steps as each of them takes.
STEPS = 2 + ROUNDS * (SETTLE + TIMED)
REFERENCE = Protocol(warmup=2, steps=STEPS - 2, instrumented=0)

MIXED = (
    cpu_case(strategy="ddp", bucket_mib=0.5),
    cpu_case(strategy="single", world_size=1),
    cpu_case(strategy="ddp", algorithm="ring", bucket_mib=2),
    cpu_case(strategy="fsdp", algorithm="halving_doubling"),
    cpu_case(strategy="ddp", algorithm="tree", static_graph=True),
    cpu_case(strategy="zero1", algorithm="ring"),
    cpu_case(strategy="pp", microbatches=2),
    cpu_case(strategy="parameter_server"),
    cpu_case(strategy="local_only"),
    cpu_case(strategy="ddp", world_size=4, algorithm="two_level", ranks_per_node=2),
    cpu_case(strategy="tp_fsdp", world_size=4),
)


def share(cases: Sequence[Case], rounds: int = ROUNDS) -> Launch:
    turns = TrainingSchedule(rounds=rounds, settle=SETTLE, timed=(TIMED,) * len(cases), warmup=2)
    return launch(LaunchSpec(kind="training", cases=tuple(cases), protocol=turns, deadline_s=GUARD_S))


def check(seen: Launch, cases: Sequence[Case]) -> None:
    """Check that each case took all its turns and computed the same as one device."""
    assert seen.status is Status.OK, seen.failure
    assert [arm.case for arm in seen.arms] == list(cases)
    for arm in seen.arms:
        verify(arm, reference(arm.case.reference(), REFERENCE))
        assert arm.status is Status.OK, (arm.case.label, arm.failure)
        # If ranks train separately, only the first loss equals one device's.
        assert arm.facts["verified_steps"] == (1 if arm.case.strategy == "local_only" else STEPS)
        measured = arm.step_times(Phase.MEASURE)
        assert len(measured) == ROUNDS * TIMED
        assert np.isfinite(measured).all()
        assert len(arm.step_times(Phase.SETTLE)) == ROUNDS * SETTLE
        assert {sample.rank for sample in arm.samples} == set(range(arm.case.world_size))


def test_all_that_share_a_launch_train_as_one_device_does():
    assert cohorts(MIXED) == [MIXED]
    check(share(MIXED), MIXED)


def test_a_wrong_one_is_caught_and_the_others_are_not_blamed():
    cases = (MIXED[0], cpu_case(algorithm="wrong_helpers:FORGETFUL"), MIXED[4])
    seen = share(cases)
    assert seen.status is Status.OK, seen.failure
    for arm in seen.arms:
        verify(arm, reference(arm.case.reference(), REFERENCE))
    assert [arm.status for arm in seen.arms] == [Status.OK, Status.WRONG, Status.OK]


@pytest.mark.parametrize(
    ("fault", "status", "message"),
    [
        ("raising_in_build", Status.FAILED, "no such layer"),
        ("out_of_memory", Status.OOM, "MemoryError"),
        ("killed_in_backward", Status.CRASHED, "SIGKILL"),
    ],
)
def test_failure_of_shared_launch_is_the_case_whose_turn_it_was(fault, status, message):
    cases = (MIXED[0], cpu_case(strategy=f"faulty_helpers:{fault}"), cpu_case(world_size=4))
    seen = share(cases)
    assert seen.status is status
    (arm,) = seen.arms
    assert arm.case == cases[1]
    assert arm.status is status
    assert message in arm.failure.message


def test_a_hang_names_the_case_the_round_and_the_rank(monkeypatch):
    pass_when(monkeypatch)
    cases = (MIXED[0], cpu_case(strategy="faulty_helpers:waiting"))
    seen = share(cases)
    assert seen.status is Status.HUNG
    (arm,) = seen.arms
    assert arm.case == cases[1]
    assert "faulty_helpers:waiting native, 2 ranks in round 1 of 2" in arm.failure.message
    assert arm.failure.rank == 1


def test_a_rank_without_a_part_in_a_turn_uses_no_core():
    """Ranks 2 and 3 wait during the long turns of the first two ranks."""
    cases = (cpu_case(strategy="faulty_helpers:telling_cpu_time", world_size=4), cpu_case(seq_len=256))
    seen = share(cases, rounds=3)
    assert seen.status is Status.OK, seen.failure
    used = seen.arms[0].facts["cpu_s"]
    assert max(used[2:]) < min(used[:2]) / 4, used


def test_interleaved_tensor_parallelism_uses_each_algorithm():
    """DTensor must not use the mesh, and the algorithm, of the previous case."""
    cases = [cpu_case(strategy="faulty_helpers:telling_calls", algorithm=name) for name in ("native", "ring", "tree")]
    seen = share(cases)
    assert seen.status is Status.OK, seen.failure
    native, ring, tree = (arm.facts["calls"] for arm in seen.arms)
    assert native == {}
    assert (ring["all_reduce"]["algorithm"], tree["all_reduce"]["algorithm"]) == ("ring", "tree")
    # In each of 6 steps, an all-reduce closes attention and MLP of each layer, forward and backward.
    assert ring["all_reduce"]["calls"] == tree["all_reduce"]["calls"] > 6 * 2 * 2


WAITING = """
import torch.distributed as dist
from parabench.collectives.join import WorldGroups
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
over = {backend: WorldGroups(backend, 10.0) for backend in ("gloo", "nccl")}
assert over["gloo"]._waiting is over["gloo"]._first
waiting = over["nccl"]._waiting
assert waiting is not over["nccl"]._first
assert dist.get_backend(waiting) == "gloo"
for groups in over.values():
    groups.barrier()
dist.destroy_process_group()
"""


def test_over_nccl_ranks_wait_asleep_in_a_group_of_gloo():
    # In a separate process, because c10d remembers each group.
    run_code(WAITING, timeout=GUARD_S)
