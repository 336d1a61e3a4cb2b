"""Cases that share a launch: the orders of their rounds, and which cases can."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest

from parabench.plan.case import Case
from parabench.plan.plan import Plan
from parabench.plan.protocol import Protocol
from parabench.plan.schedule import BUILD, INSTRUMENT, PROFILE, WARM_UP, TrainingSchedule, orders
from parabench.store.record import Phase


def case(**fields):
    return Case(**{"strategy": "ddp", "world_size": 2, "device": "cpu", "backend": "gloo", **fields})


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


def test_turns_of_one_case_end_with_its_instruments():
    schedule = Protocol(warmup=2, steps=3, instrumented=4, profile=True).alone()
    steps = {turn.round: turn.steps for turn in schedule.turns()}
    assert steps == {BUILD: 0, WARM_UP: 2, 0: 3, INSTRUMENT: 4, PROFILE: 1}
    assert schedule.all_steps == 10


def test_plan_with_rounds_starts_with_one_launch_per_case():
    cases = tuple(case(bucket_mib=size) for size in (1, 4, 25))
    plan = Plan(cases=cases, skipped=(), protocol=Protocol(launches=2, rounds=5), seed=0, extra=((cases[0].id,),))
    assert plan.protocol.takes_turns
    assert plan.repetitions == 4
    assert Counter(each.repetition for each in plan.launches()) == {0: 3, 1: 3, 2: 3, 3: 1}
