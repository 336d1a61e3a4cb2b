"""The breakdown of instrumented steps with known times."""

import math
from typing import Any

import pytest

import fake_results as fake
from answers_helpers import about_steps
from parabench.analysis.collectives.bus import bus_factor
from parabench.analysis.session import SessionData, session_data
from parabench.analysis.step.breakdown import EXPOSED_IN, case_breakdown, step_table
from parabench.analysis.step.calls import bucket_table, group_calls
from parabench.analysis.step.stragglers import step_stragglers, straggler_table
from parabench.store.record import Launch

PARTS = ("data_s", "compute_s", "communication_s", "overlapped_s", "exposed_s", "idle_s")


@pytest.fixture
def seen_of(tmp_path):
    def gather(*launches: Launch) -> SessionData:
        for repetition, launch in enumerate(launches):
            launch.repetition = repetition
        results = fake.write(tmp_path / "results.db", launches)
        return session_data(results)

    return gather


def ddp(**fields: Any) -> Launch:
    return fake.launch(fake.case(**fields), 10.0)


def row(table, **where: Any) -> dict[str, Any]:
    for name, value in where.items():
        table = table[table[name] == value]
    (found,) = table.to_dict("records")
    return found


# -- the parts of a step --------------------------------------------------------------------------------------------


def test_step_is_data_compute_exposed_and_idle(seen_of):
    # Data to 1, forward to 3, backward to 9, optimizer to 10. Training is blocked in forward and from 7.5 to 8.5.
    calls = [
        {"op": "all_gather", "start_s": 1.5, "duration_s": 0.5},
        {"start_s": 4.0, "duration_s": 3.0},
        {"start_s": 6.0, "duration_s": 2.0},
    ]
    launch = fake.instrumented(ddp(), 25, begin=1000.0, waits=[(1.5, 2.0), (7.5, 8.5)], calls=calls)
    found = row(step_table(seen_of(launch)), step=25)
    assert {name: found[name] for name in PARTS} == {
        "data_s": 1.0, "compute_s": 7.5, "communication_s": 4.5, "overlapped_s": 3.5, "exposed_s": 1.0, "idle_s": 0.5,
    }  # fmt: skip
    assert found["step_s"] == found["data_s"] + found["compute_s"] + found["exposed_s"] + found["idle_s"] == 10
    assert (found["exposed_forward_s"], found["exposed_backward_s"], found["exposed_optimizer_s"]) == (0.5, 0.5, 0)
    assert math.isnan(found["exposed_forward_backward_s"])
    assert (found["calls"], found["unknown_calls"]) == (3, 0)


def test_forward_backward_of_accumulation_is_one_part(seen_of):
    parts = {"data": 1.0, "forward_backward": 8.0, "optimizer": 1.0}
    launch = ddp(grad_accumulation=2)
    fake.instrumented(launch, 25, parts=parts, waits=[(8.0, 9.5)], calls=[{"start_s": 7.0, "duration_s": 3.0}])
    found = row(step_table(seen_of(launch)), step=25)
    assert [found[EXPOSED_IN[part]] for part in ("forward_backward", "optimizer")] == [1.0, 0.5]
    assert all(math.isnan(found[EXPOSED_IN[part]]) for part in ("forward", "backward", "other"))
    assert (found["compute_s"], found["overlapped_s"]) == (7.5, 1.5)


def test_posted_message_counts_while_it_is_waited_for(seen_of):
    # A receive with a wait from 6 to 7, a finished send, and a collective whose second half is hidden.
    calls = [
        {"op": "recv", "start_s": 3.5, "duration_s": 3.5},
        {"op": "send", "start_s": 4.0, "duration_s": 0.5},
        {"start_s": 6.5, "duration_s": 1.0},
    ]
    found = row(step_table(seen_of(fake.instrumented(ddp(), 25, waits=[(6.0, 7.0)], calls=calls))))
    assert {name: found[name] for name in PARTS} == {
        "data_s": 1.0, "compute_s": 8.0, "communication_s": 1.5, "overlapped_s": 0.5, "exposed_s": 1.0, "idle_s": 0.0,
    }  # fmt: skip
    assert found["exposed_backward_s"] == 1.0
    assert (found["calls"], found["unknown_calls"]) == (3, 0)


