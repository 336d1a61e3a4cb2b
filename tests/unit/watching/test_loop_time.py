"""The account of a loop's wall time, from known timestamps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from parabench.watching.loop import FORWARD, expensive_steps, loop_time

FIRST = 5
# Seconds of data, forward, backward, optimizer, and after the optimizer.
USUAL = (0.001, 0.002, 0.004, 0.002, 0.001)
OTHER = 4

Table = npt.NDArray[np.float64]


def table(steps: int) -> Table:
    """Return the seconds of each part of `steps` usual steps."""
    return np.tile(np.array(USUAL), (steps, 1))


def marks_of(parts: Table, pauses: dict[int, float] | None = None) -> Table:
    """Return the timestamps of steps with these parts, with pauses before some steps."""
    begins = np.concatenate([[0.0], np.cumsum(parts.sum(axis=1))[:-1]])
    for step, seconds in (pauses or {}).items():
        begins[step:] += seconds
    return begins[:, None] + np.column_stack([np.zeros(len(parts)), np.cumsum(parts, axis=1)])


def account(marks: Table, instrumented: Sequence[int] = (), **more: Any) -> dict[str, Any]:
    options = {"later_waits": {}, "pauses": {}} | more
    return loop_time(marks, FIRST, [at in instrumented for at in range(len(marks))], **options)


def test_loop_time_adds_up_to_wall_clock() -> None:
    parts = table(205)
    parts[FIRST + 3 :: 4, OTHER] += 0.02
    marks = marks_of(parts)
    found = account(marks)
    wall = marks[-1, -1] - marks[FIRST, 0]
    assert (found["steps"], found["instrumented"], found["first"]) == (200, 0, FIRST)
    assert sum(found["seconds"].values()) == pytest.approx(wall)
    assert found["seconds"]["other_s"] == pytest.approx(200 * 0.001 + 50 * 0.02)
    assert found["seconds"]["backward_s"] == pytest.approx(200 * 0.004)
    (group,) = found["expensive"]
    assert group["part"] == "other_s"
    assert (group["every"], group["steps"]) == (4, 50)
    assert group["extra_s"] == pytest.approx(0.02)
    assert group["share"] == pytest.approx(50 * 0.02 / wall)


def test_loop_time_counts_pauses_to_the_step_before() -> None:
    pauses = {15: 0.3, 25: 0.3, 3: 9.0, 35: 9.0}
    marks = marks_of(table(35), {15: 0.3, 25: 0.3})
    found = account(marks, pauses=pauses)
    assert sum(found["seconds"].values()) == pytest.approx(marks[-1, -1] - marks[FIRST, 0])
    assert found["seconds"]["other_s"] == pytest.approx(30 * 0.001 + 0.6)


def test_loop_time_leaves_the_cost_of_instruments_out() -> None:
    parts = table(105)
    parts[50, OTHER] += 1.0  # a checkpoint, while instruments are on
    wall = parts[FIRST:].sum()
    instrumented = range(46, 54)
    parts[instrumented, 2] += 0.003
    found = account(marks_of(parts), instrumented)
    assert found["instrumented"] == 8
    assert sum(found["seconds"].values()) == pytest.approx(wall)
    (group,) = found["expensive"]
    assert (group["part"], group["every"], group["steps"]) == ("other_s", None, 1)


def test_loop_time_moves_later_waits_to_data() -> None:
    marks = marks_of(table(45))
    marks[:, FORWARD] = np.nan
    found = account(marks, later_waits=dict.fromkeys(range(45), 0.002))
    assert found["seconds"]["data_s"] == pytest.approx(40 * 0.003)
    assert found["seconds"]["forward_backward_s"] == pytest.approx(40 * 0.004)
    assert "forward_s" not in found["seconds"]


def groups_of(extra: Table) -> list[dict[str, Any]]:
    """Return the groups of a loop whose steps take `extra` seconds longer after the optimizer."""
    parts = np.tile([*USUAL[:3], 0.0, *USUAL[3:]], (len(extra), 1))  # the columns of PARTS
    parts[:, -1] += extra
    return expensive_steps(parts)


def test_expensive_steps_separates_nested_periods() -> None:
    at = np.arange(1000)
    extra = 0.02 * (at % 4 == 3) + 1.0 * (at % 100 == 99)
    rare, often = groups_of(extra)
    assert (rare["every"], rare["steps"]) == (100, 10)
    assert (often["every"], often["steps"]) == (4, 240)
    assert often["extra_s"] == pytest.approx(0.02)


@pytest.mark.parametrize("steps", [60, 1000])
@pytest.mark.parametrize("busy", [0.0, 0.1, 0.4])
def test_expensive_steps_finds_no_period_in_noise(steps: int, busy: float) -> None:
    false = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        extra = 0.01 * rng.exponential(0.2, steps) + 0.02 * rng.exponential(1.0, steps) * (rng.random(steps) < busy)
        false += any(group["every"] is not None for group in groups_of(extra))
    assert false <= 1
