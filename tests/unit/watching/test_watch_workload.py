"""What is recorded of a watched loop, of what its ranks hand over."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from parabench.launch.processes import ProcessOutcome
from parabench.launch.results import NodeResult, RankReport
from parabench.plan.case import Case
from parabench.plan.turns import TurnsProtocol
from parabench.probes import CaseReport
from parabench.store.record import Launch, Status
from parabench.watching import schedule
from parabench.watching.loop import WIDTH
from parabench.watching.record import WatchWorkload
from parabench.watching.schedule import Schedule

CAPS = tuple(Case(strategy="ddp", world_size=2, bucket_mib=cap) for cap in (1, 25))
TUNED = Schedule(warmup=2, tuning=TurnsProtocol(rounds=2, settle=1, timed=2), caps=2)


def recorded(*steps: int) -> Launch:
    """Return the launch of ranks that took so many steps, those of the tuning included."""
    launch = Launch(case=CAPS[0], status=Status.OK, started_utc="2026-01-01T00:00:00.000Z", wall_s=1.0)
    reports = [
        RankReport(rank=rank, cases=[CaseReport(steps=taken, marked=TUNED.recorded(taken, len(steps)).tolist())])
        for rank, taken in enumerate(steps)
    ]
    marks = [
        np.arange(taken * WIDTH, dtype=np.float64).reshape(taken, WIDTH)[report.of(0).marked]
        for taken, report in zip(steps, reports, strict=True)
    ]
    node = NodeResult(
        node=0, host="here", first_rank=0, reports=[*reports], marks=marks, outcome=ProcessOutcome(ok=True)
    )
    WatchWorkload(TUNED, CAPS).record(launch, cast(Any, None), [node])
    return launch


def test_tuning_steps_are_all_recorded_in_a_long_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "RECORDED", 40)
    monkeypatch.setattr(schedule, "LEAST_RECORDED", 20)
    launch = recorded(400, 400)
    assert "steps_sampled" in {each.code for each in launch.findings}
    for place, arm in enumerate(launch.arms):
        steps, _ = TUNED.of_cap(place)
        whole = [each.value for each in arm.samples if each.rank == 1 and each.metric == "step_s"]
        begun = [each.step for each in launch.samples if each.rank == 1 and each.metric == "step_s"]
        assert len(whole) == len(steps)
        assert {*steps} < {*begun}
        # It says of the training that went on, not of a cap.
        assert "steps_sampled" not in {each.code for each in arm.findings}


def test_tuning_has_no_caps_when_a_rank_did_not_finish_it() -> None:
    last = TUNED.tuning_steps.stop
    assert len(recorded(last, last).arms) == 2
    short = recorded(last, last - 1)
    assert not short.arms
    assert len([each for each in short.samples if each.metric == "step_s"]) == 2 * last - 1
