"""The phase of each step of a watched loop."""

from __future__ import annotations

import pytest

from parabench.plan.turns import TurnsProtocol
from parabench.store.record import Phase
from parabench.watching.schedule import INSTRUMENTED_AT, RECORDED, Schedule

TUNING = TurnsProtocol(rounds=4, settle=2, timed=5)


def test_phases_of_a_loop() -> None:
    phases = Schedule(warmup=5, instrumented=8).phases(1000)
    assert phases[:5] == [Phase.WARMUP] * 5
    assert phases[5:25] == [Phase.MEASURE] * 20
    assert [at for at, phase in enumerate(phases) if phase is Phase.INSTRUMENT] == [
        *range(25, 33),
        *range(500, 508),
    ]
    assert phases[508:] == [Phase.MEASURE] * 492


def test_tuning_has_each_cap_in_each_round() -> None:
    schedule = Schedule(warmup=3, instrumented=2, tuning=TUNING, caps=3)
    assert schedule.tuning_steps == range(3, 3 + 4 * 3 * 7)
    assert schedule.turn(2) is None
    assert schedule.turn(schedule.tuning_steps.stop) is None
    turns = {schedule.turn(step) for step in schedule.tuning_steps}
    assert {(each.round, each.arm) for each in turns if each} == {(r, a) for r in range(4) for a in range(3)}
    for place in range(3):
        rows, phases = schedule.of_cap(place)
        assert phases.count(Phase.MEASURE) == 4 * 5
        assert phases.count(Phase.SETTLE) == 4 * 2
        assert all(schedule.turn(row).arm == place for row in rows)  # type: ignore[union-attr]


def test_tuning_steps_do_not_count_as_measured() -> None:
    schedule = Schedule(warmup=3, instrumented=2, tuning=TUNING, caps=2)
    phases = schedule.phases(schedule.tuning_steps.stop + 40)
    assert {phases[step] for step in schedule.tuning_steps} == {Phase.SETTLE}
    assert phases[schedule.tuning_steps.stop] is Phase.MEASURE
    first = phases.index(Phase.INSTRUMENT)
    assert first == INSTRUMENTED_AT[0] + len(schedule.tuning_steps)


def test_recorded_samples_the_plain_steps_of_a_long_loop() -> None:
    schedule = Schedule(warmup=5, instrumented=8, tuning=TUNING, caps=3)
    recorded, phases = schedule.recorded(300_000, ranks=8), schedule.phases(300_000)
    assert len(recorded) == pytest.approx(RECORDED / 8, rel=0.05)
    plain = [step for step, phase in enumerate(phases) if phase is Phase.MEASURE]
    assert not {*range(300_000)} - {*recorded.tolist()} - {*plain}
    halves = [sum(step < 150_000 for step in recorded), sum(step >= 150_000 for step in recorded)]
    assert halves[0] == pytest.approx(halves[1], rel=0.1)
