"""The additive model log(number) = case + block: its fit, and Tukey's simultaneous comparison of cases.

Blocks are every case launched once, interleaved, so what drifts between blocks (clocks, neighbours,
temperature) cancels. With every case in every block this is "centre by block, then compare means with the
studentized range"; the least squares form gives the same numbers there, and stays right when a launch is
missing (Tukey-Kramer). A case's own noise counts too: four ranks on two cores are louder than two.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.tukey import Numbers, range_cdf, studentized_range, t_quantile
from parabench.store.columns import Rows, coded

# Below this, differences of logarithms are rounding, not measurement: bytes may agree exactly.
ROUNDING = 1e-9
# A plan with more blocks than this is not a plan; the answer is then "more than".
MOST_BLOCKS = 100
# How many launches the variance that all cases have in common is worth beside a case's own. In simulations Tukey's test
# with one variance for all kept all of a flat curve in 80 % of sessions where cases differ tenfold in noise; with this
# in 85 % (3 blocks) to 95 % (10), and no less elsewhere (docs/explanation/certainty.md).
COMMON_WEIGHT = 4.0
# Differences below this are not worth another night of blocks: it is also what `compare` tolerates.
SHARP_ENOUGH = 0.02
# And a set of several that is not narrower than this names no winner: any other of it may be as much faster.
TOO_WIDE = 0.05


@dataclass(frozen=True)
class Effects:
    """A fitted model. `means` are case means on the log scale, as in the average block.

    `residual` is the standard deviation of one launch that all cases have in common, `variances` what each case's is by
    itself and the common one.
    """

    cases: tuple[str, ...]
    means: dict[str, float]
    n: dict[str, int]
    n_blocks: int
    df: int
    residual: float
    variances: dict[str, float]
    _layout: _Layout

    def half_width(self, case: str, other: str) -> float:
        """Half-width (log scale) of the simultaneous interval of case - other; infinite when unknown."""
        if other in self._scales:  # it is the same the other way round
            case, other = other, case
        return float(self.half_widths(case)[self._place[other]])

    def half_widths(self, case: str, confidence: float = CONFIDENCE) -> Numbers:
        """The same against each of `cases`, in their order."""
        at = self._place[case]
        if case not in self._scales:
            self._scales[case] = self._layout.scales(at, *self._noise)
        scales = self._scales[case]
        if self.df < 1:
            widths = np.full(len(scales), np.inf)
        else:
            widths = (studentized_range(len(self.cases), self.df, confidence) if len(scales) > 1 else 0.0) * scales
        widths[at] = 0.0
        return widths

    @cached_property
    def _place(self) -> dict[str, int]:
        return {case: i for i, case in enumerate(self.cases)}

    @cached_property
    def levels(self) -> Numbers:
        """The means in the order of `cases`."""
        return np.array([self.means[case] for case in self.cases])

    @cached_property
    def _noise(self) -> tuple[Numbers, Numbers]:
        """The variance of each case's own mean, and the covariance of what blocks add up to."""
        variances = np.array(list(self.variances.values()))
        return variances / self._layout.n, self._layout.noise(variances)

    @cached_property
    def _scales(self) -> dict[str, Numbers]:
        """By case, what was asked for: all pairs of a thousand cases would be a million."""
        return {}

    def own_half_width(self, case: str) -> float:
        """Half-width (log scale) of one mean's interval; infinite without a residual."""
        if self.df < 1:
            return math.inf
        return t_quantile((1 + CONFIDENCE) / 2, self.df) * math.sqrt(self.variances[case] / self.n[case])

    def indistinguishable(self, case: str, confidence: float = CONFIDENCE) -> list[str]:
        """The cases whose simultaneous interval against `case` holds zero, fastest first, with `case`."""
        apart = np.abs(self.levels - self.means[case])
        near = [self.cases[at] for at in np.flatnonzero(apart <= self.half_widths(case, confidence) + ROUNDING)]
        return sorted(near, key=lambda other: (self.means[other], other != case))

    def blocks_for(self, half_width: float, among: Sequence[str] = ()) -> int:
        """The fewest blocks, all cases in each, for at most `half_width` between any of `among` (the common noise
        decides where none are named); capped at MOST_BLOCKS + 1.

        The half-width is q(k, (k-1)(blocks-1)) * noise / sqrt(blocks): small enough when the range's probability
        below half_width * sqrt(blocks) / noise reaches CONFIDENCE, which is one integral instead of a search.
        """
        loudest = sorted(self.variances[case] for case in among)[-2:]
        noise = math.sqrt(sum(loudest) / len(loudest)) if loudest else self.residual
        return _fewest_blocks(len(self.cases), noise, half_width)


