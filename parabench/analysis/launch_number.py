"""Compute one number per launch from its steps or calls.

- **Separate launches**: a quantile (`QUANTILE`). `numbers.step_numbers` computes it for tables.
- **Watched loops**: the mean step, from the account of the loop's time that `watching.loop.loop_time` computes.
- **Interleaved configurations**: a turn has the consecutive steps of one configuration in an interleaved round. Changes
  while a launch runs (another process starts, a clock falls) affect all turns of a round alike. So turns are compared
  with the other turns of their round, and rounds are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from parabench import json_text
from parabench.machine import accelerator
from parabench.plan.case import UNKNOWN
from parabench.plan.schedule import TrainingSchedule
from parabench.store.record import TWIN_REPETITION

if TYPE_CHECKING:  # ranks import this module with the driver's, and pandas takes half a second
    import pandas as pd

# Other tenants of a shared CPU only make a step slower, so a low quantile estimates the undisturbed step. Its A/A
# spread was 2.5%, and the spread of the median was 9.7%. On a dedicated GPU, which is not disturbed, the median is
# robust.
QUANTILE = {accelerator.TYPE: 0.5, "cpu": 0.1, UNKNOWN: 0.5}
STATISTIC = {accelerator.TYPE: "median", "cpu": "10th percentile", UNKNOWN: "median"}
# The statistic of a watched loop, whose steps differ on purpose: every few steps log, save or validate.
MEAN = "mean"
# The facts of a launch contain these as JSON, if it interleaved configurations, or if it watched a loop.
_TURNS, _LOOP = '"turns": {', '"loop": {'
# The share of rounds that is left out at each end, because another process may run during a turn. On two quiet cores,
# the standard deviation of launches was 2.4% with this value and without trimming, and 3.1% with the median of rounds.
TRIMMED = 0.1


def launch_number(seconds: Iterable[float], device: str) -> float | None:
    """Return the statistic of one launch on `device` (cuda, cpu), or None if no length is known.

    `seconds` are the lengths of its steps or calls on their slowest ranks. Unknown lengths are not finite, and do not
    count.
    """
    known = [each for each in seconds if math.isfinite(each)]
    return float(np.quantile(known, QUANTILE[device])) if known else None


# ---- watched loops


@dataclass(frozen=True, slots=True)
class LoopTime:
    """The wall time of a watched loop on one rank, after the first `first` steps.

    `seconds` are the totals of the parts over all `steps`, of which `instrumented` had instruments. In each group of
    `expensive` steps, every `every`-th step (None: irregular) takes `extra_s` longer in one `part`. In total, this is
    `share` of the loop.
    """

    rank: int
    first: int
    steps: int
    instrumented: int
    seconds: Mapping[str, float]
    expensive: Sequence[Mapping[str, Any]]

    @property
    def step_s(self) -> float:
        """The mean step: wall time over steps."""
        return sum(self.seconds.values()) / self.steps

    def part_s(self, name: str) -> float:
        """Return the mean of one part over the same steps; NaN if the loop has no such part."""
        return self.seconds[name] / self.steps if name in self.seconds else float("nan")


def loop_times(facts: pd.Series[str]) -> list[LoopTime | None]:
    """Return the loop time in the facts (JSON) of each launch; `None` for a launch without a watched loop."""
    texts = (text if isinstance(text, str) and _LOOP in text else None for text in facts)
    return [None if text is None else LoopTime(**json_text.parsed(text)["loop"]) for text in texts]


# ---- interleaved configurations


def turns_of(facts: pd.Series[str]) -> pd.Series[Any]:
    """Return how each launch interleaved configurations, from its facts (JSON); `None` if it ran one configuration."""
    return facts.astype(object).map(lambda text: json_text.parsed(text)["turns"] if _TURNS in (text or "") else None)


def shares_launch(turns: pd.Series[Any], repetition: pd.Series[int]) -> pd.Series[bool]:
    """Return whether each launch shared its processes, except the second copy of an A/A test.

    `turns` is the result of `turns_of`. The second copy is compared with nothing but the first copy.
    """
    return turns.notna() & (repetition != TWIN_REPETITION)


def step_turns(turns: pd.Series[Any], launch_ids: pd.Series[int], steps: pd.DataFrame) -> dict[Any, NDArray[Any]]:
    """Return log(median measured step) of each turn, shape (rounds,), by the index of `turns` (from `turns_of`).

    Launches that did not complete all rounds, or that have a step of unknown length, are left out.
    """
    ids: dict[Any, Any] = launch_ids.to_dict()
    seconds: dict[Any, NDArray[Any]] = {at: own.to_numpy() for at, own in steps.groupby("launch_id")["step_s"]}
    found: dict[Any, NDArray[Any]] = {}
    for at, interleaving in turns.dropna().items():
        schedule = TrainingSchedule.from_dict(interleaving["protocol"])
        own = np.log(seconds.get(ids[at], np.empty(0)))
        if own.size == schedule.rounds * schedule.timed[interleaving["place"]] and np.isfinite(own).all():
            found[at] = np.median(own.reshape(schedule.rounds, -1), axis=1)
    return found


def in_rounds(
    numbers: pd.Series[float], launches: pd.Series[Any], turns: Mapping[Any, NDArray[Any]]
) -> pd.Series[float]:
    """Return `numbers` with ratios that are computed round by round, among rows with the same value in `launches`.

    `turns` has the logarithms of the turns by row. The geometric mean of the rows does not change.
    """
    found = numbers.copy()
    for rows in launches[list(turns)].groupby(launches).groups.values():
        if len(rows) > 1 and len({len(turns[at]) for at in rows}) == 1:
            logs = compared(np.array([turns[at] for at in rows]))
            found[rows] = np.exp(logs + np.log(numbers[rows]).mean())
    return found


def compared(turns: NDArray[Any]) -> NDArray[Any]:
    """Return how each configuration differs from the mean of all, shape (configurations,); the mean is 0.

    `turns` are logarithms, with the shape (configurations, rounds). TRIMMED of the rounds are left out at each end.
    """
    apart = np.sort(turns - turns.mean(axis=0), axis=1)
    cut = int(TRIMMED * apart.shape[1])
    numbers = apart[:, cut : apart.shape[1] - cut].mean(axis=1)
    centred: NDArray[Any] = numbers - numbers.mean()
    return centred
