"""How small a slowdown `ab` shows here, and in how many minutes: predicted from pairs of launches of equal sides.

What a gate needs is decided before it runs, by how much one pair of launches differs from the next (its standard
deviation, on the log scale) and how long a pair takes. A pilot tells both. Its standard deviation is itself uncertain:
of n pairs of one case the 90 % interval of it is a factor of 1.5 either way with 11 pairs, 1.9 with 5.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, polygamma, psi, stdtrit

from parabench.analysis.compare.between import ALLOWANCE, between_sessions
from parabench.analysis.compare.cases import ALPHA
from parabench.analysis.compare.pilot import Pilot
from parabench.analysis.session import SessionData
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.contrasts import (
    FEWEST_LAUNCHES,
    LEAST_SD,
    MOST_LAUNCHES,
    POWER,
    Numbers,
    errors_shown,
    judge,
    logs_of,
    shown,
)
from parabench.errors import UsageError

# For which the answer is told: minutes of an `ab`, and slowdowns.
BUDGETS = (1.0, 3.0, 5.0, 12.0, 30.0)
CHANGES = (0.1, 0.05, 0.02, 0.01)
# What an answer is to be right within, in INTERVAL of runs. Of that the pilot's own error may be so much: the interval
# of the run that it is for varies too. And no number of cases makes fewer pairs than these enough: each case's own
# spread decides what a gate of all needs (`python -m benchmarks.noise_trials simulated`).
RIGHT_WITHIN, KNOWN_WITHIN, FEWEST_PAIRS = 1.5, 1.3, 8
INTERVAL = 0.9
# Of how a pilot's log variance differs from that of later launches, the variance over what normal noise that stays as
# it is would give it: 1 to 2 on two busy cores, 1.3 to 2.3 simulated with tails and a level that wanders, of up to four
# cases.
RESTLESS = 2.0
# Degrees of freedom of what is known.
MANY = 1e6


@dataclass(frozen=True)
class Spread:
    """The standard deviation of one pair's log-ratio.

    `typical` is the geometric mean over cases, true within a factor `off` in INTERVAL of pilots; `own` has that of each
    case, drawn to the typical one as far as the pairs do not tell it from that. `alike` is how many times as uncertain
    the typical one is as if cases were independent.
    """

    typical: float
    off: float
    own: Numbers
    alike: float


@dataclass(frozen=True)
class Seen:
    """What an `ab` of `minutes` shows, which has `launches` a side; None where it cannot have two.

    `change` is the smallest slowdown of a typical case that is called a regression in POWER of such runs, between `low`
    and `high` as far as the spread is known, with a tolerance of half of it or less. `half_width` is that of the 95 %
    interval that a typical case will have. `tolerance` is the smallest with which the gate of equal sides passes in
    POWER of runs, in all cases at once. `sure`: in INTERVAL of such runs it is right within RIGHT_WITHIN; the
    interval of a few launches of one case varies more than that by itself.
    """

    minutes: float
    launches: int | None
    change: float | None
    low: float | None
    high: float | None
    half_width: float | None
    tolerance: float | None
    sure: bool = False


@dataclass(frozen=True)
class Needs:
    """How many launches a side and minutes an `ab` needs to show a slowdown of `change`, as `Seen` has it, and how many
    its gate to pass with a tolerance of that, and to show twice as much; None beyond MOST_LAUNCHES."""

    change: float
    launches: int | None
    minutes: float | None
    low_minutes: float | None
    high_minutes: float | None
    gate_launches: int | None
    gate_minutes: float | None


@dataclass(frozen=True)
class AgainstBaseline:
    """The gate of a new session against a stored one: without turns what sessions differ by themselves is in its error.

    `tolerance` is the smallest with which it passes in POWER of runs where nothing changed, in all `cases` at once,
    with `launches` a side as the stored session has; `least` what no number of launches goes below. Of the cases
    `measured` have the variance of `sessions` of the suite and environment, and for the others stands the `allowance`,
    a standard deviation of a session's log time.
    """

    session: str
    sessions: int
    cases: int
    measured: int
    allowance: float
    launches: int
    tolerance: float
    least: float


@dataclass(frozen=True)
class Sensitivity:
    """The answer; as a dict it is the JSON of `parabench noise` (docs/how-to/ci.md).

    `sd` is that of a pair of launches of a typical case, a fraction, with its INTERVAL; None where fewer than two pairs
    tell it. `seen` and `needs` are empty where there are fewer than `pairs_needed`.
    """

    suite: str
    rounds: int | None
    cases: int
    left_out: tuple[str, ...]
    pairs: int
    pairs_needed: int
    minutes_needed: float | None
    first_s: float | None
    pair_s: float | None
    sd: float | None
    sd_low: float | None
    sd_high: float | None
    noisiest: str | None
    noisiest_sd: float | None
    seen: tuple[Seen, ...] = ()
    needs: tuple[Needs, ...] = ()
    baseline: AgainstBaseline | None = None

    @property
    def exit_code(self) -> int:
        """0, or 3 where the pilot is too short to say."""
        return 0 if self.seen else 3


def spread_of(differences: Numbers) -> Spread | None:
    """How much one pair differs from the next, of `differences` of shape (cases, pairs); None of fewer than two.

    The logarithm of a sample variance of f degrees of freedom has the mean psi(f/2) - log(f/2) above that of the true
    one, and the variance psi'(f/2); averaged over cases it is hardly moved by one that is noisier than others. A case's
    own is drawn to the mean as far as its error goes beyond what cases differ by (G. K. Smyth, "Linear models and
    empirical Bayes methods", Statistical Applications in Genetics and Molecular Biology 3, 2004).
    """
    cases, pairs = differences.shape
    if not cases or pairs < FEWEST_LAUNCHES:
        return None
    half = (pairs - 1) / 2
    sd = np.maximum(differences.std(axis=1, ddof=1), LEAST_SD)
    logs = np.log(sd) - (psi(half) - math.log(half)) / 2
    error = float(polygamma(1, half)) / 4
    beyond = max(0.0, float(logs.var(ddof=1)) - error) if cases > 1 else 0.0
    alike = _alike(differences)
    typical = float(logs.mean())
    return Spread(
        typical=math.exp(typical),
        off=_factor(_error(cases, pairs, alike)),
        own=np.exp(typical + (logs - typical) * beyond / (beyond + error)),
        alike=alike,
    )


def _factor(error: float) -> float:
    """By what factor either way a logarithm with that standard error is uncertain."""
    deviates: float = ndtri((1 + INTERVAL) / 2)
    return math.exp(deviates * error)


def _error(cases: int, pairs: int, alike: float) -> float:
    """The standard error of the logarithm of the typical standard deviation of so many pairs."""
    error: float = math.sqrt(alike * polygamma(1, (pairs - 1) / 2) / 4 / cases)
    return error


def _alike(differences: Numbers) -> float:
    """The variance of the mean over cases of their log variances, over what it were if these were independent: log
    variances correlate by the square of the correlation of the differences, of which 1 / (pairs - 1) is by chance."""
    cases, pairs = differences.shape
    if cases < 2 or pairs <= FEWEST_LAUNCHES:
        return float(cases)  # nothing tells them apart
    apart = differences - differences.mean(axis=1, keepdims=True)
    apart /= np.maximum(np.sqrt((apart**2).sum(axis=1, keepdims=True)), LEAST_SD)
    squares = (apart @ apart.T) ** 2
    mean = (float(squares.sum()) - float(np.trace(squares))) / (cases * (cases - 1))
    by_chance = 1 / (pairs - 1)
    times: float = 1 + (cases - 1) * max(0.0, (mean - by_chance) / (1 - by_chance))
    return times


def pairs_needed(cases: int, alike: float) -> int:
    """With how many pairs the typical spread would be known within KNOWN_WITHIN."""
    enough = (n for n in range(FEWEST_PAIRS, MOST_LAUNCHES) if _factor(_error(cases, n, alike)) <= KNOWN_WITHIN)
    return next(enough)


def sure(cases: int, pairs: int, launches: int, alike: float) -> bool:
    """Whether a pilot of so many pairs should predict the interval of a run of `launches` within RIGHT_WITHIN, in
    INTERVAL of runs: the one's error and the other's own variation together. How far the noise wanders after the pilot,
    nothing tells."""
    both = math.hypot(*(_error(cases, each, alike) for each in (pairs, launches)))
    return _factor(math.sqrt(RESTLESS) * both) <= RIGHT_WITHIN


def least_change(sd: float, launches: int, cases: int, alpha: float = ALPHA) -> float:
    """The smallest slowdown of one of so many cases that is called a regression in POWER of runs, a fraction: Holm
    tests the case that is slowest at alpha / cases."""
    df = np.array([launches - 1.0])
    errors = float(errors_shown(df, 1 - alpha / cases, POWER)[0])
    return math.expm1(min(50.0, errors * sd / math.sqrt(launches)))


def half_width(sd: float, launches: int) -> float:
    """That of the 95 % interval of a ratio from so many pairs, a fraction: its typical one, since the spread of few
    pairs is seldom larger than the true one."""
    half = (launches - 1) / 2
    told = math.exp((float(psi(half)) - math.log(half)) / 2)
    return math.expm1(float(stdtrit(launches - 1, (1 + CONFIDENCE) / 2)) * told * sd / math.sqrt(launches))


def passes(errors: Numbers, df: Numbers, tolerance: float) -> float:
    """The probability that a gate of equal sides passes, at least: all cases must, each with the standard error of its
    difference (Bonferroni)."""
    return 1 - float((1 - shown(math.log1p(tolerance) / errors, df)).sum())


def least_tolerance(errors: Numbers, df: Numbers) -> float:
    """The smallest tolerance with which such a gate passes in POWER of runs."""
    low, high = 0.0, 1.0
    while passes(errors, df, high) < POWER and high < 1e6:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if passes(errors, df, middle) >= POWER else (middle, high)
    return high


def in_turns(spread: Spread, launches: int) -> tuple[Numbers, Numbers]:
    """(standard error, degrees of freedom) of the difference of each case in so many pairs."""
    errors: Numbers = spread.own / math.sqrt(launches)
    return errors, np.full(len(errors), launches - 1.0)


def sensitivity(pilot: Pilot, alpha: float = ALPHA) -> Sensitivity:
    """What `ab` shows here, told by a pilot."""
    spread, cases = spread_of(pilot.differences), len(pilot.cases)
    # Two pairs or fewer do not tell whether cases vary together.
    alike = spread.alike if spread and pilot.pairs > FEWEST_LAUNCHES else 1.0
    needed = pairs_needed(cases, alike) if cases else FEWEST_PAIRS
    known = spread is not None and pilot.pairs >= needed
    at = int(np.argmax(spread.own)) if spread else 0
    return Sensitivity(
        suite=pilot.suite,
        rounds=pilot.rounds,
        cases=cases,
        left_out=pilot.left_out,
        pairs=pilot.pairs,
        pairs_needed=needed,
        minutes_needed=_minutes(pilot, needed) if pilot.pair_s is not None else None,
        first_s=pilot.first_s,
        pair_s=pilot.pair_s,
        sd=math.expm1(spread.typical) if spread else None,
        sd_low=math.expm1(spread.typical / spread.off) if spread else None,
        sd_high=math.expm1(spread.typical * spread.off) if spread else None,
        noisiest=pilot.cases[at] if spread else None,
        noisiest_sd=math.expm1(float(spread.own[at])) if spread else None,
        seen=tuple(seen(pilot, spread, minutes, alpha) for minutes in BUDGETS) if spread and known else (),
        needs=tuple(needs(pilot, spread, change, alpha) for change in CHANGES) if spread and known else (),
    )


def _minutes(pilot: Pilot, launches: int) -> float:
    """How long an `ab` of so many launches a side takes, by a pilot that tells."""
    assert pilot.first_s is not None
    assert pilot.pair_s is not None
    return (pilot.first_s + launches * pilot.pair_s) / 60


def launches_in(pilot: Pilot, minutes: float) -> int:
    """How many launches a side an `ab` of that time has, MOST_LAUNCHES at most."""
    return bisect_right(range(1, MOST_LAUNCHES + 1), minutes, key=lambda launches: _minutes(pilot, launches))


def seen(pilot: Pilot, spread: Spread, minutes: float, alpha: float = ALPHA) -> Seen:
    """What an `ab` of that time shows."""
    n, cases = launches_in(pilot, minutes), len(pilot.cases)
    if n < FEWEST_LAUNCHES:
        return Seen(minutes, None, None, None, None, None, None)
    low, change, high = (
        least_change(spread.typical * off, n, cases, alpha) for off in (1 / spread.off, 1.0, spread.off)
    )
    return Seen(
        minutes=minutes,
        launches=n,
        change=change,
        low=low,
        high=high,
        half_width=half_width(spread.typical, n),
        tolerance=least_tolerance(*in_turns(spread, n)),
        sure=sure(cases, pilot.pairs, n, spread.alike),
    )


def needs(pilot: Pilot, spread: Spread, change: float, alpha: float = ALPHA) -> Needs:
    """How long an `ab` needs for that change."""
    cases = len(pilot.cases)

    def fewest(off: float) -> int | None:
        return _fewest(lambda n: least_change(spread.typical * off, n, cases, alpha) <= change)

    low, launches, high = (fewest(off) for off in (1 / spread.off, 1.0, spread.off))
    gate = _fewest(
        lambda n: (
            passes(*in_turns(spread, n), change) >= POWER
            and least_change(spread.typical, n, cases, alpha) <= 2 * change
        )
    )
    low_s, minutes, high_s, gate_s = (n and _minutes(pilot, n) for n in (low, launches, high, gate))
    return Needs(change, launches, minutes, low_s, high_s, gate, gate_s)


def _fewest(enough: Callable[[int], bool]) -> int | None:
    """The fewest launches a side that are enough, as more of them are too; None beyond MOST_LAUNCHES."""
    if not enough(MOST_LAUNCHES):
        return None
    return bisect_left(range(MOST_LAUNCHES + 1), True, lo=FEWEST_LAUNCHES, key=enough)


def against_baseline(base: SessionData) -> AgainstBaseline:
    """What a gate against this session can pass. Raises UsageError where it has too few launches for one."""
    between, sessions = between_sessions(base, base, base.by_case)
    logs = {case: logs_of(own) for case, own in base.by_case.items()}
    tests = judge({case: (own, own) for case, own in logs.items()}, paired=False, between=between)
    if not tests:
        raise UsageError(
            f"{base.session.name} of {base.results.path} has no case of {FEWEST_LAUNCHES} launches, so no gate judges "
            "against it; measure a baseline with more"
        )
    now = np.array([(test.error, test.df) for test in tests.values()]).T
    beyond = np.array([(math.sqrt(2 * between[case].variance), min(between[case].df, MANY)) for case in tests]).T
    return AgainstBaseline(
        session=base.session.name,
        sessions=sessions,
        cases=len(tests),
        measured=sum(between[case].sessions > 0 for case in tests),
        allowance=ALLOWANCE,
        launches=min(len(logs[case]) for case in tests),
        tolerance=least_tolerance(*now),
        least=least_tolerance(*beyond),
    )
