"""The estimator: ratios between units, with simultaneous intervals, tests, and the number of launches for a plan.

A launch gives one number. The steps of a launch are correlated, so they never count as independent samples: this gave
22% to 42% false alarms (docs/explanation/certainty.md). All functions use the logarithms of these numbers, because
noise is proportional to them. The model is

    log(number) = unit + block + noise

`fit` compares the configurations of a session (`best`, racing, bucket curves, scaling, crossovers). A unit is a
configuration. A block is a launch that configurations shared, or a repetition, so differences between launches (clocks,
temperature, other load) cancel.

- **Two strata.** Configurations that shared launches are a cohort, and are compared inside them. Cohorts are compared
  by the levels of their launches, in which a repetition is the block: a split-plot experiment (W. G. Cochran and
  G. M. Cox, "Experimental Designs", 2nd ed., 1957, section 7.1). Each pair has the variance of its stratum.
- **Least squares.** The normal equations are singular: a constant can move from the units to the blocks of a component,
  which has the units that blocks connect. These directions are known, so the rank is not guessed (J. A. John and
  E. R. Williams, "Cyclic and Computer Generated Designs", 1995, section 1.3). Only units of one component have a ratio.
- **Variances.** Four ranks on two cores are noisier than two, so each unit has its own variance, moderated by the
  common one (G. K. Smyth, "Linear models and empirical Bayes methods", Statistical Applications in Genetics and
  Molecular Biology 3, 2004).
- **Simultaneous intervals.** Comparisons with the best use Dunnett's one-sided quantile (J. C. Hsu, "Multiple
  Comparisons", 1996, chapter 4), comparisons of all pairs Tukey and Kramer's method.

`judge` compares two variants of each configuration (`ab`, `compare`, `noise`). A unit is a variant.

- **Interleaved.** A block is a pair of launches. For two units the model is the t-test of the differences of pairs.
- **Not interleaved.** The variants have no common block. The variances of both means add up, with Satterthwaite's
  degrees of freedom (Welch's t-test). The variance between sessions (`Between`) is added once for each variant.
- **Variances.** A variance that is pooled over configurations is too small for the noisiest of them, so a configuration
  is judged by its own.

`geometric_mean` is the mean of such a comparison over configurations. There, a block holds launches of all of them.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.quantiles import MOST_ALIKE, dunnett, dunnett_cdf, studentized_range, t_quantile

Numbers = np.ndarray[Any, np.dtype[np.float64]]
Indices = np.ndarray[Any, np.dtype[np.int64]]
Case = TypeVar("Case")

# Smaller differences of logarithms are rounding: bytes can agree exactly.
ROUNDING, DIGITS = 1e-9, 12
# No plan has more blocks. A larger number is reported as "more than" this one.
MOST_REPETITIONS = 100
# The weight, in degrees of freedom, of the common variance next to a case's own. In simulations of equal cases whose
# noise differs tenfold, Tukey's test with one common variance found no difference in 80% of sessions. With this weight,
# it is 85% (3 blocks) to 95% (10 blocks), and not lower for other noise (docs/explanation/certainty.md).
COMMON_WEIGHT = 4.0
# Smaller differences are not worth more blocks. It is also the tolerance of `compare`.
SHARP_ENOUGH = 0.02
# If several may be the best and may differ by this much, no winner is named.
TOO_WIDE = 0.05
# The planned number of launches lets two equal variants pass with this probability, in all configurations together.
POWER = 0.9
# A variant with fewer launches has no standard deviation.
FEWEST_LAUNCHES = 2
# Few launches can underestimate the noise, so plans use the upper 80% bound of the variance (R. H. Browne, "On
# the use of a pilot sample for sample size determination", Statistics in Medicine 14, 1995).
SURE_ENOUGH = 0.8
# A plan with more launches is reported as "more than" this number.
MOST_LAUNCHES = 500
# The least standard deviation of log times; a smaller one is due to the resolution of a clock.
LEAST_SD = 1e-6
# Beyond this many standard errors, the noise of the difference is negligible.
MANY_ERRORS = 30.0


# -- configurations of one session ----------------------------------------------------------------------------------


def _special() -> Any:
    """Return `scipy.special`, which takes a fifth of a second to import and which most answers do not need."""
    from scipy import special

    return special


@dataclass(frozen=True)
class Stratum:
    """Comparisons of cases inside launches, or across cohorts by the levels of launches."""

    units: int
    residual: float  # the standard deviation of the fit, with `df` degrees of freedom
    df: int
    # The standard errors of the differences of all pairs of cases, over sqrt(2); infinite without a comparison.
    scales: Numbers
    others: Indices  # the number of cases that a case is compared with here
    correlation: Numbers  # the mean correlation of the differences of a case

    def of_pairs(self, confidence: float) -> float:
        """Return Tukey's quantile for all pairs of cases; 1 without a comparison.

        Across cohorts, the levels have the larger variance, so their degrees of freedom are used.
        """
        cases = len(self.scales)
        return studentized_range(cases, self.df, confidence) if self.df > 0 and cases > 1 else 1.0

    def of_best(self, confidence: float | Numbers) -> Numbers:
        """Return Dunnett's quantile of each case, times the square root of 2.

        A stratum gets a part of the error probability: its share of the comparisons of a case.
        """
        cases, df = len(self.scales), _freedom(self.df, self.units)
        found, asked = np.ones(cases), np.broadcast_to(confidence, cases)
        for count, own_confidence in set(zip(self.others.tolist(), asked.tolist(), strict=True)):
            if count == 0 or df <= 0:
                continue
            own = (self.others == count) & (asked == own_confidence)
            share = own_confidence ** (count / (cases - 1))
            # Quantiles are interpolated between eighths of the correlation.
            eighths = 8 * np.minimum(self.correlation[own], MOST_ALIKE)
            knots = np.arange(math.floor(eighths.min()), math.ceil(eighths.max()) + 1)
            found[own] = np.interp(eighths, knots, [dunnett(count, df, share, knot / 8) for knot in knots.tolist()])
        return math.sqrt(2) * found


@dataclass(frozen=True)
class Effects:
    """The fitted means of the configurations of a session. `case` arguments are ids."""

    means: pd.Series[float]  # on the log scale, in the average block of the component
    variances: pd.Series[float]  # the moderated variance of one launch
    own: Numbers  # the variance of the mean
    component: Indices  # the number of the component
    n_blocks: int
    strata: tuple[Stratum, ...]  # inside launches (repetitions, if no launch is shared), then across cohorts

    @property
    def cases(self) -> pd.Index[str]:
        """The ids of the cases."""
        return self.means.index

    @property
    def df(self) -> int:
        """The degrees of freedom of comparisons inside blocks."""
        return self.strata[0].df

    def behind(self, case: str) -> pd.Series[float]:
        """Return log(number of each case / number of `case`); NaN if no blocks connect them."""
        means, at = self.means.to_numpy(), self._at(case)
        return pd.Series(np.where(self.component == self.component[at], means - means[at], np.nan), self.cases)

    def connected(self) -> tuple[str, ...]:
        """Return the cases of the largest component, by rising mean; at a tie, of the component that comes first."""
        own = self.means[self.component == np.bincount(self.component).argmax()]
        return tuple(own.sort_values(kind="stable").index)

    def half_widths(self, case: str, confidence: float = CONFIDENCE) -> pd.Series[float]:
        """Return the half-widths (log scale) of the intervals of `behind(case)`; infinite if unknown.

        The intervals are simultaneous for all pairs of cases.
        """
        return self._widths(case, [stratum.of_pairs(confidence) for stratum in self.strata])

    def less(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each pair whether the row's case has a significantly smaller mean; shape (cases, cases)."""
        means = self.means.to_numpy()
        apart = np.where(self.component[:, None] == self.component, means - means[:, None], np.nan)
        widths = [stratum.of_pairs(CONFIDENCE) * stratum.scales for stratum in self.strata]
        less: np.ndarray[Any, np.dtype[np.bool_]] = apart > np.min(widths, axis=0) + ROUNDING
        return less

    def best_half_widths(self, case: str, confidence: float | Numbers = CONFIDENCE) -> pd.Series[float]:
        """Return how far (log scale) each case may be from `case`, the lowest mean, and still be the best.

        In a share `confidence` of sessions, the true best is within this distance. Infinite if unknown.
        """
        return self._widths(case, [stratum.of_best(confidence) for stratum in self.strata])

    def _widths(self, case: str, quantiles: Sequence[float | Numbers]) -> pd.Series[float]:
        at = self._at(case)
        pairs = zip(quantiles, self.strata, strict=True)
        widths = np.min([quantile * stratum.scales[at] for quantile, stratum in pairs], axis=0)
        widths[at] = 0.0
        return pd.Series(widths, self.cases)

    def own_half_widths(self) -> pd.Series[float]:
        """Return the half-widths (log scale) of the intervals of single means; infinite without a residual."""
        df = self.strata[-1].df
        quantile = t_quantile((1 + CONFIDENCE) / 2, df) if df > 0 else math.inf
        return pd.Series(quantile * np.sqrt(self.own) if df > 0 else np.inf, self.cases)

    def indistinguishable(self, case: str, confidence: float | Numbers = CONFIDENCE) -> list[str]:
        """Return the cases that may be the best if `case` has the lowest mean of its component; the lowest mean first.

        The list contains `case`, and no case of another component.
        """
        behind = self.behind(case)
        near = behind.index[behind <= self.best_half_widths(case, confidence) + ROUNDING]
        return sorted(near, key=lambda other: (self.means[other], other != case))

    def blocks_for(self, half_width: float, among: Sequence[str], *, at_least: bool = False) -> int:
        """Return the number of blocks that gives a `half_width` between the best and the cases `among`.

        `at_least` uses the lower 95% bound of the noise.
        """
        places = self.cases.get_indexer(pd.Index(among))
        noise = math.sqrt(self.variances.iloc[places].nlargest(2).mean())
        needed = 2
        for stratum in self.strata:
            inside = stratum is self.strata[0]
            if inside or np.isfinite(stratum.scales[np.ix_(places, places)]).any():
                sd = noise if inside else stratum.residual
                if at_least:
                    sd *= math.sqrt(stratum.df / _special().chdtri(stratum.df, 1 - CONFIDENCE))
                needed = max(needed, _fewest_blocks(stratum.units, sd, half_width))
        return needed

    def _at(self, case: str) -> int:
        return cast("int", self.cases.get_loc(case))


