"""Real launches of small collectives, separate and shared, with correct, wrong and failing ranks."""

import itertools
import os
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import ReduceOp

from fake_collectives import case, slots_of
from guard import GUARD_S
from hang_helpers import came, pass_when
from parabench.collectives.algorithm import Algorithm, reduction
from parabench.collectives.ring import RING
from parabench.launch.launcher import launch
from parabench.launch.processes import ProcessOutcome
from parabench.launch.rendezvous import LOST
from parabench.launch.results import NodeResult
from parabench.launch.spec import LaunchSpec
from parabench.plan.collective_case import OPS, CollectiveCase
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.store.record import Launch, Phase, Status
from parabench.workloads.collective_buffers import Truth
from parabench.workloads.collectives import CollectivesWorkload
from real_launches import launched

PROTOCOL = CollectiveProtocol(mode="latency", launches=1, warmup=1, iterations=2)
THROUGHPUT = CollectiveProtocol(launches=1, warmup=2, batches=3, measure_s=0.003)
INTERLEAVED = THROUGHPUT.replace(rounds=3)
SMALL = {"min_bytes": 1024, "max_bytes": 4096, "factor": 4}


def run(op: str, algorithm: str, *, protocol: CollectiveProtocol = PROTOCOL, **fields: Any) -> Launch:
    return launched(case(op, algorithm, **(SMALL | fields)), protocol)


@pytest.mark.parametrize(
    ("op", "algorithm"),
    [*((op, "native") for op in OPS), ("all_reduce", "ring"), ("reduce_scatter", "ring")],
)
def test_every_call_of_every_rank_is_kept_and_right(op, algorithm):
    seen = run(op, algorithm)
    assert (seen.status, seen.failure) == (Status.OK, None)
    forms = seen.case.forms
    assert len(seen.collectives) == 2 * 2 * len(forms) * 3  # ranks, sizes, forms, calls
    assert {call.algorithm for call in seen.collectives} == {algorithm}
    assert {call.n_wrong for call in seen.collectives} == {0}
    assert all(call.duration_s > 0 for call in seen.collectives)
    assert {(call.bytes, call.in_place) for call in seen.collectives} == {(s, f) for s in (1024, 4096) for f in forms}
    assert Counter(call.phase for call in seen.collectives if call.rank == 0)[Phase.WARMUP] == 2 * len(forms)
    assert [call.seq for call in seen.collectives if call.rank == 1] == list(range(6 * len(forms)))
    assert seen.facts["piece_bytes"] > 0


@pytest.mark.parametrize(("op", "algorithm"), [("all_reduce", "tree"), ("all_gather", "native")])
def test_batches_have_the_same_number_of_calls_on_all_ranks(op, algorithm):
    seen = run(op, algorithm, world_size=3, min_bytes=3072, max_bytes=12288, protocol=THROUGHPUT)
    assert (seen.status, seen.failure) == (Status.OK, None)
    forms = len(seen.case.forms)
    by_rank = [[call for call in seen.collectives if call.rank == rank] for rank in range(3)]
    for own in by_rank:
        assert [call.seq for call in own] == list(range(2 * forms * (2 + 3)))
        assert [call.calls for call in own] == [call.calls for call in by_rank[0]]
        for at in range(0, len(own), 5):
            first, run_in, *timed = own[at : at + 5]
            assert (first.phase, first.calls) == (run_in.phase, run_in.calls) == (Phase.WARMUP, 2)
            assert {call.phase for call in timed} == {Phase.MEASURE}
            # At least 20 calls in three batches, all of the same size.
            assert {call.calls for call in timed} == {timed[0].calls}
            assert timed[0].calls >= 7
            # Nothing lies between the batches: each begins when the one before has ended.
            for before, after in itertools.pairwise([run_in, *timed]):
                assert after.start_s == pytest.approx(before.start_s + before.duration_s * before.calls, abs=1e-9)
    assert {call.n_wrong for call in seen.collectives} == {0}


def _one_wrong(wire: Any, flat: Any, of: Any) -> None:
    RING.all_reduce(wire, flat, of)
    if wire.rank == 1:
        flat[7] += 1


def _killed(wire: Any, flat: Any, of: Any) -> None:
    RING.all_reduce(wire, flat, of)
    if wire.rank == 1 and flat.nbytes > 1024:
        os.kill(os.getpid(), signal.SIGKILL)


def _stopped(wire: Any, flat: Any, of: Any) -> None:
    if flat.nbytes > 1024:
        came()
        if wire.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
    RING.all_reduce(wire, flat, of)


def _raising(wire: Any, flat: Any, of: Any) -> None:
    raise RuntimeError("the dog ate it\nand the next line")


def _algorithm(all_reduce: Any) -> Algorithm:
    return Algorithm(
        name=all_reduce.__name__, all_reduce=all_reduce, reduce_scatter=RING.reduce_scatter, all_gather=RING.all_gather
    )


ONE_WRONG, KILLED, STOPPED, RAISING = map(_algorithm, (_one_wrong, _killed, _stopped, _raising))
OWN = Algorithm(name="ring", all_reduce=RING.all_reduce, reduce_scatter=RING.reduce_scatter, all_gather=RING.all_gather)
BORROWING = replace(OWN, name="own", instead={"all_reduce": "ring"})


@pytest.mark.parametrize(
    ("op", "name", "ran"),
    [
        ("all_reduce", "OWN", "test_collective_launcher:OWN"),
        ("broadcast", "OWN", "native"),
        ("all_reduce", "BORROWING", "ring"),
    ],
)
def test_recorded_algorithm_is_the_custom_one_or_its_fallback(op, name, ran):
    """OWN has the name ring."""
    seen = run(op, f"test_collective_launcher:{name}")
    assert {call.algorithm for call in seen.collectives} == {ran}
    assert seen.facts["algorithm"] == ran


