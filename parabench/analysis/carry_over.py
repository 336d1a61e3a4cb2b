"""Test shared launches: the noise floor of an A/A test, and interference between interleaved configurations.

With interference, a configuration's turn depends on the configuration before it. Every session with shared launches is
tested. The model is a crossover trial (B. Jones and M. G. Kenward, "Design and Analysis of Cross-Over Trials", 3rd ed.,
2014, chapter 5):

    log(turn) = launch and round + launch and configuration + the configuration before + start of a round

Centering removes the levels of rounds and configurations. Orders are balanced by Williams' designs (1949), so that each
configuration follows each other one equally often.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.launch_number import compared, step_turns, turns_of
from parabench.analysis.session import SessionData
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.contrasts import SHARP_ENOUGH, Numbers, components
from parabench.analysis.stats.quantiles import t_quantile
from parabench.plan.schedule import TrainingSchedule, orders
from parabench.store.record import Status
from parabench.store.results import records

# The chance of a warning if nothing interferes, as in the regression gate. With the outliers of a shared machine it
# stays below 5% (tests/unit/analysis/test_carry_over.py).
ALPHA = 0.01
# Residuals are clipped at this number of robust standard deviations, because another process may double a turn. This is
# Huber's estimator. With normal noise, it is 99% as sharp as least squares.
CLIPPED_AT = 2.5
# The standard deviation of normal noise over its median absolute deviation.
_NORMAL = 1.4826
# Fits are repeated until no number moves by more than this.
_MOST_FITS, _CLOSE = 50, 1e-6
_TINY = 1e-9


@dataclass(frozen=True)
class SharedLaunch:
    """The turns of a shared launch.

    `names` are its configurations, in the order of the launch. `rows` are the indices of those whose steps are all
    known, and `turns` are the logarithms of their turns, of shape (rows, rounds).
    """

    names: tuple[str, ...]
    schedule: TrainingSchedule
    rows: tuple[int, ...]
    turns: Numbers

    @property
    def cases(self) -> list[str]:
        """The configurations of `rows`."""
        return [self.names[row] for row in self.rows]


def shared_launches_of(seen: SessionData) -> list[SharedLaunch]:
    """Return the successful shared launches of a session, with the configurations whose steps are all known."""
    table = seen.numbers[seen.numbers["status"] == Status.OK]
    interleaving = turns_of(table["facts"]).dropna()
    turns = step_turns(interleaving, table["launch_id"], seen.results.steps)
    groups: dict[tuple[Any, ...], dict[int, Any]] = {}
    for at, each in interleaving.items():
        groups.setdefault((each["protocol"]["seed"], *each["cases"]), {})[each["place"]] = at
    found = []
    for (_, *names), places in groups.items():
        whole = {place: turns[places[place]] for place in sorted(places) if places[place] in turns}
        if len(whole) > 1:
            schedule = TrainingSchedule.from_dict(interleaving[next(iter(places.values()))]["protocol"])
            found.append(SharedLaunch(tuple(names), schedule, tuple(whole), np.array(list(whole.values()))))
    return found


def noise_floor(seen: SessionData) -> list[str]:
    """Return a line with the noise floor of an A/A test (`--aa`); none if no configuration has a copy.

    'Two copies of X differed by 0.4% (95%: ±0.9%) in 5 shared launches.'
    """
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


@dataclass(frozen=True)
class CarryOver:
    """The effect of each configuration on the turn after it, over `launches` shared launches.

    `effects` has a row per configuration. Unknown numbers are NaN.

    - `size`: a fraction, relative to the average configuration
    - `low` and `high`: the 95% interval for all configurations at once (Bonferroni)
    - `p`: adjusted for all configurations
    - `last`: whether the configuration is in the last launch; eliminated ones have wider intervals
    """

    launches: int
    effects: pd.DataFrame

    @property
    def found(self) -> dict[Any, Any] | None:
        """The most significant effect, if it is below ALPHA."""
        significant = self.effects[self.effects["p"] <= ALPHA].sort_values("p", kind="stable")
        return records(significant)[0] if len(significant) else None

    @property
    def matters(self) -> bool:
        """True if the effect is as large as a reported difference."""
        return self.found is not None and abs(self.found["size"]) > SHARP_ENOUGH


def carry_over(seen: SessionData) -> CarryOver | None:
    """Test a session for interference. Return `None` if no configurations shared a launch."""
    launches = seen.once(shared_launches_of)
    return judge(launches) if launches else None


def judge(launches: Sequence[SharedLaunch]) -> CarryOver:
    """Test shared launches for interference."""
    from scipy.special import stdtr, stdtrit  # takes a fifth of a second to import, which most commands do not need

    names = list(dict.fromkeys(name for each in launches for name in each.names))
    sizes, errors, df = _estimate(launches, names)
    among = max(1, int(np.isfinite(errors).sum()))
    widths = stdtrit(max(1, df), 1 - (1 - CONFIDENCE) / (2 * among)) * errors
    ratios = np.divide(sizes, errors, out=np.full(len(names), np.nan), where=errors > 0)
    ends = {"size": sizes, "low": sizes - widths, "high": sizes + widths}
    effects = pd.DataFrame({"case_id": names, **{name: np.expm1(values) for name, values in ends.items()}})
    p = np.minimum(1.0, among * 2 * stdtr(max(1, df), -np.abs(ratios)))
    return CarryOver(len(launches), effects.assign(p=p, last=effects["case_id"].isin(launches[-1].cases)))


def _estimate(launches: Sequence[SharedLaunch], names: Sequence[str]) -> tuple[Numbers, Numbers, int]:
    """Return the effects of `names`, their standard errors, and the degrees of freedom. Unknown values are NaN.

    An effect is relative to the mean of all configurations that launches connect it with.
    """
    k = len(names)
    x = np.concatenate([_centered(_design(each, names)).reshape(-1, k + 1) for each in launches])
    normal = x.T @ x
    inverse = np.linalg.pinv(normal, rcond=_TINY, hermitian=True)
    rank = int(np.linalg.matrix_rank(normal, tol=_TINY * max(1.0, float(np.abs(normal).max()))))
    df = sum((each.turns.shape[0] - 1) * (each.turns.shape[1] - 1) for each in launches) - rank
    if df < 1:
        return np.full(k, np.nan), np.full(k, np.nan), df
    effects, variance = _robust_fit([each.turns for each in launches], x, inverse, df)
    place = np.array([names.index(name) for each in launches for name in each.names])
    component = components(place, np.repeat(np.arange(len(launches)), [len(each.names) for each in launches]))[:k]
    joined = component[:, None] == component
    contrast = np.eye(k, k + 1)
    contrast[:, :k] -= joined / joined.sum(axis=1, keepdims=True)
    known = (np.abs(contrast @ inverse @ normal - contrast).max(axis=1) < 1e-6) & (joined.sum(axis=1) > 1)
    errors = np.sqrt(np.maximum(0.0, variance * np.einsum("ij,jk,ik->i", contrast, inverse, contrast)))
    return np.where(known, contrast @ effects, np.nan), np.where(known, errors, np.nan), df


def _robust_fit(tables: Sequence[Numbers], x: Numbers, inverse: Numbers, df: int) -> tuple[Numbers, float]:
    """Return Huber's estimate of the effects, and the variance of a turn.

    Residuals beyond a limit are clipped, and the fit is repeated.
    """
    y = np.concatenate([each.ravel() for each in tables])
    working, splits = y, np.cumsum([each.size for each in tables])[:-1]
    for _ in range(_MOST_FITS):
        parts = zip(np.split(working, splits), tables, strict=True)
        centered = np.concatenate([_centered(part.reshape(table.shape)).ravel() for part, table in parts])
        effects = inverse @ x.T @ centered
        fitted = working - centered + x @ effects
        residuals = y - fitted
        # Residuals vary less than the noise, because the fit follows it.
        limit = CLIPPED_AT * _NORMAL * float(np.median(np.abs(residuals))) * math.sqrt(len(y) / df)
        clipped = np.clip(residuals, -limit, limit)
        moved = float(np.abs(fitted + clipped - working).max())
        working = fitted + clipped
        if moved < _CLOSE:
            break
    kept = max(_TINY, float(np.mean(np.abs(residuals) <= limit)))
    return effects, float(clipped @ clipped) / df / kept**2


def _design(launch: SharedLaunch, names: Sequence[str]) -> Numbers:
    """Return the design matrix: 1 for the predecessor of each turn; shape (rows, rounds, names + 1).

    The last column is 1 at the start of a round.
    """
    own = launch.names
    rounds = orders(len(own), launch.schedule.rounds, launch.schedule.seed)
    before = np.zeros((len(own), len(rounds), len(names) + 1))
    # Before the first turn the last case was warmed up.
    sequence = [(-1, len(own) - 1), *((number, arm) for number, order in enumerate(rounds) for arm in order)]
    for (earlier, predecessor), (number, arm) in pairwise(sequence):
        before[arm, number, names.index(own[predecessor])] = 1.0
        # The first turn of a round follows a pause for garbage collection.
        before[arm, number, -1] = float(earlier != number)
    return before[list(launch.rows)]


def _centered(table: Numbers) -> Numbers:
    """Return the table minus the means of its rows and columns."""
    table = table - table.mean(axis=0, keepdims=True)
    found: Numbers = table - table.mean(axis=1, keepdims=True)
    return found


def sentence(tested: CarryOver, labels: Mapping[str, str]) -> str:
    """Return a sentence about the interference that was found, or about the bound if none was found."""
    if found := tested.found:
        slower = f"{format.percent(abs(found['size']))} {'slower' if found['size'] > 0 else 'faster'}"
        return (
            f"Interference between interleaved configurations: steps after {labels[found['case_id']]} are {slower} "
            f"than after the others (95%: {format.signed(found['low'])} to {format.signed(found['high'])})."
        )
    effects = tested.effects
    among = "" if effects["last"].all() else "among the configurations of the last, "
    most = float(effects.loc[effects["last"], ["low", "high"]].abs().max().max())
    bound = f": {among}a step time depends on the previous configuration by less than {format.percent(most)} (95%)"
    launches = format.count(tested.launches, "shared launch")
    none = f"No interference between interleaved configurations was found in {launches}"
    return f"{none}{bound if format.known(most) else ''}."