@lru_cache(maxsize=256)
def _fewest_blocks(k: int, noise: float, half_width: float) -> int:
    if noise < ROUNDING:
        return 2

    def enough(blocks: int) -> bool:
        q = half_width * math.sqrt(blocks) / noise
        return range_cdf(q, k, (k - 1) * (blocks - 1)) >= CONFIDENCE

    low, high = 1, MOST_BLOCKS + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class _Layout:
    """Which case was launched in which block, and what least squares of case + block makes of it.

    `counts` has shape (cases, blocks). Cases are many and blocks are few, so cases are eliminated: what is left to
    solve is the `reduced` system of blocks, symmetric, with a null space that is known (the level of each component of
    cases and blocks that launches connect), so that no rank is guessed. With every case in every block this is
    centring. J. A. John and E. R. Williams, "Cyclic and Computer Generated Designs" (1995), section 1.3.
    """

    counts: Numbers
    component: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def of(cls, case: np.ndarray, block: np.ndarray) -> _Layout:
        """The layout of launches with these places of their cases and blocks."""
        k, b = int(case.max()) + 1, int(block.max()) + 1
        counts = np.zeros((k, b))
        np.add.at(counts, (case, block), 1.0)
        # Blocks are of one component where cases connect them, through other blocks too.
        joined = counts.T @ counts > 0
        while (further := joined @ joined).sum() > joined.sum():
            joined = further
        of_block = np.unique(joined.argmax(axis=1), return_inverse=True)[1]
        return cls(counts, np.concatenate([of_block[counts.argmax(axis=1)], of_block]))

    @cached_property
    def n(self) -> Numbers:
        """Launches of each case."""
        total: Numbers = self.counts.sum(axis=1)
        return total

    @cached_property
    def shares(self) -> Numbers:
        """The share of each case's launches that lies in each block."""
        return self.counts / self.n[:, None]

    @cached_property
    def reduced(self) -> Numbers:
        """The pseudo-inverse of the blocks' system when cases are eliminated, of shape (blocks, blocks)."""
        system = np.diag(self.counts.sum(axis=0)) - self.counts.T @ self.shares
        component = self.component[len(self.counts) :]
        alike = component[:, None] == component
        null = alike / alike.sum(axis=0)  # projects onto the level of each component
        inverse: Numbers = np.linalg.inv(system + null) - null
        return inverse

    @property
    def rank(self) -> int:
        """Of the design matrix: each component's level is in its cases and in its blocks."""
        return len(self.component) - int(self.component.max()) - 1

    def solve(self, y: Numbers, case: np.ndarray, block: np.ndarray) -> tuple[Numbers, Numbers]:
        """(case effects, block effects) of least squares with the least norm."""
        own = np.bincount(case, y) / self.n
        blocks: Numbers = self.reduced @ (np.bincount(block, y) - self.counts.T @ own)
        cases: Numbers = own - self.shares @ blocks
        effects = np.concatenate([cases, blocks])
        sign = np.repeat([1.0, -1.0], self.counts.shape)
        shift = -np.bincount(self.component, sign * effects) / np.bincount(self.component)
        effects += sign * shift[self.component]
        return effects[: len(cases)], effects[len(cases) :]

    def leverages(self, case: np.ndarray, block: np.ndarray) -> Numbers:
        """Of each launch: the diagonal of the matrix that makes fitted numbers of measured ones."""
        spread = self.shares @ self.reduced
        own = 1 / self.n + np.einsum("ij,ij->i", spread, self.shares)
        found: Numbers = own[case] - 2 * spread[case, block] + self.reduced.diagonal()[block]
        return found

    def noise(self, variances: Numbers) -> Numbers:
        """The covariance of the right side of the blocks' system, of shape (blocks, blocks), where one launch of a case
        has its own of `variances`."""
        total: Numbers = np.diag(variances @ self.counts) - (self.counts * variances[:, None]).T @ self.shares
        return total

    def scales(self, at: int, own: Numbers, noise: Numbers) -> Numbers:
        """The standard error of the case at place `at` minus each case, over the square root of 2, where each case's
        mean has a variance of its `own` and blocks add their `noise`; infinite where the launches cannot compare the
        two."""
        apart = (self.shares - self.shares[at]) @ self.reduced
        squared = own + own[at] + np.einsum("ij,ij->i", apart @ noise, apart)
        component = self.component[: len(own)]
        scales: Numbers = np.where(component == component[at], np.sqrt(np.maximum(0.0, squared) / 2), np.inf)
        return scales