@lru_cache(maxsize=256)
def _fewest_blocks(units: int, noise: float, half_width: float) -> int:
    """Return the fewest blocks for a half-width, which is d * noise * sqrt(2 / blocks) with Dunnett's quantile d."""
    if noise < ROUNDING:
        return 2

    def enough(blocks: int) -> bool:
        d = half_width * math.sqrt(blocks / 2) / noise
        return dunnett_cdf(d, units - 1, _freedom((units - 1) * (blocks - 1), units)) >= CONFIDENCE

    return 2 + bisect.bisect_left(range(2, MOST_REPETITIONS + 1), True, key=enough)


def _freedom(df: int, units: int) -> float:
    """Return the degrees of freedom of a difference between two means with moderated variances.

    This is Satterthwaite's formula (1946) for equally noisy units: `df` for two units, and fewer for more.
    """
    if df < 1:
        return 0.0
    own = df / units
    return (COMMON_WEIGHT + own) ** 2 / (own / 2 + COMMON_WEIGHT * (COMMON_WEIGHT + 2 * own) / df)


def fit(launches: pd.DataFrame, number: str = "step_s") -> Effects:
    """Fit the model to the column `number` (above 0) of launches, which have the columns of `numbers.numbers`.

    Launches with the same `shared_launch` are compared inside it.
    """
    case, block, y = np.asarray(launches["case"]), np.asarray(launches["repetition"]), logs_of(launches[number])
    shared = np.asarray(launches["shared_launch"]) if "shared_launch" in launches else np.arange(len(y))
    none_shared = len(np.unique(shared)) == len(y)
    inner = _least_squares(case, *((block, y) if none_shared else (shared, y, turn_weights(launches))))
    means, own, component = inner.means, inner.own, inner.component
    same = component[:, None] == component
    twins = same & ~np.eye(len(means), dtype=bool)
    strata = [_stratum(inner, inner.scales, twins, own, np.zeros_like(inner.scales))]
    if not none_shared:
        # The difference of a case from an average case of its cohort, and the level of each launch for such a case.
        over = means - (same @ means) / same.sum(axis=1)
        place, launch = pd.factorize(case)[0], pd.factorize(shared)[0]
        levels = np.bincount(launch, y - over[place]) / np.bincount(launch)
        first = np.unique(launch, return_index=True)[1]
        outer = _least_squares(component[place[first]], block[first], levels)
        cohort = pd.Index(outer.units).get_indexer(pd.Index(component))
        # The variance of a case's mean around its cohort's mean; 0 if the case is alone in it.
        within, level = own * (1 - 1 / same.sum(axis=1)), outer.own[cohort]
        means, own, component = over + outer.means[cohort], level + within, outer.component[cohort]
        scales = np.sqrt(outer.scales[np.ix_(cohort, cohort)] ** 2 + np.add.outer(within, within) / 2)
        strata.append(_stratum(outer, scales, ~same, own, twins * level))
    cases, blocks = pd.Index(inner.units), len(np.unique(block))
    return Effects(pd.Series(means, cases), pd.Series(inner.variances, cases), own, component, blocks, tuple(strata))


