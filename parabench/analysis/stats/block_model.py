"""The additive model log(number) = case + block: its fit, and the simultaneous comparison of cases.

A block is a repetition of all cases, so changes between repetitions (clocks, temperature, other load) cancel. If every
case is in every block, the result is the difference of means after centering by block; least squares gives the same and
stays right if launches are missing. Cases are compared with the best by Hsu's multiple comparisons with the best, all
pairs by Tukey and Kramer's method. Each case has its own noise: four ranks on two cores are noisier than two.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, cast

import numpy as np
import pandas as pd

from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.quantiles import MOST_ALIKE, Numbers, dunnett, dunnett_cdf, studentized_range, t_quantile

Places = np.ndarray[Any, np.dtype[np.int64]]

# Smaller differences of logarithms are rounding: bytes can agree exactly.
ROUNDING = 1e-9
DIGITS = 12
# No plan has more blocks; the answer is then "more than".
MOST_BLOCKS = 100
# The weight, in degrees of freedom, of the common variance next to a case's own. In simulations Tukey's test with one
# variance for all kept all of a flat curve in 80% of sessions if the noise of cases differs tenfold; with this weight
# in 85% (3 blocks) to 95% (10 blocks), and no less otherwise (docs/explanation/certainty.md).
COMMON_WEIGHT = 4.0
# Smaller differences are not worth more blocks. It is also the tolerance of `compare`.
SHARP_ENOUGH = 0.02
# A set of several that is not narrower than this names no winner.
TOO_WIDE = 0.05


@dataclass(frozen=True)
class Effects:
    """A fitted model.

    - `means`: the mean of each case on the log scale, in the average block of its component. A component has the cases
      that common launches or repetitions connect, directly or through other cases; only these can be compared.
    - `df`: degrees of freedom.
    - `residual`: the standard deviation of one launch, common to all cases; `variances`: each case's, moderated by it.
    - `component`: the number of the component of each of `cases`; `own`: the variance of the mean of its launches.
    - `scales`: the standard errors of the differences of all pairs, divided by the square root of 2; infinite if the
      launches cannot compare the two.

    If some cases shared launches, there are two strata, as in a split-plot experiment. Cases of one cohort are compared
    inside launches, where differences between launches cancel: there a launch is a block. Cohorts are compared by the
    levels of their launches: `between` is the model log(level) = cohort + block, where a level is that of an average
    case of the cohort. `cohort` is the place there of each of `cases`. (W. G. Cochran and G. M. Cox, "Experimental
    Designs", 2nd ed., 1957, section 7.1.) Otherwise a cohort is a component.

    Series have a value for each case.
    """

    cases: pd.Index[str]
    means: dict[str, float]
    n_blocks: int
    df: int
    residual: float
    variances: dict[str, float]
    component: Places
    own: Numbers
    scales: Numbers
    cohort: Places
    between: Effects | None = None

    @cached_property
    def levels(self) -> Numbers:
        """The means in the order of `cases`."""
        return np.array([self.means[case] for case in self.cases])

    def _at(self, case: str) -> int:
        return cast("int", self.cases.get_loc(case))

    def behind(self, case: str) -> pd.Series[float]:
        """Return log(other / case); NaN for a case of another component."""
        connected = self.component == self.component[self._at(case)]
        return pd.Series(np.where(connected, self.levels - self.means[case], np.nan), self.cases)

    def connected(self) -> tuple[str, ...]:
        """Return the cases of the largest component, by rising mean; at a tie, of the component that comes first."""
        largest = np.bincount(self.component).argmax()
        own = [case for case, at in zip(self.cases, self.component, strict=True) if at == largest]
        return tuple(sorted(own, key=self.means.__getitem__))

    def half_widths(self, case: str, confidence: float = CONFIDENCE) -> pd.Series[float]:
        """Return the half-widths (log scale) of the intervals against each case, simultaneous for all pairs; infinite
        if unknown. Across cohorts the degrees of freedom are those of the levels, whose variance is the larger."""
        inside, across = (
            studentized_range(len(self.cases), df, confidence) if df > 0 and len(self.cases) > 1 else 0.0
            for df in (self.df, self.between.df if self.between else 0)
        )
        return self._widths(case, inside, across)

    def best_half_widths(self, case: str, confidence: float | Numbers = CONFIDENCE) -> pd.Series[float]:
        """Return how far (log scale) each case may be behind `case`, which has the lowest mean, and still be the best.

        In `confidence` of sessions (one number for all, or one per case) the true best is no further behind. Infinite
        if unknown. The best is a control that no other beats, so Dunnett's one-sided quantile for all others applies
        (J. C. Hsu, "Multiple Comparisons", 1996, chapter 4). The correlation of these comparisons is a half if all
        means are equally certain, and less for a case of more launches than others, whose quantile is larger. The mean
        of all correlations stands for each, which errs toward a larger quantile. Comparisons across cohorts share the
        case's own level and, if they are with cases of one cohort, that cohort's level.
        """
        own, cohort, sizes = self.own, self.cohort, np.bincount(self.cohort)
        others = sizes[cohort] - 1
        # By Jensen's inequality no more than the mean of the correlations, which are convex in both variances.
        mean = (np.bincount(cohort, own)[cohort] - own) / np.maximum(others, 1)
        df, ratio = _freedom(self.df, len(self.cases)), _ratio(own, own + mean)
        inside = self._of_best(others, df, ratio, confidence)
        if self.between is None:
            return self._widths(case, inside)
        level = self.between.own
        own = level[cohort] + self._within
        outside = len(own) - sizes[cohort]
        mean = (own.sum() - np.bincount(cohort, own)[cohort]) / np.maximum(outside, 1)
        pairs = sizes * (sizes - 1) * level
        shared = own + (pairs.sum() - pairs[cohort]) / np.maximum(outside * (outside - 1), 1)
        between_df, between_ratio = _freedom(self.between.df, len(sizes)), _ratio(shared, own + mean)
        return self._widths(case, inside, self._of_best(outside, between_df, between_ratio, confidence))

    def _of_best(self, others: Places, df: float, correlation: Numbers, confidence: float | Numbers) -> Numbers:
        """Return each case's quantile for its number of comparisons with `others`, for differences over the square root
        of 2.

        If these are not all other cases, the chance of an error is shared by the number of comparisons. Quantiles are
        interpolated between eighths of the correlation.
        """
        found, asked = np.ones(len(others)), np.broadcast_to(confidence, len(others))
        for count, own_confidence in set(zip(others.tolist(), asked.tolist(), strict=True)):
            if count == 0 or df <= 0:
                continue
            own = (others == count) & (asked == own_confidence)
            share = own_confidence ** (count / (len(self.cases) - 1))
            eighths = 8 * np.minimum(correlation[own], MOST_ALIKE)
            knots = np.arange(math.floor(eighths.min()), math.ceil(eighths.max()) + 1)
            found[own] = np.interp(eighths, knots, [dunnett(count, df, share, knot / 8) for knot in knots.tolist()])
        return math.sqrt(2) * found

    def _widths(self, case: str, inside: float | Numbers, across: float | Numbers = 0.0) -> pd.Series[float]:
        """Return the quantiles `inside` the cohort of a case, and `across` cohorts, times the `scales`."""
        at, between = self._at(case), self.between
        widths = inside * self.scales[at] if self.df > 0 else np.full(len(self.cases), np.inf)
        widths[at] = 0.0
        if between is not None and between.df > 0:
            apart = between.scales[int(self.cohort[at])][self.cohort]
            within = (self._within[at] + self._within) / 2
            widths = np.where(self.cohort == self.cohort[at], widths, across * np.sqrt(apart**2 + within))
            widths[np.isnan(widths)] = np.inf  # without a residual inside launches the variances are unknown
        return pd.Series(widths, self.cases)

    def own_half_width(self, case: str) -> float:
        """Return the half-width (log scale) of the interval of one mean; infinite without a residual."""
        at, df = self._at(case), self.between.df if self.between else self.df
        variance = self.between.own[self.cohort[at]] + self._within[at] if self.between else self.own[at]
        return t_quantile((1 + CONFIDENCE) / 2, df) * math.sqrt(float(variance)) if df > 0 else math.inf

    def indistinguishable(self, case: str, confidence: float | Numbers = CONFIDENCE) -> list[str]:
        """Return the cases that may be the best if `case` has the lowest mean of its component, fastest first, with
        `case` (Hsu's multiple comparisons with the best). Cases of other components are left out: nothing is known."""
        behind = self.behind(case)
        near = behind.index[behind <= self.best_half_widths(case, confidence) + ROUNDING]
        return sorted(near, key=lambda other: (self.means[other], other != case))

    def blocks_for(self, half_width: float, among: Sequence[str] = ()) -> int:
        """Return the fewest blocks, all cases in each, for at most `half_width` between the best and `among`; capped at
        MOST_BLOCKS + 1. Without `among` the common noise decides. Across cohorts the noise of the levels counts too.

        The half-width is d * noise * sqrt(2 / blocks): small enough if the probability of Dunnett's t below
        half_width * sqrt(blocks / 2) / noise reaches CONFIDENCE, which is one integral instead of a search.
        """
        loudest = sorted(self.variances[case] for case in among)[-2:]
        noise = math.sqrt(sum(loudest) / len(loudest)) if loudest else self.residual
        needed = _fewest_blocks(len(self.cases), noise, half_width)
        if self.between is None or len({self.cohort[self._at(case)] for case in among or self.cases.tolist()}) == 1:
            return needed
        return max(needed, self.between.blocks_for(half_width))

    @cached_property
    def _within(self) -> Numbers:
        """The variance of each case's mean around that of its cohort; 0 if the case is alone in it."""
        found: Numbers = self.own * (1 - 1 / np.bincount(self.cohort)[self.cohort])
        return found


@lru_cache(maxsize=256)
def _fewest_blocks(k: int, noise: float, half_width: float) -> int:
    if noise < ROUNDING:
        return 2

    def enough(blocks: int) -> bool:
        d = half_width * math.sqrt(blocks / 2) / noise
        return dunnett_cdf(d, k - 1, _freedom((k - 1) * (blocks - 1), k)) >= CONFIDENCE

    return 2 + bisect.bisect_left(range(2, MOST_BLOCKS + 1), True, key=enough)


def _freedom(df: int, cases: int) -> float:
    """Return the degrees of freedom of the variance of a difference between two means, from moderated variances.

    It follows from the variance of that variance if cases are equally noisy (F. E. Satterthwaite, 1946): fewer than the
    `df` of the common variance, and equal to it for two `cases`.
    """
    if df < 1:
        return 0.0
    own = df / cases
    return (COMMON_WEIGHT + own) ** 2 / (own / 2 + COMMON_WEIGHT * (COMMON_WEIGHT + 2 * own) / df)


def _ratio(part: Numbers, whole: Numbers) -> Numbers:
    """Return a ratio of variances: a half if there is no noise at all."""
    found: Numbers = np.divide(part, whole, out=np.full(len(part), 0.5), where=whole > 0)
    return found


def fit(launches: pd.DataFrame, number: str = "step_s") -> Effects:
    """Fit the launches of a table like `numbers.numbers` by least squares; `number` is above 0.

    Launches with the same `shared_launch` are compared inside it.
    """
    case, block = np.asarray(launches["case"]), np.asarray(launches["repetition"])
    y = np.log(np.asarray(launches[number], dtype=float))
    shared = np.asarray(launches["shared_launch"]) if "shared_launch" in launches else np.arange(len(y))
    if len(np.unique(shared)) == len(y):
        return _fit(case, block, y)
    inner = _fit(case, shared, y, turn_weights(launches))
    cohort = np.unique(inner.component, return_inverse=True)[1]
    # The difference of a case from an average case of its cohort, and the level of each launch for such a case.
    over = inner.levels - (np.bincount(cohort, inner.levels) / np.bincount(cohort))[cohort]
    place, launch = pd.factorize(case)[0], pd.factorize(shared)[0]
    levels = np.bincount(launch, y - over[place]) / np.bincount(launch)
    first = np.unique(launch, return_index=True)[1]
    between = _fit(cohort[place[first]], block[first], levels)
    at = between.cases.get_indexer(pd.Index(cohort))
    return replace(
        inner,
        means=dict(zip(inner.cases, (over + between.levels[at]).tolist(), strict=True)),
        n_blocks=len(np.unique(block)),
        component=between.component[at],
        cohort=at,
        between=between,
    )


def turn_weights(launches: pd.DataFrame) -> Numbers | None:
    """Return the weight of each launch, its number of `turns`, on average 1 among those that share a launch: with twice
    as many it has half the variance. `None` if that is unknown."""
    if "turns" not in launches:
        return None
    turns = np.asarray(launches["turns"], dtype=float)
    _, at, size = np.unique(np.asarray(launches["shared_launch"]), return_inverse=True, return_counts=True)
    if not (size > 1).any():
        return None
    found: Numbers = turns / turns[size[at] > 1].mean()
    return found


def _fit(of_case: Any, of_block: Any, y: Numbers, weight: Numbers | None = None) -> Effects:
    """Fit log(number) = case + block by weighted least squares: a launch of twice the weight has half the variance.

    The solution has the least norm. The normal equations are singular: a constant can move from the cases to the blocks
    of a component. These directions are known, so the rank is not guessed. (J. A. John and E. R. Williams, "Cyclic and
    Computer Generated Designs", 1995, section 1.3.)
    """
    weight = np.ones(len(y)) if weight is None else weight
    case, cases = pd.factorize(np.asarray(of_case))
    block, blocks = pd.factorize(np.asarray(of_block))
    k, b = len(cases), len(blocks)
    design = np.zeros((len(y), k + b))
    design[np.arange(len(y)), case] = design[np.arange(len(y)), k + block] = 1.0
    component = _components(case, block)
    sign = np.repeat([1.0, -1.0], [k, b])
    null = np.outer(sign, sign) * (component[:, None] == component) / np.bincount(component)[component]
    weighted = design.T * weight
    inverse = np.linalg.inv(weighted @ design + null) - null
    solve = inverse @ weighted
    effects = solve @ y
    means, levels = np.split(effects, [k])
    df = len(y) - (k + b - len(np.unique(component)))
    error = np.sqrt(weight) * (y - design @ effects)
    residual = math.sqrt(float(error @ error) / df) if df > 0 else math.nan
    # The degrees of freedom of a row are 1 minus its leverage.
    freedom = np.bincount(case, 1 - np.einsum("ij,ji->i", design, solve))
    variances = moderated(np.bincount(case, error**2), freedom, residual, COMMON_WEIGHT)
    covariance = (solve[:k] * (variances[case] / weight)) @ solve[:k].T
    apart = np.add.outer(covariance.diagonal(), covariance.diagonal()) - 2 * covariance
    case_component, block_component = np.split(component, [k])
    comparable = case_component[:, None] == case_component
    # The solution splits the level of a component between cases and blocks; the cases get all of it.
    means = means + (np.bincount(block_component, levels) / np.bincount(block_component))[case_component]
    # Cases with equal numbers get equal means, although sums of floats differ in their last digits.
    means = np.round(means, DIGITS)
    return Effects(
        cases=pd.Index(cases),
        means=dict(zip(cases, means.tolist(), strict=True)),
        n_blocks=b,
        df=df,
        residual=residual,
        variances=dict(zip(cases, variances.tolist(), strict=True)),
        component=case_component,
        own=variances / np.bincount(case, weight),
        scales=np.where(comparable, np.sqrt(np.maximum(0.0, apart) / 2), np.inf),
        cohort=case_component,
    )


def _components(case: Places, block: Places) -> Places:
    """Return the number of the component of each case, then of each block: launches connect them."""
    of_case = np.arange(case.max() + 1)
    while True:
        of_block, joined = np.full(block.max() + 1, len(of_case)), of_case.copy()
        np.minimum.at(of_block, block, of_case[case])
        np.minimum.at(joined, case, of_block[block])
        if (joined == of_case).all():
            return np.unique(np.concatenate([of_case, of_block]), return_inverse=True)[1]
        of_case = joined


def moderated(squares: Any, df: Any, common: float, weight: float) -> Any:
    """Return a variance from a sum of squares and its degrees of freedom, moderated by the `common` standard deviation,
    which counts like `weight` more values (G. K. Smyth, "Linear models and empirical Bayes methods", Statistical
    Applications in Genetics and Molecular Biology 3, 2004)."""
    return (weight * common**2 + squares) / (weight + df)