@dataclass(frozen=True)
class StratifiedEffects(Effects):
    """A fitted model of cases of which some shared launches, in two strata, as in a split-plot experiment.

    Cases of one cohort are compared inside launches, where what the launches differ by cancels: that is the fit that
    this one extends, with a launch in the place of a block. Cohorts are compared by the levels of their launches:
    `between` is the model of these, log(level) = cohort + block, where a level is that of an average case of the
    cohort. `cohort` is the place there of each of `cases`. (W. G. Cochran and G. M. Cox, "Experimental Designs", 2nd
    ed., 1957, section 7.1.)
    """

    between: Effects
    cohort: np.ndarray[Any, np.dtype[np.int64]]

    def half_widths(self, case: str, confidence: float = CONFIDENCE) -> Numbers:
        """Against cases of other cohorts from the variances of both strata, with the degrees of freedom of the levels,
        of which there are few and whose variance is the larger."""
        widths, between, at = Effects.half_widths(self, case, confidence), self.between, self._place[case]
        if between.df < 1:
            return widths
        apart = between._layout.scales(int(self.cohort[at]), *between._noise)[self.cohort]
        within = (self._within[at] + self._within) / 2
        across = studentized_range(len(self.cases), between.df, confidence) * np.sqrt(apart**2 + within)
        return np.where(self.cohort == self.cohort[at], widths, across)

    def own_half_width(self, case: str) -> float:
        between, at = self.between, self._place[case]
        if between.df < 1:
            return math.inf
        level = float(between._noise[0][self.cohort[at]])
        return t_quantile((1 + CONFIDENCE) / 2, between.df) * math.sqrt(level + float(self._within[at]))

    def blocks_for(self, half_width: float, among: Sequence[str] = ()) -> int:
        """By the noise inside launches where all of `among` are of one cohort, else by that of the levels too."""
        needed = Effects.blocks_for(self, half_width, among)
        if len({int(self.cohort[self._place[case]]) for case in among or self.cases}) == 1:
            return needed
        return max(needed, self.between.blocks_for(half_width))

    @cached_property
    def _within(self) -> Numbers:
        """The variance of each case's mean around that of its cohort; 0 where the case is all of it."""
        found: Numbers = self._noise[0] * (1 - 1 / np.bincount(self.cohort)[self.cohort])
        return found


def fit(launches: Rows, number: str = "launch_step_s") -> Effects:
    """Least squares over launches with columns `case_id`, `block` and `number` (any unit, above 0). Where some have the
    same `shared_launch`, those are compared inside it."""
    case, block = np.asarray(launches["case_id"]), np.asarray(launches["block"])
    y = np.log(np.asarray(launches[number], dtype=float))
    shared = np.asarray(launches["shared_launch"]) if "shared_launch" in launches else np.arange(len(y))
    if len(np.unique(shared)) == len(y):
        return _fit(case, block, y)
    inner = _fit(case, shared, y)
    cohort = np.unique(inner._layout.component[: len(inner.cases)], return_inverse=True)[1]
    # What a case has over an average case of its cohort, and the level of each launch for such a case.
    over = inner.levels - (np.bincount(cohort, inner.levels) / np.bincount(cohort))[cohort]
    place = np.array([inner._place[each] for each in case.tolist()], dtype=np.int64)
    launch = coded(shared)[0]
    levels = np.bincount(launch, y - over[place]) / np.bincount(launch)
    first = np.unique(launch, return_index=True)[1]
    between = _fit(cohort[place[first]], block[first], levels)
    at = np.array([between._place[each] for each in cohort.tolist()], dtype=np.int64)
    means = dict(zip(inner.cases, (over + between.levels[at]).tolist(), strict=True))
    fields = {each.name: getattr(inner, each.name) for each in dataclasses.fields(Effects)}
    fields |= {"means": means, "n_blocks": len(np.unique(block))}
    return StratifiedEffects(**fields, between=between, cohort=at)


def _fit(of_case: Any, of_block: Any, y: Numbers) -> Effects:
    """Least squares of log(number) = case + block."""
    case, cases = coded(of_case)
    block, blocks = coded(of_block)
    layout = _Layout.of(case, block)
    means, levels = layout.solve(y, case, block)
    df = len(y) - layout.rank
    error = y - means[case] - levels[block]
    residual = math.sqrt(float(error @ error) / df) if df > 0 else math.nan
    variances = _moderated(error, 1 - layout.leverages(case, block), case, residual)
    # The solution of the least norm splits the common level between cases and blocks; give it all to the cases.
    means = means + levels.mean()
    return Effects(
        cases=tuple(cases),
        means=dict(zip(cases, means.tolist(), strict=True)),
        n=dict(zip(cases, layout.n.astype(int).tolist(), strict=True)),
        n_blocks=len(blocks),
        df=df,
        residual=residual,
        variances=dict(zip(cases, variances.tolist(), strict=True)),
        _layout=layout,
    )


def _moderated(error: np.ndarray, free: np.ndarray, case_index: np.ndarray, residual: float) -> np.ndarray:
    """Each case's variance of one launch: its own residuals' and the common one, weighted by degrees of freedom.

    `free` is what the fit leaves of each row's freedom, 1 less its leverage: summed over a case its degrees of freedom.
    """
    df = np.bincount(case_index, free)
    variances: np.ndarray = moderated(np.bincount(case_index, error**2), df, residual, COMMON_WEIGHT)
    return variances


def moderated(squares: Any, df: Any, common: float, weight: float) -> Any:
    """A variance of few values, from the sum of their squares and its degrees of freedom, moderated by the `common`
    standard deviation of many, which counts like `weight` values more (G. K. Smyth, "Linear models and empirical Bayes
    methods", Statistical Applications in Genetics and Molecular Biology 3, 2004)."""
    return (weight * common**2 + squares) / (weight + df)
