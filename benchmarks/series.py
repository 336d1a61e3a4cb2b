"""Simulate `ab --series` with a known truth; `benchmarks.certainty` prints the shares of false and correct accepts."""

from __future__ import annotations

import numpy as np

from parabench.analysis.compare.proposal import LEAST, MOST_PAIRS, Judgement, alpha_of, judged
from parabench.analysis.stats.contrasts import judge

# The standard deviation of pairs of launches, the gain of a proposal, and the proposals of a series.
SD, GAIN, PROPOSALS = 0.01, 0.02, 40


def proposed(random: np.random.Generator, spend: float, gain: float) -> Judgement:
    """Return the judgement of one proposal."""
    drawn = SD * random.standard_normal(MOST_PAIRS) + np.log1p(-gain)
    for pairs in range(2, MOST_PAIRS + 1):
        found = judged(judge({0: (np.zeros(pairs), drawn[:pairs])}, paired=True)[0], pairs, spend, LEAST)
        if found.accept is not None:
            break
    return found


def print_series(count: int) -> None:
    """Print the false accepts of series without a gain, and the accepts of single proposals with one."""
    random, series = np.random.default_rng(0), max(1, count // 2)
    false, pairs = 0, list[int]()
    for _ in range(series):
        for number in range(1, PROPOSALS + 1):
            found = proposed(random, alpha_of(number), 0.0)
            pairs.append(found.pairs)
            if found.accept:
                false += 1
                break
    text = f"{false} with a false accept ({false / series:.2%}); a proposal took {np.median(pairs):.0f} pairs"
    print(f"{series} series of {PROPOSALS} proposals that change nothing: {text}")
    for number in (1, 10, 100, 1000):
        many = [proposed(random, alpha_of(number), GAIN) for _ in range(series)]
        accepted, needed = np.mean([one.accept is True for one in many]), np.median([one.pairs for one in many])
        print(f"a gain of {GAIN:.0%}, proposal {number}: {accepted:.1%} accepted, after {needed:.0f} pairs")