class _Fit(NamedTuple):
    """A model fitted by least squares. Arrays have a value per unit; Effects and Stratum explain the fields."""

    units: Any  # the names of the units
    means: Numbers
    component: Indices
    variances: Numbers
    own: Numbers
    scales: Numbers
    residual: float
    df: int


def _stratum(of: _Fit, scales: Numbers, pairs: Any, own: Numbers, common: Numbers) -> Stratum:
    """Return the comparisons of `pairs` of cases, from the variance of each case's `own` mean.

    The comparisons of a case correlate, because they share its mean. Comparisons with cases of one cohort also share
    the level of the cohort, with the variance `common`.
    """
    others = pairs.sum(axis=1)
    # By Jensen's inequality, this is at most the mean of the correlations, which are convex in both variances.
    mean = pairs @ own / np.maximum(others, 1)
    level = ((pairs @ common) * pairs).sum(axis=1) / np.maximum(others * (others - 1), 1)
    # Without a residual the variances are unknown.
    known = pairs & np.isfinite(scales) & (of.df > 0)
    # A half without any noise.
    correlation = np.divide(own + level, own + mean, out=np.full(len(own), 0.5), where=own + mean > 0)
    return Stratum(len(of.units), of.residual, of.df, np.where(known, scales, np.inf), others, correlation)


