"""The phase of each step of a watched loop."""

import pytest

from parabench.plan.schedule import TrainingSchedule
from parabench.store.record import Phase
from parabench.watching.schedule import INSTRUMENTED_AT, RECORDED, Schedule


def tuning(caps: int) -> TrainingSchedule:
    return TrainingSchedule(rounds=4, settle=2, timed=(5,) * caps)


def test_phases_of_a_loop() -> None:
    phases = Schedule(warmup=5, instrumented=8).phases(1000)
    assert phases[:5] == [Phase.WARMUP] * 5
    assert phases[5:25] == [Phase.MEASURE] * 20
    assert [at for at, phase in enumerate(phases) if phase is Phase.INSTRUMENT] == [*range(25, 33), *range(500, 508)]
    assert phases[508:] == [Phase.MEASURE] * 492


def test_tuning_has_each_cap_in_each_round() -> None:
    schedule = Schedule(warmup=3, instrumented=2, tuning=tuning(3))
    assert [*schedule.turns] == [*range(3, 3 + 4 * 3 * 7)]
    assert {(turn.round, turn.arm) for turn, _ in schedule.turns.values()} == {
        (r, a) for r in range(4) for a in range(3)
    }
    for place in range(3):
        rows, phases = schedule.of_cap(place)
        assert (phases.count(Phase.MEASURE), phases.count(Phase.SETTLE)) == (4 * 5, 4 * 2)
        assert all(schedule.turns[row][0].arm == place for row in rows)


def test_tuning_steps_do_not_count_as_measured() -> None:
    schedule = Schedule(warmup=3, instrumented=2, tuning=tuning(2))
    phases = schedule.phases(schedule.first_measured + 40)
    assert set(phases[3 : schedule.first_measured]) == {Phase.SETTLE}
    assert phases[schedule.first_measured] is Phase.MEASURE
    assert phases.index(Phase.INSTRUMENT) == INSTRUMENTED_AT[0] + len(schedule.turns)


def test_recorded_samples_the_plain_steps_of_a_long_loop() -> None:
    schedule = Schedule(warmup=5, instrumented=8, tuning=tuning(3))
    recorded, phases = schedule.recorded(300_000, ranks=8), schedule.phases(300_000)
    assert len(recorded) == pytest.approx(RECORDED / 8, rel=0.05)
    assert all(phases[step] is Phase.MEASURE for step in {*range(300_000)} - {*recorded.tolist()})
    halves = [sum(step < 150_000 for step in recorded), sum(step >= 150_000 for step in recorded)]
    assert halves[0] == pytest.approx(halves[1], rel=0.1)
