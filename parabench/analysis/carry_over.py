"""Interference: does a configuration's turn depend on the configuration before it?

Every session with shared launches is tested, with the model of a crossover trial (B. Jones and M. G. Kenward, "Design
and Analysis of Cross-Over Trials", 3rd ed., 2014, chapter 5):

    log(turn) = launch and round + launch and configuration + the configuration before + start of a round

Centering removes the levels of rounds and configurations. Orders are balanced by Williams' designs (1949), so that each
configuration follows each other one equally often.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.contrasts import SHARP_ENOUGH, Numbers, components
from parabench.analysis.turns import SharedLaunch, shared_launches_of
from parabench.plan.schedule import orders

# The chance of a warning if nothing interferes, as in the regression gate. With the outliers of a shared machine it
# stays below 5% (tests/unit/analysis/test_carry_over.py).
ALPHA = 0.01
# Residuals are clipped at this number of robust standard deviations, because another process may double a turn. This is
# Huber's estimator. With normal noise, it is 99% as sharp as least squares.
CLIPPED_AT = 2.5
# The standard deviation of normal noise over its median absolute deviation.
_NORMAL = 1.4826
# Fits are repeated until no number moves by more than this.
_ROUNDS, _CLOSE = 50, 1e-6
_TINY = 1e-9


@dataclass(frozen=True)
class Effect:
    """The effect of a configuration on the turns after it, relative to the average configuration; `None` is unknown."""

    case_id: str
    size: float | None  # how much longer a step is, a fraction
    low: float | None  # the 95% interval for all configurations at once (Bonferroni)
    high: float | None
    p: float | None  # adjusted for all configurations


@dataclass(frozen=True)
class CarryOver:
    """The effect of each configuration on the turn after it, over `launches` shared launches.

    `last` are the configurations of the last launch. `found` is the most significant effect, if it is below ALPHA.
    """

    launches: int
    last: tuple[str, ...]
    effects: tuple[Effect, ...]
    found: Effect | None

    @property
    def matters(self) -> bool:
        """Return whether the effect is as large as differences that are reported."""
        return self.found is not None and abs(self.found.size or 0.0) > SHARP_ENOUGH


def carry_over(seen: SessionData) -> CarryOver | None:
    """Test a session. Return `None` if no configurations shared a launch."""
    launches = seen.once(shared_launches_of)
    return judge(launches) if launches else None


def judge(launches: Sequence[SharedLaunch]) -> CarryOver:
    """Test shared launches."""
    from scipy.special import stdtr, stdtrit  # takes a fifth of a second, which most commands need not spend

    names = list(dict.fromkeys(name for each in launches for name in each.names))
    sizes, errors, df = _estimate(launches, names)
    among = max(1, int(np.isfinite(errors).sum()))
    widths = stdtrit(max(1, df), 1 - (1 - CONFIDENCE) / (2 * among)) * errors
    ratios = np.divide(sizes, errors, out=np.full(len(names), np.nan), where=errors > 0)
    ps = np.minimum(1.0, among * 2 * stdtr(max(1, df), -np.abs(ratios)))
    ends = np.expm1([sizes, sizes - widths, sizes + widths])
    effects = tuple(
        Effect(name, *map(format.number_or_none, numbers))
        for name, *numbers in zip(names, *ends.tolist(), ps.tolist(), strict=True)
    )
    significant = [each for each in effects if each.p is not None and each.p <= ALPHA]
    found = min(significant, key=lambda each: each.p or 0.0, default=None)
    return CarryOver(len(launches), tuple(launches[-1].cases), effects, found)


def _design(launch: SharedLaunch, names: Sequence[str]) -> Numbers:
    """Return what preceded each turn, of shape (cases, rounds, names + 1); the last is the start of a round."""
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


def _estimate(launches: Sequence[SharedLaunch], names: Sequence[str]) -> tuple[Numbers, Numbers, int]:
    """Return the effect of each of `names` relative to the mean of all that launches connect it with, the standard
    errors, and the degrees of freedom. Unknown values are NaN."""
    k, unknown = len(names), np.full(len(names), np.nan)
    x = [_centered(_design(each, names)) for each in launches]
    flat = np.concatenate([each.reshape(-1, k + 1) for each in x])
    normal = flat.T @ flat
    inverse = np.asarray(np.linalg.pinv(normal, rcond=_TINY, hermitian=True), dtype=float)
    rank = int(np.linalg.matrix_rank(normal, tol=_TINY * max(1.0, float(np.abs(normal).max()))))
    df = sum((each.shape[0] - 1) * (each.shape[1] - 1) for each in x) - rank
    if df < 1:
        return unknown, unknown, df
    # Huber's estimate: residuals beyond the limit are clipped, and the fit is repeated until nothing moves.
    tables = [each.turns for each in launches]
    y = np.concatenate([each.ravel() for each in tables])
    working, splits = y, np.cumsum([each.size for each in tables])[:-1]
    for _ in range(_ROUNDS):
        parts = zip(np.split(working, splits), tables, strict=True)
        centered = np.concatenate([_centered(part.reshape(table.shape)).ravel() for part, table in parts])
        effects = inverse @ flat.T @ centered
        fitted = working - centered + flat @ effects
        residuals = y - fitted
        # Residuals vary less than the noise, because the fit follows it.
        limit = CLIPPED_AT * _NORMAL * float(np.median(np.abs(residuals))) * math.sqrt(len(y) / df)
        clipped = np.clip(residuals, -limit, limit)
        moved = float(np.abs(fitted + clipped - working).max())
        working = fitted + clipped
        if moved < _CLOSE:
            break
    variance = float(clipped @ clipped) / df / max(_TINY, float(np.mean(np.abs(residuals) <= limit))) ** 2
    place = np.array([names.index(name) for each in launches for name in each.names])
    component = components(place, np.repeat(np.arange(len(launches)), [len(each.names) for each in launches]))[:k]
    joined = component[:, None] == component
    contrast = np.eye(k, k + 1)
    contrast[:, :k] -= joined / joined.sum(axis=1, keepdims=True)
    known = (np.abs(contrast @ inverse @ normal - contrast).max(axis=1) < 1e-6) & (joined.sum(axis=1) > 1)
    errors = np.sqrt(np.maximum(0.0, variance * np.einsum("ij,jk,ik->i", contrast, inverse, contrast)))
    return np.where(known, contrast @ effects, np.nan), np.where(known, errors, np.nan), df


def _centered(table: Numbers) -> Numbers:
    """Return the table without the levels of its rows and columns."""
    table = table - table.mean(axis=0, keepdims=True)
    found: Numbers = table - table.mean(axis=1, keepdims=True)
    return found


def sentence(of: CarryOver, labels: Mapping[str, str]) -> str:
    """Describe the effect that was found, or how much is ruled out."""
    if (found := of.found) and found.size is not None:
        interval = ""
        if found.low is not None and found.high is not None:
            interval = f" (95%: {format.signed(found.low)} to {format.signed(found.high)})"
        slower = f"{format.percent(abs(found.size))} {'slower' if found.size > 0 else 'faster'}"
        name = labels.get(found.case_id, found.case_id)
        return (
            f"Interference between interleaved configurations: turns after {name} are {slower} than after the "
            f"others{interval}."
        )
    measured = [each for each in of.effects if each.case_id in of.last]
    ends = [abs(end) for each in measured for end in (each.low, each.high) if end is not None]
    among = "" if len(measured) == len(of.effects) else "among the configurations of the last, "
    depends = f"{among}a turn depends on the configuration before it by less than"
    bound = f": {depends} {format.percent(max(ends))} (95%)" if ends else ""
    launches = format.count(of.launches, "shared launch")
    return f"No interference between interleaved configurations was found in {launches}{bound}."