def test_case_breakdown_describes_the_slowest_rank(seen_of):
    launches = []
    for exposed in (1.0, 3.0, 2.0):
        launch = ddp()
        for step, more in ((25, 0.0), (26, 0.5), (27, 1.0)):
            slow = fake.LONG_PARTS | {"backward": 7.0}
            call = {"start_s": 4.0, "duration_s": exposed + more}
            fake.instrumented(launch, step, 0, begin=step * 100.0, calls=[call])
            fake.instrumented(launch, step, 1, begin=step * 100.0, parts=slow, waits=[(4.0, 8.0)], calls=[call])
        launches.append(launch)
    found = row(case_breakdown(seen_of(*launches)))
    assert (found["step_s"], found["exposed_s"], found["n_ok"], found["calls"]) == (11.0, 2.5, 3, 18)


# -- warnings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("timed", "doubted"), [(9.5, False), (9.0, True)])
def test_slow_instruments_cause_a_warning(seen_of, timed, doubted):
    launches = [fake.launch(fake.case(), timed) for _ in range(3)]
    for launch in launches:
        for step in (25, 26):
            fake.instrumented(launch, step, begin=step * 10.0, calls=[{"start_s": 4.0}])
    # One launch that was disturbed is not the median one.
    fake.instrumented(launches[0], 27, begin=270.0, parts=fake.LONG_PARTS | {"data": 90.0})
    seen = seen_of(*launches)
    assert row(case_breakdown(seen))["instruments_ratio"] == pytest.approx(10.0 / timed)
    assert [finding.code for finding in about_steps(seen)] == ["instruments_slow"] * doubted


@pytest.mark.parametrize(
    ("fields", "doubted"),
    [({}, True), ({"strategy": "local_only"}, False), ({"strategy": "dp"}, False)],
)
def test_missing_communication_causes_a_warning(seen_of, fields, doubted):
    # A group of one rank does not communicate.
    launch = fake.instrumented(ddp(**fields), 25, calls=[{"start_s": 4.0, "group_size": 1, "ranks": "0"}])
    assert [finding.code for finding in about_steps(seen_of(launch))] == ["no_communication"] * doubted


# -- calls ----------------------------------------------------------------------------------------------------------


def test_group_calls_join_the_ranks_of_a_call(seen_of):
    launch = ddp()
    # Rank 1 calls a second later. On rank 0 the call waits in the queue for half a second.
    fake.instrumented(launch, 25, 0, waits=[(4.5, 7.0)], calls=[{"made_s": 4.0, "start_s": 4.5, "duration_s": 2.25}])
    fake.instrumented(launch, 25, 1, waits=[(6.0, 7.0)], calls=[{"made_s": 5.0, "start_s": 5.0, "duration_s": 2.0}])
    found = row(group_calls(seen_of(launch)))
    assert (found["duration_s"], found["part"]) == (2.25, "backward")
    assert (found["wire_s"], found["late_s"], found["exposed_s"]) == (2.0, 1.0, 2.25)
    assert found["busbw"] == 0.002


@pytest.mark.parametrize(("op", "factor"), [("all_reduce", 1.5), ("all_gather", 0.75), ("broadcast", 1.0)])
def test_busbw_is_defined_as_in_nccl_tests(seen_of, op, factor):
    launch = ddp(world_size=4)
    for rank in range(4):
        call = {"op": op, "start_s": 4.0 + rank, "duration_s": 4.0 - rank, "group_size": 4, "ranks": "0-3"}
        fake.instrumented(launch, 25, rank, calls=[call])
    found = row(group_calls(seen_of(launch)))
    # The root of a broadcast does not wait for the last rank, so the slowest rank's time counts.
    assert found["busbw"] == pytest.approx(factor * 4e6 / 1e9 / (4.0 if op == "broadcast" else 1.0))
    assert bus_factor(op, 4) == factor


