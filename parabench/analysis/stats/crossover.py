"""Effects of a crossover trial, fitted by least squares inside tables whose own levels cancel.

A table is what one launch measured: a row a case, a column a round. Its rows and columns have levels of their own (how
fast a case is in this launch, what drifted in this round), which are taken off by centring, of the numbers and of the
design alike; so launches need not hold the same cases (B. Jones and M. G. Kenward, "Design and Analysis of Cross-Over
Trials", 3rd ed., 2014, chapter 5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from parabench.analysis.stats import CONFIDENCE

Numbers = np.ndarray[Any, np.dtype[np.float64]]

# Numbers further than so many robust standard deviations from the fit count as if they were no further: Huber's
# estimator, which with normal noise is 99 % as sharp as least squares. Another process may double a turn.
CLIPPED_AT = 2.5
# The standard deviation of normal noise by its median absolute deviation.
_NORMAL = 1.4826
# Fits are repeated until no number moves by more than that.
_ROUNDS, _CLOSE = 50, 1e-6
_TINY = 1e-9


class Table(NamedTuple):
    """`numbers` of shape (rows, columns); `design` of (rows, columns, effects), of which the first ones are tested and
    the others only taken off."""

    numbers: Numbers
    design: Numbers


@dataclass(frozen=True)
class Estimates:
    """Effects relative to the average of those that the tables compare them with, their standard errors (NaN where the
    tables do not tell), and the degrees of freedom."""

    effects: Numbers
    errors: Numbers
    df: int

    def p_values(self) -> Numbers:
        """Of each effect by itself, two-sided; NaN where it is not known."""
        from scipy.special import stdtr  # a fifth of a second that most commands need not spend

        known = np.isfinite(self.errors) & (self.errors > 0)
        found = np.full(len(self.effects), np.nan)
        found[known] = 2 * stdtr(max(1, self.df), -np.abs(self.effects[known] / self.errors[known]))
        return found

    def half_widths(self, among: int) -> Numbers:
        """Of 95 % intervals that hold for `among` effects at once (Bonferroni)."""
        from scipy.special import stdtrit

        widths: Numbers = stdtrit(max(1, self.df), 1 - (1 - CONFIDENCE) / (2 * among)) * self.errors
        return widths


def estimate(tables: Sequence[Table], tested: int) -> Estimates:
    """Estimate the `tested` first effects of the design."""
    x = [_centred(each.design) for each in tables]
    flat = [each.reshape(-1, each.shape[-1]) for each in x]
    normal = sum((each.T @ each for each in flat), np.zeros((x[0].shape[-1],) * 2))
    inverse = np.asarray(np.linalg.pinv(normal, rcond=_TINY, hermitian=True), dtype=float)
    rank = int(np.linalg.matrix_rank(normal, tol=_TINY * max(1.0, float(np.abs(normal).max()))))
    df = sum((each.shape[0] - 1) * (each.shape[1] - 1) for each in x) - rank
    if df < 1:
        unknown = np.full(tested, np.nan)
        return Estimates(unknown, unknown, df)
    effects, errors, limit = _fitted([each.numbers for each in tables], x, inverse, df)
    every = np.concatenate([each.ravel() for each in errors])
    clipped = np.clip(every, -limit, limit)
    variance = float(clipped @ clipped) / df / max(_TINY, float(np.mean(np.abs(every) <= limit))) ** 2
    contrast, known = _contrasts(tables, inverse @ normal, tested)
    errors_of = np.sqrt(np.maximum(0.0, variance * np.einsum("ij,jk,ik->i", contrast, inverse, contrast)))
    return Estimates(np.where(known, contrast @ effects, np.nan), np.where(known, errors_of, np.nan), df)


def _fitted(
    tables: Sequence[Numbers], x: Sequence[Numbers], inverse: Numbers, df: int
) -> tuple[Numbers, list[Numbers], float]:
    """Huber's estimates: (effects, what they and the levels leave of each table, where that is clipped)."""
    working = list(tables)
    for _ in range(_ROUNDS):
        centred = [_centred(each) for each in working]
        effects = inverse @ sum(
            (of.reshape(each.size, len(inverse)).T @ each.ravel() for of, each in zip(x, centred, strict=True)),
            np.zeros(len(inverse)),
        )
        fits = [each - left + of @ effects for each, left, of in zip(working, centred, x, strict=True)]
        errors = [each - fit for each, fit in zip(tables, fits, strict=True)]
        every = np.concatenate([each.ravel() for each in errors])
        # What is fitted varies less than the noise by what the fit took of its freedom.
        limit = CLIPPED_AT * _NORMAL * float(np.median(np.abs(every))) * math.sqrt(len(every) / df)
        clipped = [fit + np.clip(each, -limit, limit) for fit, each in zip(fits, errors, strict=True)]
        moved = max(float(np.abs(new - old).max()) for new, old in zip(clipped, working, strict=True))
        working = clipped
        if moved < _CLOSE:
            break
    return effects, errors, limit


def _centred(table: Numbers) -> Numbers:
    """Return the table less the levels of its rows and columns."""
    table = table - table.mean(axis=0, keepdims=True)
    centred: Numbers = table - table.mean(axis=1, keepdims=True)
    return centred


def _contrasts(tables: Sequence[Table], projection: Numbers, tested: int) -> tuple[Numbers, np.ndarray[Any, Any]]:
    """Each tested effect less the mean of those that tables connect it with, and whether the tables tell it."""
    there = np.array([np.abs(each.design[..., :tested]).any(axis=(0, 1)) for each in tables], dtype=float)
    joined = there.T @ there > 0
    while (further := joined @ joined).sum() > joined.sum():
        joined = further
    contrast = np.zeros((tested, len(projection)))
    contrast[:, :tested] = np.eye(tested) - joined / np.maximum(1, joined.sum(axis=1, keepdims=True))
    told = np.abs(contrast @ projection - contrast).max(axis=1) < 1e-6
    return contrast, told & (joined.sum(axis=1) > 1)
