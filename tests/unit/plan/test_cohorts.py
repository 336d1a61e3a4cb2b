"""Cases that share a launch: which can, what fits into memory, and the orders of their rounds."""

import json
from collections import Counter
from itertools import pairwise

import pytest

from parabench.launch.spec import LaunchSpec
from parabench.models import MODELS
from parabench.plan.case import Case
from parabench.plan.cohorts import SHARE, cohorts, launch_bytes, state_bytes, why_alone
from parabench.plan.schedule import BUILD, WARM_UP, TrainingSchedule, orders
from parabench.store.record import Phase


def case(**fields):
    return Case(**{"strategy": "ddp", "world_size": 2, "device": "cpu", "backend": "gloo", **fields})


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"strategy": "dp"}, "runs in one process"),
        ({"strategy": "parameter_server_async", "algorithm": "native"}, "do not take their steps together"),
        ({"strategy": "deepspeed1"}, "deepspeed sets up the whole process"),
        ({"algorithm": "nccl:tree"}, "NCCL's environment"),
    ],
)
def test_why_alone_gives_the_reason(fields, why):
    assert why in why_alone(case(**fields))


def test_cohorts_join_cases_of_one_process_group():
    together = [case(), case(strategy="single", world_size=1), case(world_size=4), case(strategy="fsdp")]
    threads = [case(threads=2), case(world_size=4, threads=2)]
    alone = case(strategy="parameter_server_async")
    assert cohorts([together[0], alone, threads[0], *together[1:], threads[1]]) == [
        tuple(together), (alone,), tuple(threads),
    ]  # fmt: skip
    assert not any(map(why_alone, [*together, *threads]))


def test_cohorts_on_nodes_need_equal_world_sizes():
    two, four = (case(world_size=ranks, nodes=2) for ranks in (2, 4))
    assert cohorts([two, four, two.replace(algorithm="ring")]) == [(two, two.replace(algorithm="ring")), (four,)]
    with pytest.raises(ValueError, match="world size"):
        LaunchSpec(kind="training", cases=(two, four), protocol=TrainingSchedule(), deadline_s=1.0)


# Bytes of the parameters of gpt-nano.
K = 4 * MODELS["gpt-nano"].parameters


@pytest.mark.parametrize(
    ("fields", "held"),
    [
        ({}, 2 * 4 * K),
        ({"world_size": 4, "nodes": 2}, 2 * 4 * K),
        ({"precision": "bf16-true"}, 4 * K),
        ({"strategy": "single", "world_size": 1}, 4 * K),
        # All parameters gathered, and each rank's share of everything.
        ({"strategy": "fsdp"}, 2 * K + 4 * K),
        ({"strategy": "tp"}, 2 * 4 * K),
        ({"strategy": "my_package:own"}, 2 * 4 * K),
    ],
)
def test_a_training_state_is_counted_as_it_is_at_most(fields, held):
    assert state_bytes(case(**fields)) == held


def test_cohorts_split_evenly_when_memory_is_short():
    cases = [case(bucket_mib=size) for size in range(1, 8)]
    held = sum(map(state_bytes, cases))
    assert [len(part) for part in cohorts(cases, {"cpu": round(held / SHARE)})] == [7]
    parts = cohorts(cases, {"cpu": round(held / SHARE) - 1})
    assert [len(part) for part in parts] == [4, 3]
    assert {each for part in parts for each in part} == set(cases)


def test_launch_bytes_has_all_states_and_one_activation():
    cases = [case(bucket_mib=size, device="cuda", backend="nccl") for size in (1, 2, 3)]
    held = {each.id: 4 * K + beside for each, beside in zip(cases, (5.0, 7.0, 6.0), strict=True)}
    assert launch_bytes(cases, held) == 3 * 4 * K + 7
    assert launch_bytes(cases[:1], held) == 4 * K + 5
    # While they are built each rank has all parameters, also where it holds a part of them later.
    parts = [case(strategy="fsdp", world_size=8, bucket_mib=None, device="cuda", seed=seed) for seed in (0, 1)]
    assert launch_bytes(parts, {each.id: K / 2 for each in parts}) == 2 * K


# -- interleaved rounds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(2, 13))
def test_orders_let_each_case_follow_each_other_equally_often(n):
    design = orders(n, n if n % 2 == 0 else 2 * n, seed=3)
    assert all(sorted(row) == list(range(n)) for row in design)
    follows = Counter(pair for row in design for pair in pairwise(row))
    assert len(follows) == n * (n - 1)
    assert len(set(follows.values())) == 1
    places = Counter((at, arm) for row in design for at, arm in enumerate(row))
    assert len(places) == n * n
    assert len(set(places.values())) == 1


def test_orders_depend_on_the_seed_only():
    assert orders(5, 20, seed=1) == orders(5, 20, seed=1)
    assert orders(5, 20, seed=1) != orders(5, 20, seed=2)
    assert orders(1, 3, seed=0) == [(0,), (0,), (0,)]


def test_turns_build_warm_up_and_then_interleave():
    schedule = TrainingSchedule(rounds=3, settle=1, timed=[4, 2], warmup=2)
    assert TrainingSchedule(**json.loads(json.dumps(schedule.to_dict()))) == schedule
    every = [turn for turn in schedule.turns() if turn.steps]
    assert [turn.round for turn in every] == [BUILD, BUILD, WARM_UP, WARM_UP, 0, 0, 1, 1, 2, 2]
    own = [turn for turn in every if turn.arm == 1 and turn.round != BUILD]
    assert sum(turn.steps for turn in own) == sum(schedule.counts(1)) == 2 + 3 * 3
    phases = Counter(phase for turn in own for phase in turn.phases)
    assert phases == {Phase.WARMUP: 2, Phase.SETTLE: 3, Phase.MEASURE: 6}
    assert schedule.all_steps == 2 + 3 * 5