def test_one_wrong_element_on_one_rank_is_seen():
    seen = run("all_reduce", "test_collective_launcher:ONE_WRONG")
    assert seen.status is Status.WRONG
    assert seen.failure.rank == 1
    assert "1 at 1 KiB in place; 1 at 4 KiB in place" in seen.failure.message
    assert Counter((call.rank, call.n_wrong) for call in seen.collectives) == {(0, 0): 6, (1, 1): 6}


def test_killed_rank_is_crashed_and_keeps_its_measurements():
    seen = run("all_reduce", "test_collective_launcher:KILLED")
    assert seen.status is Status.CRASHED
    assert (seen.failure.rank, seen.failure.signal) == (1, "SIGKILL")
    assert {call.bytes for call in seen.collectives} == {1024}
    assert Counter(call.rank for call in seen.collectives) == {0: 3, 1: 3}
    assert {call.n_wrong for call in seen.collectives} == {None}


def test_a_stopped_rank_is_hung_and_named_with_how_far_it_came(monkeypatch):
    pass_when(monkeypatch)
    seen = run("all_reduce", "test_collective_launcher:STOPPED")
    assert seen.status is Status.HUNG
    assert "to 4 KiB in place, warmup call 0" in seen.failure.message
    assert len(seen.collectives) == 6


@pytest.mark.parametrize("lost", [1, 2])
def test_calls_keep_their_ranks_when_a_node_is_lost(lost):
    """A lost node returns nothing, and the results of later ranks are not assigned to its ranks."""
    of = case("all_reduce", "ring", world_size=6, nodes=3, min_bytes=1024, max_bytes=1024)
    calls = len(slots_of(PROTOCOL, of))
    there = [node for node in range(3) if node != lost]
    why = f"node {lost} (h), which ran ranks {2 * lost} to {2 * lost + 1}, was lost"
    spec = LaunchSpec.of(of, PROTOCOL, GUARD_S)

    def one_lost(spec: LaunchSpec, workload: Any) -> list[NodeResult]:
        results = [silent(spec, node) for node in range(3)]
        for node in there:
            marked = len(results[node].marks[0])
            results[node].marks = [np.array([[node, 0.5 + rank, 1]] * marked) for rank in (2 * node, 2 * node + 1)]
        results[lost].lost = why
        return results

    seen = launch(spec, run=one_lost)
    assert (seen.status, str(seen.failure)) == (Status.CRASHED, why)
    took = {call.rank: call.duration_s for call in seen.collectives}
    assert took == {rank: 0.5 + rank for node in there for rank in (2 * node, 2 * node + 1)}
    assert len(seen.collectives) == 4 * calls


def silent(spec: LaunchSpec, node: int) -> NodeResult:
    """Return the result of a node whose ranks ended because another node was lost."""
    layout = CollectivesWorkload().marks(spec)
    result = NodeResult.silent(node, "h", range(2 * node, 2 * node + 2), layout)
    result.outcome = ProcessOutcome(ok=False, aborted_by=LOST)
    return result


@pytest.mark.parametrize("redop", ["sum", "avg", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_the_truth_is_what_torch_computes_in_any_order(redop, dtype):
    of = case(dtype=dtype, redop=redop, world_size=4)
    truth = Truth(of, torch.device("cpu"))
    like = truth.empty(3000)
    ranks = [truth.of(rank, like) for rank in range(4)]
    op = reduction(getattr(ReduceOp, redop.upper()), 4)
    for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
        total = ranks[order[0]].clone()
        for rank in order[1:]:
            op.combine(total, total, ranks[rank])
        op.finish(total)
        assert torch.equal(total, truth.reduced(like))


def test_the_truth_shows_what_is_out_of_place_missing_or_twice():
    truth = Truth(case(world_size=3), torch.device("cpu"))
    like = truth.empty(1 << 12)
    a, b, c = (truth.of(rank, like) for rank in range(3))
    whole = truth.reduced(like)
    for shift in (1, 2, 16, 144, 256, 377, 1024):
        assert (whole.roll(shift) != whole).float().mean() > 0.9
    for wrong in (a + b, a + a + c, a + b + b, a + b + c + c):
        assert (wrong != whole).float().mean() > 0.9


# -- launches that several cases share


def share(cases: Sequence[CollectiveCase], protocol: CollectiveProtocol) -> Launch:
    return launch(LaunchSpec(kind="collectives", cases=tuple(cases), protocol=protocol, deadline_s=GUARD_S))


def among(algorithm: str, protocol: CollectiveProtocol = INTERLEAVED, ranks: int = 2) -> Launch:
    """Launch an all-reduce of these ranks with gloo's all-reduce on three ranks and with the ring."""
    faulty = case(algorithm=f"test_collective_launcher:{algorithm}", world_size=ranks, **SMALL)
    return share((case(world_size=3, **SMALL), faulty, case(algorithm="ring", world_size=ranks, **SMALL)), protocol)


def test_turns_of_one_round_follow_one_another_and_rounds_too():
    cases = [case(algorithm=name, min_bytes=1024, max_bytes=1024) for name in ("native", "ring", "tree")]
    seen = share(cases, INTERLEAVED)
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
    assert message in arm.failure.message
    # Earlier measurements are kept.
    assert {call.bytes for call in arm.collectives} == ({1024} if algorithm == "KILLED" else set())
