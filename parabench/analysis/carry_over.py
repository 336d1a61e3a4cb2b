"""Does a configuration's turn depend on which configuration had its turn before?

Every session with shared launches is tested. The model is that of first-order residual effects in a crossover trial:
log(turn) = launch and round + launch and configuration + the configuration before + whether a round starts. The levels
of rounds and configurations are removed by centering the numbers and the design of each launch, so launches need not
have the same configurations. Orders are balanced by Williams' designs, so that each configuration follows each other
one equally often. Sizes are fractions of a step. E. J. Williams, "Experimental designs balanced for the estimation of
residual effects of treatments", 1949; B. Jones and M. G. Kenward, "Design and Analysis of Cross-Over Trials", 3rd ed.,
2014, chapter 5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.contrasts import SHARP_ENOUGH
from parabench.analysis.stats.quantiles import Numbers
from parabench.analysis.turns import SharedLaunch, shared_launches_of
from parabench.plan.turns import orders

# The chance of a warning if nothing interferes, as in the regression gate. With the outliers of a shared machine it
# stays below 5% (tests/unit/analysis/test_carry_over.py).
ALPHA = 0.01
# Numbers further than so many robust standard deviations from the fit count as if they were no further: Huber's
# estimator, which with normal noise is 99% as sharp as least squares. Another process may double a turn.
CLIPPED_AT = 2.5
# The standard deviation of normal noise over its median absolute deviation.
_NORMAL = 1.4826
# Fits are repeated until no number moves by more than this.
_ROUNDS, _CLOSE = 50, 1e-6
_TINY = 1e-9


@dataclass(frozen=True)
class Effect:
    """How much longer a step is in the turns after one of this configuration, as a fraction.

    It is relative to the average of the configurations that launches connect it with. `low` to `high` is the 95%
    interval for all configurations at once (Bonferroni), and `p` is adjusted for them. `None` if the launches are too
    few to tell.
    """

    case_id: str
    size: float | None
    low: float | None
    high: float | None
    p: float | None


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
        """Whether the effect that was found is as large as differences that are reported."""
        return self.found is not None and abs(self.found.size or 0.0) > SHARP_ENOUGH


def carry_over(seen: SessionData) -> CarryOver | None:
    """Test a session. Return `None` if no configurations shared a launch."""
    launches = seen.once(shared_launches_of)
    return judge(launches) if launches else None


def judge(launches: Sequence[SharedLaunch]) -> CarryOver:
    """Test shared launches."""
    from scipy.special import stdtr, stdtrit  # takes a fifth of a second, which most commands need not spend

    names = list(dict.fromkeys(name for each in launches for name in each.names))
    designs = [_design(each, names) for each in launches]
    sizes, errors, df = _estimate([each.turns for each in launches], designs, len(names))
    among = max(1, int(np.isfinite(errors).sum()))
    widths = stdtrit(max(1, df), 1 - (1 - CONFIDENCE) / (2 * among)) * errors
    ratios = np.divide(sizes, errors, out=np.full(len(names), np.nan), where=errors > 0)
    ps = among * 2 * stdtr(max(1, df), -np.abs(ratios))
    effects = tuple(
        Effect(
            case_id=name,
            size=format.number_or_none(math.expm1(size)),
            low=format.number_or_none(math.expm1(size - width)),
            high=format.number_or_none(math.expm1(size + width)),
            p=min(1.0, float(p)) if math.isfinite(p) else None,
        )
        for name, size, width, p in zip(names, sizes, widths, ps, strict=True)
    )
    significant = [each for each in effects if each.p is not None and each.p <= ALPHA]
    return CarryOver(
        launches=len(launches),
        last=tuple(launches[-1].cases),
        effects=effects,
        found=min(significant, key=lambda each: each.p or 0.0, default=None),
    )


def _design(launch: SharedLaunch, names: Sequence[str]) -> Numbers:
    """Return what preceded each turn, of shape (cases, rounds, names + 1); the last is the start of a round."""
    own = launch.names
    rounds = orders(len(own), launch.protocol.rounds, launch.protocol.seed)
    before = np.zeros((len(own), len(rounds), len(names) + 1))
    # Before the first turn the last case was warmed up.
    sequence = [(-1, len(own) - 1), *((number, arm) for number, order in enumerate(rounds) for arm in order)]
    for (earlier, predecessor), (number, arm) in pairwise(sequence):
        before[arm, number, names.index(own[predecessor])] = 1.0
        # The first turn of a round follows a pause, in which garbage is collected.
        before[arm, number, -1] = float(earlier != number)
    return before[list(launch.rows)]


def _estimate(tables: Sequence[Numbers], designs: Sequence[Numbers], tested: int) -> tuple[Numbers, Numbers, int]:
    """Return the `tested` first effects of the designs, their standard errors (NaN if unknown), and the degrees of
    freedom."""
    x = [_centered(each) for each in designs]
    flat = [each.reshape(-1, each.shape[-1]) for each in x]
    normal = sum((each.T @ each for each in flat), np.zeros((x[0].shape[-1],) * 2))
    inverse = np.asarray(np.linalg.pinv(normal, rcond=_TINY, hermitian=True), dtype=float)
    rank = int(np.linalg.matrix_rank(normal, tol=_TINY * max(1.0, float(np.abs(normal).max()))))
    df = sum((each.shape[0] - 1) * (each.shape[1] - 1) for each in x) - rank
    if df < 1:
        unknown = np.full(tested, np.nan)
        return unknown, unknown, df
    effects, residuals, limit = _fitted(tables, x, inverse, df)
    clipped = np.clip(residuals, -limit, limit)
    variance = float(clipped @ clipped) / df / max(_TINY, float(np.mean(np.abs(residuals) <= limit))) ** 2
    contrast, known = _contrasts(designs, inverse @ normal, tested)
    errors = np.sqrt(np.maximum(0.0, variance * np.einsum("ij,jk,ik->i", contrast, inverse, contrast)))
    return np.where(known, contrast @ effects, np.nan), np.where(known, errors, np.nan), df


def _fitted(
    tables: Sequence[Numbers], x: Sequence[Numbers], inverse: Numbers, df: int
) -> tuple[Numbers, Numbers, float]:
    """Return Huber's estimates of the effects, the residuals, and the limit at which they are clipped."""
    working = list(tables)
    for _ in range(_ROUNDS):
        centered = [_centered(each) for each in working]
        effects = inverse @ sum(
            (of.reshape(each.size, len(inverse)).T @ each.ravel() for of, each in zip(x, centered, strict=True)),
            np.zeros(len(inverse)),
        )
        fits = [each - left + of @ effects for each, left, of in zip(working, centered, x, strict=True)]
        residuals = np.concatenate([(each - fit).ravel() for each, fit in zip(tables, fits, strict=True)])
        # Residuals vary less than the noise, because the fit follows it.
        limit = CLIPPED_AT * _NORMAL * float(np.median(np.abs(residuals))) * math.sqrt(len(residuals) / df)
        clipped = [fit + np.clip(each - fit, -limit, limit) for fit, each in zip(fits, tables, strict=True)]
        moved = max(float(np.abs(new - old).max()) for new, old in zip(clipped, working, strict=True))
        working = clipped
        if moved < _CLOSE:
            break
    return effects, residuals, limit


