"""The additive model log(number) = case + block: its fit, and Tukey's simultaneous comparison of cases.

Blocks are every case launched once, interleaved, so what drifts between blocks (clocks, neighbours,
temperature) cancels. With every case in every block this is "centre by block, then compare means with the
studentized range"; the least squares form gives the same numbers there, and stays right when a launch is
missing (Tukey-Kramer).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
from scipy import stats

# Below this, differences of log times are rounding, not measurement.
_ROUNDING = 1e-9
# A plan with more blocks than this is not a plan; the answer is then "more than".
MOST_BLOCKS = 100


@lru_cache(maxsize=256)
def studentized_range(k: int, df: int, confidence: float) -> float:
    """The quantile q of the studentized range of `k` means with `df` degrees of freedom."""
    return float(stats.studentized_range.ppf(confidence, k, df))


@dataclass(frozen=True)
class Effects:
    """A fitted model. `means` are case means on the log scale, as in the average block."""

    cases: tuple[str, ...]
    means: dict[str, float]
    n: dict[str, int]
    n_blocks: int
    df: int
    residual: float
    _inverse: np.ndarray
    _estimable: np.ndarray

    def half_width(self, case: str, other: str, confidence: float = 0.95) -> float:
        """Half-width (log scale) of the simultaneous interval of case - other; infinite when unknown."""
        if case == other:
            return 0.0
        contrast = np.zeros(len(self._inverse))
        contrast[self.cases.index(case)], contrast[self.cases.index(other)] = 1.0, -1.0
        if self.df < 1 or not np.allclose(contrast @ self._estimable, contrast, atol=1e-8):
            return math.inf
        scale = math.sqrt(max(0.0, float(contrast @ self._inverse @ contrast)) / 2)
        return studentized_range(len(self.cases), self.df, confidence) * self.residual * scale

    def own_half_width(self, case: str, confidence: float = 0.95) -> float:
        """Half-width (log scale) of one mean's interval, from the pooled residual; infinite without one."""
        if self.df < 1:
            return math.inf
        t = float(stats.t.ppf((1 + confidence) / 2, self.df))
        return t * self.residual / math.sqrt(self.n[case])

    def indistinguishable(self, case: str, confidence: float = 0.95) -> list[str]:
        """The cases whose simultaneous interval against `case` holds zero, fastest first, with `case`."""
        near = [
            other
            for other in self.cases
            if abs(self.means[other] - self.means[case]) <= self.half_width(other, case, confidence) + _ROUNDING
        ]
        return sorted(near, key=lambda other: (self.means[other], other != case))

    def blocks_for(self, half_width: float, confidence: float = 0.95) -> int:
        """The fewest blocks, all cases in each, for at most `half_width`; capped at MOST_BLOCKS + 1.

        The half-width is q(k, (k-1)(blocks-1)) * residual / sqrt(blocks), so q is taken again for each number
        of blocks.
        """
        k = len(self.cases)

        def enough(blocks: int) -> bool:
            q = studentized_range(k, (k - 1) * (blocks - 1), confidence)
            return q * self.residual / math.sqrt(blocks) <= half_width

        low, high = 1, MOST_BLOCKS + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high


def fit(launches: pd.DataFrame) -> Effects:
    """Least squares over launches with columns `case_id`, `block`, `number_s` (seconds, above 0)."""
    cases = tuple(launches["case_id"].unique())
    blocks = list(launches["block"].unique())
    y = np.log(launches["number_s"].to_numpy(dtype=float))
    design = np.zeros((len(launches), len(cases) + len(blocks)))
    rows = np.arange(len(launches))
    case_index = launches["case_id"].map({case: i for i, case in enumerate(cases)}).to_numpy(dtype=int)
    block_index = launches["block"].map({block: i for i, block in enumerate(blocks)}).to_numpy(dtype=int)
    design[rows, case_index] = 1.0
    design[rows, len(cases) + block_index] = 1.0

    pseudo = np.linalg.pinv(design)
    beta = pseudo @ y
    df = len(y) - int(np.linalg.matrix_rank(design))
    error = y - design @ beta
    residual = math.sqrt(float(error @ error) / df) if df > 0 else math.nan
    # The minimum-norm solution splits the common level between cases and blocks; give it all to the cases.
    level = float(beta[len(cases) :].mean())
    return Effects(
        cases=cases,
        means={case: float(beta[i]) + level for i, case in enumerate(cases)},
        n={case: int((launches["case_id"] == case).sum()) for case in cases},
        n_blocks=len(blocks),
        df=df,
        residual=residual,
        _inverse=pseudo @ pseudo.T,
        _estimable=pseudo @ design,
    )
