"""Is what `parabench noise` predicts right? Pilots, and what later pairs of launches really showed.

    python -m benchmarks.noise_trials recorded STORE [PILOT ...]
    python -m benchmarks.noise_trials simulated [RECORDINGS]

`recorded` cuts a long A/A recording (`parabench ab --a "" --b "" ... --launches 120`) into windows: a pilot of PILOT
pairs, then pairs that it has not seen, as an `ab` of so many launches would have. `simulated` does so with recordings
whose noise wanders, has tails and is partly common to all cases.

Printed: in which share of trials the half-width of the 95 % interval that the launches then had (of the cases' the
geometric mean) and the tolerance with which their gate would have passed (by their own spread) were within a factor of
1.5 of what the pilot predicted; by estimators of a pilot's standard deviation; and by how much, in the median. Then the
same of answers as `parabench noise` gives them, with its question mark and without; and how often the slowdown that
they say is seen in 90 % of runs is right, against that of the spread of all pairs that followed, LATER or more.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from parabench.analysis.compare.pilot import Pilot, read_pilot
from parabench.analysis.compare.sensitivity import (
    RIGHT_WITHIN,
    Spread,
    half_width,
    in_turns,
    least_change,
    least_tolerance,
    pairs_needed,
    spread_of,
    sure,
)
from parabench.analysis.stats.ttest import Numbers, judge

PILOTS, LAUNCHES, LATER = (8, 12, 20), (8, 12, 20), 30


def robust(differences: Numbers) -> Spread | None:
    """The same by the median absolute deviation, which an outlier does not move."""
    found = spread_of(differences)
    assert found is not None
    apart = np.abs(differences - np.median(differences, axis=1, keepdims=True))
    sd = 1.4826 * np.median(apart, axis=1)
    typical = float(np.exp(np.log(sd).mean()))
    return Spread(typical, found.off, found.own * typical / found.typical, found.alike)


def recent(differences: Numbers) -> Spread | None:
    """The same of the later half of the pilot: nearer to what follows."""
    return spread_of(differences[:, differences.shape[1] // 2 :])


def successive(differences: Numbers) -> Spread | None:
    """The same by the differences of successive pairs, which a drift does not widen (J. von Neumann, 1941)."""
    found = spread_of(differences)
    assert found is not None
    sd = np.sqrt((np.diff(differences, axis=1) ** 2).mean(axis=1) / 2)
    typical = float(np.exp(np.log(sd).mean()))
    return Spread(typical, found.off, found.own * typical / found.typical, found.alike)


ESTIMATORS: dict[str, Callable[[Numbers], Spread | None]] = {
    "standard deviation": spread_of,
    "robust": robust,
    "later half": recent,
    "successive": successive,
}


@dataclass(frozen=True)
class Trial:
    """What launches showed over what a pilot predicted."""

    half_width: float
    tolerance: float

    @property
    def right(self) -> tuple[bool, bool]:
        return tuple(1 / RIGHT_WITHIN <= each <= RIGHT_WITHIN for each in (self.half_width, self.tolerance))


def trial(pilot: Numbers, later: Numbers, estimate: Callable[[Numbers], Spread | None] = spread_of) -> Trial:
    """`pilot` and `later` are differences of shape (cases, pairs)."""
    cases, n = later.shape
    spread, own = estimate(pilot), spread_of(later)
    assert spread is not None
    assert own is not None
    tests = judge({case: (np.zeros(n), later[case]) for case in range(cases)}, paired=True).values()
    typical = math.exp(float(np.mean([math.log((test.high - test.low) / 2) for test in tests])))
    return Trial(
        math.expm1(typical) / half_width(spread.typical, n),
        least_tolerance(*in_turns(own, n)) / least_tolerance(*in_turns(spread, n)),
    )


def windows(differences: Numbers, pilot: int, launches: int) -> Iterator[tuple[Numbers, Numbers]]:
    """Pilots and what follows each; what follows one is in no other's."""
    for first in range(0, differences.shape[1] - pilot - launches + 1, launches):
        yield differences[:, first : first + pilot], differences[:, first + pilot : first + pilot + launches]


def by_time(whole: Pilot, pairs: int, minutes: float) -> Iterator[Trial]:
    """Pilots of so many pairs, and the pairs that really followed in the time for which they predict the interval."""
    for first in range(0, whole.pairs - pairs, pairs):
        part = slice(first, first + pairs)
        pilot = replace(whole, differences=whole.differences[:, part], begun_s=whole.begun_s[part])
        begin = float(whole.begun_s[first + pairs])
        inside = (whole.begun_s >= begin) & (whole.begun_s + (pilot.pair_s or 0.0) <= begin + 60 * minutes)
        spread, later = spread_of(pilot.differences), whole.differences[:, inside]
        launches = int(60 * minutes / (pilot.pair_s or math.inf))
        if begin + 60 * minutes <= whole.begun_s[-1] and later.shape[1] > 1 and launches > 1 and spread is not None:
            own = trial(pilot.differences, later)
            again = half_width(spread.typical, later.shape[1]) / half_width(spread.typical, launches)
            yield replace(own, half_width=own.half_width * again)