def turn_weights(launches: pd.DataFrame) -> Numbers | None:
    """Return the weight of each launch: its number of `turns` relative to the mean over shared launches.

    With twice the turns, a launch has half the variance. `None` without turns or without shared launches.
    """
    if "turns" not in launches:
        return None
    turns, shared = np.asarray(launches["turns"], dtype=float), launches["shared_launch"].duplicated(keep=False)
    return turns / turns[shared].mean() if shared.any() else None


def _least_squares(of_unit: Any, of_block: Any, y: Numbers, weight: Numbers | None = None) -> _Fit:
    """Fit log(number) = unit + block by weighted least squares, with the solution of the least norm.

    A launch of twice the weight has half the variance.
    """
    weight = np.ones(len(y)) if weight is None else weight
    unit, units = pd.factorize(np.asarray(of_unit))
    block, blocks = pd.factorize(np.asarray(of_block))
    k, b = len(units), len(blocks)
    design = np.zeros((len(y), k + b))
    design[np.arange(len(y)), unit] = design[np.arange(len(y)), k + block] = 1.0
    component = components(unit, block)
    sign = np.repeat([1.0, -1.0], [k, b])
    null = np.outer(sign, sign) * (component[:, None] == component) / np.bincount(component)[component]
    weighted = design.T * weight
    solve = (np.linalg.inv(weighted @ design + null) - null) @ weighted
    effects = solve @ y
    means, levels = np.split(effects, [k])
    df = len(y) - (k + b - len(np.unique(component)))
    error = np.sqrt(weight) * (y - design @ effects)
    residual = math.sqrt(float(error @ error) / df) if df > 0 else math.nan
    # The degrees of freedom of a row are 1 minus its leverage.
    freedom = np.bincount(unit, 1 - np.einsum("ij,ji->i", design, solve))
    variances = moderated(np.bincount(unit, error**2), freedom, residual, COMMON_WEIGHT)
    covariance = (solve[:k] * (variances[unit] / weight)) @ solve[:k].T
    apart = np.add.outer(covariance.diagonal(), covariance.diagonal()) - 2 * covariance
    own_component, block_component = np.split(component, [k])
    # The solution splits the level of a component between units and blocks; the units get all of it. Units with equal
    # numbers get equal means, although sums of floats differ in their last digits.
    means = means + (np.bincount(block_component, levels) / np.bincount(block_component))[own_component]
    comparable = own_component[:, None] == own_component
    return _Fit(
        units,
        np.round(means, DIGITS),
        own_component,
        variances,
        variances / np.bincount(unit, weight),
        np.where(comparable, np.sqrt(np.maximum(0.0, apart) / 2), np.inf),
        residual,
        df,
    )


