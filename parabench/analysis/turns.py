"""Configurations that shared a launch are compared round by round.

Changes while a launch runs (another process starts, a clock falls) hit all turns of one round alike. So each turn is
compared with the other turns of its round, and rounds are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from parabench import json_text
from parabench.plan.schedule import TrainingSchedule
from parabench.store.record import TWIN_REPETITION

# The facts of a shared launch contain this, as JSON.
IN_TURNS = '"turns": {'
# The share of rounds that is left out at each end, because another process may run during a turn. On two quiet cores,
# the standard deviation of launches was 2.4% with this value and without trimming, and 3.1% with the median of rounds.
TRIMMED = 0.1


def turns_of(facts: pd.Series[str]) -> pd.Series[Any]:
    """Return how each launch interleaved configurations, from its facts; `None` if it ran one configuration."""
    found = [json_text.parsed(text)["turns"] if IN_TURNS in (text or "") else None for text in facts]
    return pd.Series(found, facts.index, dtype=object)


def shares_launch(turns: pd.Series[Any], repetition: pd.Series[int]) -> pd.Series[bool]:
    """Return whether each launch shared its processes; the second copy of an A/A test is compared with nothing else."""
    return turns.notna() & (repetition != TWIN_REPETITION)


def step_turns(turns: pd.Series[Any], launch_ids: pd.Series[int], steps: pd.DataFrame) -> dict[Any, NDArray[Any]]:
    """Return the logarithm of each turn of shared launches, the median of its measured steps, by the index of `turns`.

    Launches that did not complete all rounds, or that have a step of unknown length, are left out.
    """
    ids: dict[Any, Any] = launch_ids.to_dict()
    seconds: dict[Any, NDArray[Any]] = {at: own.to_numpy() for at, own in steps.groupby("launch_id")["step_s"]}
    found: dict[Any, NDArray[Any]] = {}
    for at, told in turns.dropna().items():
        schedule = TrainingSchedule.from_dict(told["protocol"])
        own = np.log(seconds.get(ids[at], np.empty(0)))
        if own.size == schedule.rounds * schedule.timed[told["place"]] and np.isfinite(own).all():
            found[at] = np.median(own.reshape(schedule.rounds, -1), axis=1)
    return found


def in_rounds(
    numbers: pd.Series[float], launches: pd.Series[Any], turns: Mapping[Any, NDArray[Any]]
) -> pd.Series[float]:
    """Return numbers with the ratios of their rounds, among rows with the same value in `launches`.

    `turns` has the logarithms of the turns by row. The geometric mean of the launch does not change.
    """
    found = numbers.copy()
    for rows in launches[list(turns)].groupby(launches).groups.values():
        if len(rows) > 1 and len({len(turns[at]) for at in rows}) == 1:
            logs = compared(np.array([turns[at] for at in rows]))
            found[rows] = np.exp(logs + np.log(numbers[rows]).mean())
    return found


def compared(turns: NDArray[Any]) -> NDArray[Any]:
    """Return how each row differs from the mean of all rows; the mean over rows is 0.

    `turns` are logarithms, with the shape (configurations, rounds). TRIMMED of the rounds are left out at each end.
    """
    apart = np.sort(turns - turns.mean(axis=0), axis=1)
    cut = int(TRIMMED * apart.shape[1])
    numbers = apart[:, cut : apart.shape[1] - cut].mean(axis=1)
    centred: NDArray[Any] = numbers - numbers.mean()
    return centred
