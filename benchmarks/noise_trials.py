"""Compare the predictions of `parabench noise` from pilots with later pairs of launches.

    python -m benchmarks.noise_trials recorded STORE [PILOT ...]
    python -m benchmarks.noise_trials simulated [RECORDINGS]

`recorded` cuts a long A/A recording (`parabench ab --launches 120` of equal variants) into windows: a pilot of PILOT
pairs, then later pairs. `simulated` does the same with simulated recordings. Their noise wanders, has heavy tails and
is partly common to all cases. Three predictions must be right within a factor of 1.5: the half-width of the 95%
interval (geometric mean over cases), the tolerance that passes, and the slowdown that the gate detects in 90% of runs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator

import numpy as np

from parabench.analysis.noise import (
    RIGHT_WITHIN,
    half_width,
    least_change,
    least_tolerance,
    pairs_needed,
    read_pilot,
    spread_of,
)
from parabench.analysis.stats.contrasts import Numbers, judge

PILOTS, LAUNCHES, LATER = (8, 12, 20), (8, 12, 20), 30


def trial(pilot: Numbers, later: Numbers) -> tuple[float, float]:
    """Return the half-width and the tolerance of later pairs over the predictions of a pilot.

    Both are differences of shape (cases, pairs).
    """
    cases, n = later.shape
    spread, own = spread_of(pilot), spread_of(later)
    assert spread is not None
    assert own is not None
    tests = judge({case: (np.zeros(n), later[case]) for case in range(cases)}, paired=True).values()
    typical = math.exp(float(np.mean([math.log((test.high - test.low) / 2) for test in tests])))
    tolerance = least_tolerance(own.by_case, n) / least_tolerance(spread.by_case, n)
    return math.expm1(typical) / half_width(spread.typical, n), tolerance


def windows(differences: Numbers, pilot: int, launches: int) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield pilots with their later pairs, which do not overlap."""
    for first in range(0, differences.shape[1] - pilot - launches + 1, launches):
        yield differences[:, first : first + pilot], differences[:, first + pilot : first + pilot + launches]


def recording(lot: np.random.Generator, cases: int, pairs: int, wander: float = 0.15, common: float = 0.3) -> Numbers:
    """Return simulated differences of equal variants.

    The noise of cases differs by a factor of exp(0.3 z). Its level wanders by `wander` over ten pairs, and a share
    `common` of its variance is common to all cases. A pair has t noise with 5 degrees of freedom, which correlates by
    0.1 with the next pair.
    """
    level = np.cumsum(lot.standard_normal(pairs)) * wander / math.sqrt(10)
    own, all_cases = (_tailed(lot, (rows, pairs)) for rows in (cases, 1))
    loudness = 0.01 * np.exp(0.3 * lot.standard_normal((cases, 1)))
    return loudness * np.exp(level) * (math.sqrt(1 - common) * own + math.sqrt(common) * all_cases)


def _tailed(lot: np.random.Generator, shape: tuple[int, int], correlated: float = 0.1) -> Numbers:
    """Return correlated t noise of variance 1."""
    drawn = lot.standard_t(5, shape) * math.sqrt(3 / 5)
    drawn[:, 1:] = math.sqrt(1 - correlated**2) * drawn[:, 1:] + correlated * drawn[:, :-1]
    return drawn


def share(trials: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return the shares of trials with the right half-width and with the right tolerance."""
    ratios = np.array(list(trials))
    half_width, tolerance = ((ratios >= 1 / RIGHT_WITHIN) & (ratios <= RIGHT_WITHIN)).mean(axis=0)
    return float(half_width), float(tolerance)


def table(recordings: list[Numbers], pilots: tuple[int, ...] = PILOTS) -> None:
    """Print the share of right predictions for each length of pilot, together for all numbers of later launches."""
    for pilot in pilots:
        cut = [pair for launches in LAUNCHES for each in recordings for pair in windows(each, pilot, launches)]
        if cut:
            half_width, tolerance = share([trial(*pair) for pair in cut])
            print(f"pilots of {pilot}, {len(cut)} trials: half-width {half_width:.0%}, tolerance {tolerance:.0%} right")
    ratios = [*detected(recordings)]
    right = f"{np.mean([1 / RIGHT_WITHIN <= each <= RIGHT_WITHIN for each in ratios]):.0%}" if ratios else "none"
    print(f"slowdowns detected in 90% of runs, right: {right} of {len(ratios)}", flush=True)


def detected(recordings: list[Numbers]) -> Iterator[float]:
    """Yield the slowdown that 12 launches detect by the spread of all later pairs, over the predicted one."""
    for differences in recordings:
        cases, whole = differences.shape
        for pairs in PILOTS:
            for first in range(0, whole - pairs - LATER + 1, pairs // 2):
                before = spread_of(differences[:, first : first + pairs])
                after = spread_of(differences[:, first + pairs :])
                assert before is not None
                assert after is not None
                if pairs >= pairs_needed(cases, before.inflation):
                    least, predicted = (least_change(each.typical, 12, cases) for each in (after, before))
                    yield least / predicted


def main() -> None:
    kind, *rest = sys.argv[1:]
    if kind == "recorded":
        measured = read_pilot(rest[0])
        pilots = tuple(map(int, rest[1:])) or PILOTS
        print(f"{measured.pairs} pairs of {len(measured.cases)} cases, {measured.pair_s:.1f} s a pair")
        table([measured.differences], pilots)
        print("each case by itself")
        table([row[None, :] for row in measured.differences], pilots)
        return
    random, many = np.random.default_rng(0), int(rest[0]) if rest else 30
    for cases in (1, 4, 20):
        print(f"{cases} cases, simulated")
        table([recording(random, cases, 60) for _ in range(many)])


if __name__ == "__main__":
    main()