def components(unit: Indices, block: Indices) -> Indices:
    """Return the component of each unit, followed by the component of each block, as numbers from 0.

    `unit` and `block` are the indices of each launch, which connects the two.
    """
    of_unit = np.arange(unit.max() + 1)
    while True:
        of_block, joined = np.full(block.max() + 1, len(of_unit)), of_unit.copy()
        np.minimum.at(of_block, block, of_unit[unit])
        np.minimum.at(joined, unit, of_block[block])
        if (joined == of_unit).all():
            return np.unique(np.concatenate([of_unit, of_block]), return_inverse=True)[1]
        of_unit = joined


def moderated(squares: Any, df: Any, common: float, weight: float) -> Any:
    """Return a variance from a sum of squares and its degrees of freedom, moderated by a common one.

    The `common` standard deviation counts like `weight` more values.
    """
    return (weight * common**2 + squares) / (weight + df)


# -- two variants of each configuration -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Between:
    """The variation of one configuration between sessions: measured, or assumed (an allowance)."""

    variance: float  # the variance of the logarithm of a session's mean
    df: float  # infinite for an allowance
    launches: float  # the part of `variance` that is due to the noise of launches; 0 for an allowance
    sessions: int  # the number of measured sessions; 0 for an allowance

    @property
    def sd(self) -> float:
        """The standard deviation of a session's log time."""
        return math.sqrt(self.variance)

    @classmethod
    def allowed(cls, logs: Sequence[Numbers], allowance: float) -> Between:
        """Return an assumed standard deviation; 0 means that sessions do not differ.

        If the launches of a session differ by more, their variance is used: on a machine that drifts, the mean of a
        session is as uncertain as one launch.
        """
        df, within = _within_sessions(logs)
        if allowance and within > allowance**2:
            return cls(within, float(df), 0.0, 0)
        return cls(allowance**2, math.inf, 0.0, 0)

    @classmethod
    def measured(cls, logs: Sequence[Numbers]) -> Between:
        """Return the variance of the means of several sessions; `logs` are their launches."""
        launches = _within_sessions(logs)[1] * float(np.mean([1 / len(session) for session in logs]))
        variance = float(np.var([session.mean() for session in logs], ddof=1))
        return cls(max(variance, LEAST_SD**2), len(logs) - 1.0, launches, len(logs))


def _within_sessions(logs: Sequence[Numbers]) -> tuple[int, float]:
    """Return the degrees of freedom and the pooled variance of launches within their sessions; 0 if unknown."""
    several = [session for session in logs if len(session) >= FEWEST_LAUNCHES]
    df = sum(len(session) - 1 for session in several)
    squares = sum(float(((session - session.mean()) ** 2).sum()) for session in several)
    return df, squares / df if df > 0 else 0.0


@dataclass(frozen=True)
class TTest:
    """The t-test of candidate against base for one configuration. The bounds hold for this configuration alone."""

    difference: float  # log(candidate / base)
    error: float  # its standard error
    df: float
    p_slower: float  # one-sided, adjusted over all configurations by Holm's method
    p_faster: float
    variances: tuple[float, ...]  # one per variant, for its launches; or one for the differences of pairs
    counts: tuple[int, ...]  # the number of launches of each variant, or of pairs
    between: Between | None
    among: int  # the number of configurations

    def bound(self, confidence: float) -> float:
        """Return the one-sided upper bound of the difference; for a lower bound, pass 1 - confidence."""
        return self.difference + self.error * float(_special().stdtrit(self.df, confidence))

    # The ends of the two-sided 95% interval, and the one-sided 95% upper bound.
    low = property(lambda self: self.bound((1 - CONFIDENCE) / 2))
    high = property(lambda self: self.bound((1 + CONFIDENCE) / 2))
    upper = property(lambda self: self.bound(CONFIDENCE))

    def launches_for(self, tolerance: float) -> int | None:
        """Return the number of launches per variant that lets equal variants pass with `tolerance`, a fraction.

        The plan holds with probability POWER in all configurations together (Bonferroni). None if MOST_LAUNCHES do not
        suffice.
        """
        limit, n = math.log1p(tolerance), np.arange(FEWEST_LAUNCHES, MOST_LAUNCHES + 1, dtype=float)
        df = np.array(self.counts) - 1.0
        variances = np.array(self.variances) * df / _special().chdtri(df, SURE_ENOUGH)
        error, error_df = _errors(np.outer(variances, 1 / n), np.array([n - 1] * len(df)), [self.between] * len(n))
        enough = power_of(limit / error, error_df) >= 1 - (1 - POWER) / self.among
        needed = int(n[enough.argmax()])
        if self.upper >= limit:
            needed = max(needed, min(self.counts) + 1)
        return needed if enough.any() and needed <= MOST_LAUNCHES else None