def _centered(table: Numbers) -> Numbers:
    """Return the table without the levels of its rows and columns."""
    table = table - table.mean(axis=0, keepdims=True)
    found: Numbers = table - table.mean(axis=1, keepdims=True)
    return found


def _contrasts(
    designs: Sequence[Numbers], projection: Numbers, tested: int
) -> tuple[Numbers, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return each tested effect minus the mean of those that launches connect it with, and whether it is known."""
    there = np.array([np.abs(each[..., :tested]).any(axis=(0, 1)) for each in designs], dtype=float)
    joined = there.T @ there > 0
    while (further := joined @ joined).sum() > joined.sum():
        joined = further
    contrast = np.zeros((tested, len(projection)))
    contrast[:, :tested] = np.eye(tested) - joined / np.maximum(1, joined.sum(axis=1, keepdims=True))
    known = np.abs(contrast @ projection - contrast).max(axis=1) < 1e-6
    return contrast, known & (joined.sum(axis=1) > 1)


def sentence(of: CarryOver, labels: Mapping[str, str]) -> str:
    """Describe the effect that was found, or how much is ruled out."""
    if found := of.found:
        size, interval = found.size or 0.0, ""
        if found.low is not None and found.high is not None:
            interval = f" (95%: {format.signed(found.low)} to {format.signed(found.high)})"
        slower = f"{format.percent(abs(size))} {'slower' if size > 0 else 'faster'}"
        return (
            "Interference between interleaved configurations: the turn after one of "
            f"{labels.get(found.case_id, found.case_id)} is {slower} than after the others{interval}."
        )
    launches = format.count(of.launches, "shared launch")
    measured = [each for each in of.effects if each.case_id in of.last]
    ends = [abs(end) for each in measured for end in (each.low, each.high) if end is not None]
    among = "" if len(measured) == len(of.effects) else "among the configurations of the last, "
    depends = f"{among}a turn depends on the configuration before it by less than"
    bound = f": {depends} {format.percent(max(ends))} (95%)" if ends else ""
    return f"No interference between interleaved configurations was found in {launches}{bound}."
