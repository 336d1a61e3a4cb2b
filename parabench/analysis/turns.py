"""Configurations that shared a launch are compared round by round.

Changes while a launch runs (another process starts, a clock falls) hit all turns of one round alike. So each turn is
compared with the other turns of its round, and rounds are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from parabench import json_text
from parabench.analysis import format
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.quantiles import t_quantile
from parabench.plan.schedule import TrainingSchedule
from parabench.store.record import TWIN_REPETITION, Status

if TYPE_CHECKING:
    from parabench.analysis.session import SessionData

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


@dataclass(frozen=True)
class SharedLaunch:
    """The turns of a shared launch.

    `names` are its configurations by place. `rows` are the places whose steps are all known, and `turns` the logarithms
    of their turns, of shape (rows, rounds).
    """

    names: tuple[str, ...]
    schedule: TrainingSchedule
    rows: tuple[int, ...]
    turns: NDArray[Any]

    @property
    def cases(self) -> list[str]:
        """The configurations of `rows`."""
        return [self.names[place] for place in self.rows]


def shared_launches_of(seen: SessionData) -> list[SharedLaunch]:
    """Return the successful shared launches of a session, with the configurations whose steps are all known."""
    table = seen.numbers[seen.numbers["status"] == Status.OK]
    told = turns_of(table["facts"]).dropna()
    turns = step_turns(told, table["launch_id"], seen.results.steps)
    groups: dict[tuple[Any, ...], dict[int, Any]] = {}
    for at, each in told.items():
        groups.setdefault((each["protocol"]["seed"], *each["cases"]), {})[each["place"]] = at
    found = []
    for (_, *names), places in groups.items():
        whole = {place: turns[places[place]] for place in sorted(places) if places[place] in turns}
        if len(whole) > 1:
            schedule = TrainingSchedule.from_dict(told[next(iter(places.values()))]["protocol"])
            found.append(SharedLaunch(tuple(names), schedule, tuple(whole), np.array(list(whole.values()))))
    return found


def noise_floor(seen: SessionData) -> list[str]:
    """Return the noise floor of an A/A test (`--aa`), or nothing without copies.

    'Two copies of X differed by 0.4% (95%: ±0.9%) in 5 shared launches.'
    """
    if not (seen.numbers["repetition"] == TWIN_REPETITION).any():
        return []
    differences: list[float] = []
    for launch in seen.once(shared_launches_of):
        copies = [row for row, case in enumerate(launch.cases) if launch.cases.count(case) > 1]
        if len(copies) == 2:
            first, second = compared(launch.turns)[copies]
            differences.append(float(second - first))
            copied = seen.labels[launch.cases[copies[0]]]
    if not differences:
        return []
    n, within = len(differences), ""
    if n > 1:
        width = t_quantile((1 + CONFIDENCE) / 2, n - 1) * float(np.std(differences, ddof=1)) / math.sqrt(n)
        within = f" (95%: {format.within(math.expm1(width))})"
    difference = format.percent(abs(math.expm1(np.mean(differences))))
    launches = format.count(n, "shared launch")
    return [f"Two copies of {copied} differed by {difference}{within} in {launches}."]