def judge(
    cases: Mapping[Case, tuple[Sequence[float] | Numbers, Sequence[float] | Numbers]],
    *,
    paired: bool,
    between: Mapping[Case, Between] | None = None,
) -> dict[Case, TTest]:
    """Test the difference of logarithms, candidate minus base, for each configuration with enough launches.

    `paired` variants have the same blocks in the same order. Otherwise the test is Welch's t-test, with the variation
    between sessions if `between` has it.
    """
    logs = {
        case: tuple(np.asarray(side, dtype=float) for side in sides)
        for case, sides in cases.items()
        if min(map(len, sides)) >= FEWEST_LAUNCHES
    }
    if not logs:
        return {}
    if paired:
        logs = {case: (candidate - base,) for case, (base, candidate) in logs.items()}
    own = [tuple(max(float(side.var(ddof=1)), LEAST_SD**2) for side in sides) for sides in logs.values()]
    counts = [tuple(map(len, sides)) for sides in logs.values()]
    beside = [None if between is None or paired else between.get(case) for case in logs]
    launches = np.array(counts, dtype=float).T
    error, df = _errors(np.array(own).T / launches, launches - 1, beside)
    difference = np.array([sides[-1].mean() - (0.0 if paired else sides[0].mean()) for sides in logs.values()])
    p_slower, p_faster = (holm(_special().stdtr(df, sign * difference / error)) for sign in (-1, 1))
    numbers = zip(difference.tolist(), error.tolist(), df.tolist(), p_slower, p_faster, strict=True)
    return {
        case: TTest(*of_case, own[i], counts[i], beside[i], len(logs))
        for i, (case, of_case) in enumerate(zip(logs, numbers, strict=True))
    }


def logs_of(numbers: ArrayLike) -> Numbers:
    """Return the natural logarithms of `numbers` as an array."""
    logs: Numbers = np.log(np.asarray(numbers, dtype=float))
    return logs


def factor(difference: float) -> float:
    """Return exp(difference): the ratio to a difference of logarithms, limited to values that JSON can hold."""
    return math.exp(max(-50.0, min(50.0, difference)))


def holm(p_values: Sequence[float] | Numbers) -> list[float]:
    """Return p-values adjusted by Holm's step-down method.

    It keeps the family-wise error without assuming independence (S. Holm, "A simple sequentially rejective multiple
    test procedure", Scandinavian Journal of Statistics 6, 1979).
    """
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    found: list[float] = adjusted.tolist()
    return found


def power_of(errors: Numbers, df: Numbers) -> Numbers:
    """Return the probability that a one-sided t-test at 95% detects a difference of this number of standard errors.

    It is also the probability that the one-sided bound of two equal variants excludes the difference.
    """
    quantile = _special().stdtrit(df, CONFIDENCE)
    # For many errors scipy returns NaN or a wrong number. There, t is only small if the variance is overestimated by so
    # much, which is the upper tail of a chi-square.
    large = _special().chdtrc(df, df * (errors / quantile) ** 2)
    small = _special().nctdtr(df, errors, quantile)
    found: Numbers = 1 - np.where(np.asarray(errors) > MANY_ERRORS, large, small)
    return found


def _errors(means: Numbers, df: Numbers, between: Sequence[Between | None]) -> tuple[Numbers, Numbers]:
    """Return the standard errors and degrees of freedom (Satterthwaite) of several differences of means.

    The variances of `means` and their `df` have the shape (sides, differences). A variance that was measured between
    sessions contains the noise of their launches, so only the excess is added.
    """
    launches = means.sum(axis=0)
    rows = [(each.variance, each.df, each.launches) if each is not None else (0.0, math.inf, 0.0) for each in between]
    session, session_df, held = np.array(rows).T
    measured = np.array([each is not None and each.sessions > 0 for each in between])
    own = np.where(measured, np.maximum(0.0, launches - 2 * held), launches)
    own_df = np.where(measured, df.min(axis=0), launches**2 / (means**2 / df).sum(axis=0))
    total = own + 2 * session
    return np.sqrt(total), total**2 / (own**2 / own_df + (2 * session) ** 2 / session_df)