def test_calls_are_matched_by_group_and_messages_are_not(seen_of):
    launch = ddp(world_size=4, strategy="tp_ddp", tp_size=2)
    for rank in range(4):
        pair, across = ("0-1" if rank < 2 else "2-3"), ("0,2" if rank % 2 == 0 else "1,3")
        calls = [
            {"start_s": 4.0 + rank % 2, "ranks": pair},
            {"op": "send", "start_s": 5.0, "ranks": pair, "duration_s": 0.5},
            {"start_s": 6.0, "ranks": across},
            {"start_s": 7.0, "ranks": pair},
        ]
        fake.instrumented(launch, 25, rank, calls=calls)
    table = group_calls(seen_of(launch))
    together = table[table["op"] == "all_reduce"]
    assert sorted(zip(together["ranks"], together["n"], together["late_s"], strict=True)) == [
        ("0,2", 0, 0.0), ("0-1", 0, 1.0), ("0-1", 1, 0.0), ("1,3", 0, 0.0), ("2-3", 0, 1.0), ("2-3", 1, 0.0),
    ]  # fmt: skip
    sends = table[table["op"] == "send"]
    assert sorted(sends["sender"]) == [0, 1, 2, 3]
    assert sends["busbw"].tolist() == [0.008] * 4


# -- buckets --------------------------------------------------------------------------------------------------------


def test_buckets_have_parameters_and_times(seen_of):
    launches = []
    for late in (0.0, 0.5, 1.0):
        layout = [{"bytes": 4_000_000, "parameters": ["head.weight", "head.bias"]}, {"bytes": 10, "parameters": None}]
        launch = fake.tell(ddp(), facts={"buckets": layout})
        for step in (25, 26):
            for rank in (0, 1):
                first = {"bucket": 0, "ready_s": 4.0 + late, "made_s": 4.25 + late, "start_s": 4.5 + late}
                # Only the last reduction of a bucket in the step counts.
                calls = [first | {"start_s": 4.0, "made_s": 4.0, "ready_s": 4.0}, first, {"bucket": 1, "start_s": 8.0}]
                fake.instrumented(launch, step, rank, begin=step * 100.0, waits=[(5.0, 9.0)], calls=calls)
        launches.append(launch)
    head, rest = bucket_table(seen_of(*launches)).to_dict("records")
    assert (head["bucket"], head["bytes"]) == (0, 4e6)
    assert head["parameters"] == ["head.weight", "head.bias"]
    # Backward begins at 3.
    times = ("ready_s", "made_s", "start_s", "end_s", "duration_s", "wire_s", "exposed_s")
    assert [head[name] for name in times] == [1.5, 1.75, 2.0, 3.0, 1.0, 1.0, 1.0]
    assert head["busbw"] == pytest.approx(0.004)
    assert rest["parameters"] is None
    assert (head["since"], rest["since"]) == ("backward", "backward")
    assert math.isnan(rest["ready_s"])


# -- stragglers -----------------------------------------------------------------------------------------------------


def lagging(launch: Launch, late_rank: int) -> Launch:
    """Add four steps with calls at 5 and 7, a second later on one rank. The others are blocked from 5.5 to 8.5."""
    for step in range(25, 29):
        for rank in range(launch.case.world_size):
            late = float(rank == late_rank)
            calls = [{"start_s": start + late, "duration_s": 8.5 - start - late} for start in (5.0, 7.0)]
            fake.instrumented(launch, step, rank, begin=100.0 * step, waits=[(8.0 if late else 5.5, 8.5)], calls=calls)
    return launch


def test_straggler_is_named_with_the_lost_time(seen_of):
    launches = [lagging(ddp(), late_rank=1) for _ in range(2)]
    seen = seen_of(*launches)
    # From 5.5 to 6 for the first call, from 7 to 8 for the second.
    assert step_stragglers(seen)["waited_s"].tolist() == [1.5] * 8
    found = row(straggler_table(seen))
    assert (found["straggler"], found["share"], found["waited_s"], found["waited_share"]) == (1, 1.0, 1.5, 0.15)
    assert not found["by_schedule"]
    assert (found["steps"], found["launches"], found["agreeing"]) == (8, 2, 2)
    assert "straggler" in {finding.code for finding in about_steps(seen)}


def test_first_stage_of_a_pipeline_is_not_a_straggler(seen_of):
    seen = seen_of(*(lagging(ddp(strategy="pp"), late_rank=0) for _ in range(2)))
    found = row(straggler_table(seen))
    assert (found["straggler"], found["share"], found["steps"], found["by_schedule"]) == (0, 1.0, 8, True)
    assert not about_steps(seen)
