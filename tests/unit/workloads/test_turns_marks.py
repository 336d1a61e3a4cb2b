"""The marks of each case of a shared launch, and the case whose turn it was when the launch failed."""

from dataclasses import replace

import numpy as np
import pytest

from parabench.launch.outcome import culprit
from parabench.plan.case import Case
from parabench.plan.schedule import TrainingSchedule
from parabench.store.record import Failure, Launch, Phase, Status
from parabench.workloads.steps import owners_of, steps_of

TURNS = list(TrainingSchedule(rounds=2, settle=1, timed=(2, 2), warmup=2).turns())
OWNERS = owners_of(TURNS)
ROWS = len(OWNERS)
FAILED = Launch(case=Case(), status=Status.FAILED, started_utc="", wall_s=1.0, failure=Failure("", rank=0))


def marks(rows=ROWS, moments=0):
    """Return a rank's marks: `rows` complete rows, then a row with this number of times."""
    table = np.full((ROWS, 5), np.nan)
    table.reshape(-1)[: rows * 5 + moments] = np.arange(rows * 5 + moments)
    return table


def test_each_step_belongs_to_one_case():
    found = [(marks()[rows], phases) for rows, phases in (steps_of(TURNS, place) for place in (0, 1))]
    for rows, phases in found:
        assert len(rows) == len(phases) == 2 + 2 * 3
        assert phases[:2] == [Phase.WARMUP] * 2
        assert phases.count(Phase.MEASURE) == 4
        assert (np.diff(rows[:, 0]) > 0).all()
    firsts = {row[0] for rows, _ in found for row in rows}
    assert len(firsts) == ROWS - 2  # except for the two rows of building cases


@pytest.mark.parametrize(
    ("rows", "moments", "place"),
    [(0, 1, 0), (1, 1, 1), (2, 1, 0), (4, 3, 1), (5, 0, 1), (ROWS, 0, None), (0, 0, None)],
)
def test_culprit_is_the_case_whose_turn_it_was(rows, moments, place):
    assert culprit(FAILED, [marks(rows, moments)], 5, OWNERS, [2, 2]) == place


def test_culprit_of_a_hang_is_the_case_of_the_slowest_rank():
    hung = replace(FAILED, failure=Failure("", rank=None))
    assert culprit(hung, [marks(5, 1), marks(3, 0)], 5, OWNERS, [2, 2]) == 0
    assert culprit(FAILED, [marks(5, 1), marks(3, 0)], 5, OWNERS, [2, 2]) == 1