# -- the mean over configurations -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mean:
    """The geometric mean of candidate / base over common configurations, with its 95% interval.

    The interval holds for these configurations and machines only.
    """

    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    cases: int = 0
    reason: str = ""  # why the mean or its interval is unknown
    session_sd: float | None = None  # the variation between sessions in the interval; None if it only has the launches
    sessions: int = 0  # the number of sessions that it was measured in; 0 for an allowance


def geometric_mean(
    logs: Sequence[tuple[pd.Series[float], ...]], reason: str = "", between: Between | None = None
) -> Mean:
    """Return the geometric mean of candidate / base over configurations.

    `logs` has for each configuration the logarithms of (base, candidate) by block, or of the paired ratios only. The
    mean is geometric because only then it does not depend on the variant that one divides by (P. J. Fleming and J. J.
    Wallace, "How not to lie with statistics: the correct way to summarize benchmark results", CACM 29(3), 1986).

    For k configurations with n launches each and logarithms y, the mean of a variant is
    M = mean over configurations of mean(y). Launches of a block share its clocks and neighbors, so blocks are the
    independent units: with r = y - mean(y of its configuration), a block has u = sum(r / n) / k over its launches. The
    variance of M is m / (m - 1) times the sum of u^2, with m - 1 degrees of freedom, where m is the smallest n. If no
    launch is missing, this is var(block means) / blocks. Otherwise it is the cluster-robust variance of A. C. Cameron
    and D. L. Miller, "A practitioner's guide to cluster-robust inference", Journal of Human Resources 50 (2015), with m
    in place of the number of clusters. The two variants add up as in Welch's t-test.

    Configurations with fewer than two launches of a variant are left out. If none remain, all are taken without an
    interval. `reason` explains configurations without a launch.
    """
    known = [sides for sides in logs if all(map(len, sides))]
    enough = [sides for sides in known if min(map(len, sides)) >= FEWEST_LAUNCHES]
    if not known:
        return Mean(reason=reason)
    sides = [_table(side) for side in zip(*(enough or known), strict=True)]
    levels = [float(side.mean().mean()) for side in sides]
    difference = levels[-1] - (levels[0] if len(sides) > 1 else 0.0)
    ratio = math.exp(difference)
    if not enough:
        why = f"an interval needs {FEWEST_LAUNCHES} launches of a configuration on each variant"
        return Mean(ratio, cases=len(known), reason=why)
    fewest = np.array([side.count().min() for side in sides])
    variances = fewest / (fewest - 1) * [float((_shares(side) ** 2).sum()) for side in sides]
    variances = np.maximum(variances, LEAST_SD**2 / np.array([len(side) for side in sides]))
    error, df = _errors(variances[:, None], fewest[:, None] - 1.0, [between])
    half = float(_special().stdtrit(df[0], (1 + CONFIDENCE) / 2) * error[0])
    session = (between.sd, between.sessions) if between is not None else (None, 0)
    return Mean(ratio, factor(difference - half), factor(difference + half), len(enough), "", *session)


def by_block(cases: Sequence[pd.Series[float]]) -> Numbers:
    """Return one number per block of a variant; their mean is M of `geometric_mean`."""
    table = _table(cases)
    blocks: Numbers = np.asarray(table.mean().mean() + len(table) * _shares(table), dtype=float)
    return blocks


def _table(cases: Sequence[pd.Series[float]]) -> pd.DataFrame:
    """Return a table with a row per block and a column per configuration from the logarithms of a variant."""
    of_case = np.repeat(np.arange(len(cases)), [len(case) for case in cases])
    block = np.concatenate([case.index.get_level_values(0) for case in cases])
    return pd.Series(np.concatenate(cases), [block, of_case]).unstack()


def _shares(table: pd.DataFrame) -> pd.Series[float]:
    """Return `u` of `geometric_mean`, by block."""
    return ((table - table.mean()) / table.count()).sum(axis=1) / table.shape[1]