def recording(lot: np.random.Generator, cases: int, pairs: int, wander: float = 0.15, common: float = 0.3) -> Numbers:
    """Differences of equal sides. Cases' noise differs by a factor of exp(0.3 z); its level wanders by `wander` over
    ten pairs; a share `common` of its variance is that of all cases; a pair's noise has the tails of t with 5 degrees
    of freedom and correlates by 0.1 with the next."""
    level = np.cumsum(lot.standard_normal(pairs)) * wander / math.sqrt(10)
    own, all_cases = (_tailed(lot, (rows, pairs)) for rows in (cases, 1))
    loudness = 0.01 * np.exp(0.3 * lot.standard_normal((cases, 1)))
    return loudness * np.exp(level) * (math.sqrt(1 - common) * own + math.sqrt(common) * all_cases)


def _tailed(lot: np.random.Generator, shape: tuple[int, int], correlated: float = 0.1) -> Numbers:
    """Of variance 1."""
    drawn = lot.standard_t(5, shape) * math.sqrt(3 / 5)
    drawn[:, 1:] = math.sqrt(1 - correlated**2) * drawn[:, 1:] + correlated * drawn[:, :-1]
    return drawn


def share(trials: list[Trial]) -> tuple[float, float]:
    """Of trials those in which the half-width, and the tolerance, was right."""
    both = np.mean([each.right for each in trials], axis=0)
    return float(both[0]), float(both[1])


def table(recordings: list[Numbers], pilots: tuple[int, ...] = PILOTS) -> None:
    print("pilot  launches  trials  estimator            half-width right  in the median  tolerance right")
    for pilot in pilots:
        for launches in LAUNCHES:
            cut = [pair for each in recordings for pair in windows(each, pilot, launches)]
            for name, estimate in ESTIMATORS.items() if cut else ():
                trials = [trial(before, after, estimate) for before, after in cut]
                right = share(trials)
                median = np.median([each.half_width for each in trials])
                shares = f"{right[0]:16.0%}  {median:13.2f}  {right[1]:15.0%}"
                print(f"{pilot:5}  {launches:8}  {len(cut):6}  {name:19}  {shares}", flush=True)


def told(recordings: list[Numbers]) -> None:
    """The trials of pilots that are long enough for an answer, apart by whether it is marked as not sure."""
    found: dict[bool, list[Trial]] = {True: [], False: []}
    for pairs in (8, 12, 16, 22, 30, 40):
        for launches in (8, 12, 16, 20, 30, 40):
            for before, after in (pair for each in recordings for pair in windows(each, pairs, launches)):
                spread = spread_of(before)
                assert spread is not None
                if pairs >= pairs_needed(len(before), spread.alike):
                    found[sure(len(before), pairs, launches, spread.alike)].append(trial(before, after))
    for marked, trials in found.items():
        right = f"{share(trials)[0]:.0%} of {len(trials)}" if trials else "none"
        print(f"answers {'without' if marked else 'with'} a question mark that are right: {right}", flush=True)
    ratios = [*seen(recordings)]
    right = f"{np.mean([1 / RIGHT_WITHIN <= each <= RIGHT_WITHIN for each in ratios]):.0%}" if ratios else "none"
    print(f"slowdowns that are seen in 90 % of runs, right: {right} of {len(ratios)}", flush=True)


def seen(recordings: list[Numbers]) -> Iterator[float]:
    """Of pilots that are long enough for an answer, the least slowdown that an `ab` of 12 launches shows by the spread
    of all pairs that followed, over that by the pilot's."""
    for differences in recordings:
        cases, whole = differences.shape
        for pairs in (8, 12, 16, 22, 30):
            for first in range(0, whole - pairs - LATER + 1, pairs // 2):
                before = spread_of(differences[:, first : first + pairs])
                after = spread_of(differences[:, first + pairs :])
                assert before is not None
                assert after is not None
                if pairs >= pairs_needed(cases, before.alike):
                    least, predicted = (least_change(each.typical, 12, cases) for each in (after, before))
                    yield least / predicted


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "recorded":
        measured = read_pilot(rest[0])
        pilots = tuple(map(int, rest[1:])) or PILOTS
        print(f"{measured.pairs} pairs of {len(measured.cases)} cases, {measured.pair_s:.1f} s a pair")
        table([measured.differences], pilots)
        told([measured.differences])
        print("each case by itself")
        table([row[None, :] for row in measured.differences], pilots)
        told([row[None, :] for row in measured.differences])
        for length, minutes in ((12, 1.0), (12, 2.0), (12, 3.0)):
            found = [*by_time(measured, length, minutes)]
            print(f"{length} pairs, then {minutes:g} minutes: {share(found)[0]:.0%} of {len(found)} right")
    else:
        random = np.random.default_rng(0)
        for cases in (1, 4, 20):
            print(f"{cases} cases, simulated")
            drawn = [recording(random, cases, 60) for _ in range(int(rest[0]) if rest else 30)]
            table(drawn)
            told(drawn)
