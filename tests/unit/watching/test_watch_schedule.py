"""The phase of each step of a watched loop."""

import pytest

from parabench.plan.schedule import TrainingSchedule
from parabench.store.record import Phase
from parabench.watching.schedule import RECORDED, Schedule


def test_phases_of_a_loop() -> None:
    phases = Schedule(warmup=5, instrumented=8).phases(1000)
    assert phases[:5] == [Phase.WARMUP] * 5
    assert phases[5:25] == [Phase.MEASURE] * 20
    assert [at for at, phase in enumerate(phases) if phase is Phase.INSTRUMENT] == [*range(25, 33), *range(500, 508)]
    assert phases[508:] == [Phase.MEASURE] * 492


def test_recorded_samples_the_plain_steps_of_a_long_loop() -> None:
    schedule = Schedule(warmup=5, instrumented=8, tuning=TrainingSchedule(rounds=4, settle=2, timed=(5, 5, 5)))
    recorded, phases = schedule.recorded(300_000, ranks=8), schedule.phases(300_000)
    assert len(recorded) == pytest.approx(RECORDED / 8, rel=0.05)
    assert all(phases[step] is Phase.MEASURE for step in {*range(300_000)} - {*recorded.tolist()})
    halves = [sum(step < 150_000 for step in recorded), sum(step >= 150_000 for step in recorded)]
    assert halves[0] == pytest.approx(halves[1], rel=0.1)
