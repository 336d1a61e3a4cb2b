"""Real launches that several small collective cases share."""

import itertools
from collections.abc import Sequence

import pytest

from fake_collectives import case
from guard import GUARD_S
from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.store.record import Launch, Phase, Status

SMALL = {"min_bytes": 1024, "max_bytes": 4096, "factor": 4}
THROUGHPUT = CollectiveProtocol(launches=1, warmup=2, batches=3, measure_s=0.003, rounds=3)


def share(cases: Sequence[CollectiveCase], protocol: CollectiveProtocol) -> Launch:
    return launch(LaunchSpec(kind="collectives", cases=tuple(cases), protocol=protocol, deadline_s=GUARD_S))


def among(algorithm: str, protocol: CollectiveProtocol = THROUGHPUT, ranks: int = 2) -> Launch:
    """Launch an all-reduce of these ranks with gloo's all-reduce on three ranks and with the ring."""
    faulty = case(algorithm=f"test_collective_launcher:{algorithm}", world_size=ranks, **SMALL)
    return share((case(world_size=3, **SMALL), faulty, case(algorithm="ring", world_size=ranks, **SMALL)), protocol)


def test_turns_of_one_round_follow_one_another_and_rounds_too():
    cases = [case(algorithm=name, min_bytes=1024, max_bytes=1024) for name in ("native", "ring", "tree")]
    seen = share(cases, THROUGHPUT)
    begins = [
        [call.start_s for call in arm.collectives if call.rank == 0 and call.phase is Phase.MEASURE]
        for arm in seen.arms
    ]
    assert all(max(before) < min(after) for before, after in itertools.pairwise(zip(*begins, strict=True)))


def test_a_wrong_one_is_blamed_and_the_others_are_right():
    seen = among("ONE_WRONG")
    assert seen.status is Status.OK
    assert [arm.status for arm in seen.arms] == [Status.OK, Status.WRONG, Status.OK]
    failure = seen.arms[1].failure
    assert failure is not None
    assert (failure.rank, "1 at 1 KiB in place; 1 at 4 KiB in place" in failure.message) == (1, True)
    assert [{call.n_wrong for call in arm.collectives} for arm in seen.arms] == [{0}, {0, 1}, {0}]


@pytest.mark.parametrize(
    ("algorithm", "status", "message", "ranks"),
    [("RAISING", Status.FAILED, "the dog ate it", 2), ("KILLED", Status.CRASHED, "ended by SIGKILL", 3)],
)
def test_failure_of_shared_calls_is_the_case_whose_turn_it_was(algorithm, status, message, ranks):
    seen = among(algorithm, ranks=ranks)
    assert seen.status is status
    (arm,) = seen.arms
    assert (arm.case.algorithm, arm.status) == (f"test_collective_launcher:{algorithm}", status)
    assert arm.failure is not None
    assert message in arm.failure.message
    # Earlier measurements are kept.
    assert {call.bytes for call in arm.collectives} == ({1024} if algorithm == "KILLED" else set())
