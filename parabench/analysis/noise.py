"""Predict the slowdown that `ab` can detect on a machine in a given time, from pairs of launches of equal sides.

The noise of one pair of launches (its standard deviation on the log scale) and the time of a pair decide what a gate
needs. A pilot measures both. Its standard deviation is uncertain: for one configuration, its 90% interval is a factor
of 1.5 either way with 11 pairs, and 1.9 with 5.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri, polygamma, psi, stdtrit

from parabench.analysis.compare.between import ALLOWANCE, FEWEST_SESSIONS, between_sessions
from parabench.analysis.compare.cases import ALPHA
from parabench.analysis.compare.sides import side_of
from parabench.analysis.numbers import LAUNCH_NUMBERS, of_pair
from parabench.analysis.session import SessionData, select_session, select_sessions, split
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
from parabench.analysis.text import format
from parabench.errors import UsageError
from parabench.store.results import Results, load, records

# The version of the JSON: higher if a field was removed or changed its meaning.
SCHEMA = 1
# The answer covers these minutes of an `ab`, and these slowdowns.
BUDGETS = (1.0, 3.0, 5.0, 12.0, 30.0)
CHANGES = (0.1, 0.05, 0.02, 0.01)
# The budgets and the tolerance of the first sentence.
SHORT, LONG, TOLERANCE = 3.0, 12.0, 0.02
# An answer should be right within this factor, in INTERVAL of runs. The pilot's own error may be KNOWN_WITHIN of it,
# because the interval of the predicted run varies, too. FEWEST_PAIRS is the minimum for any number of configurations
# (`python -m benchmarks.noise_trials simulated`).
RIGHT_WITHIN, KNOWN_WITHIN, FEWEST_PAIRS = 1.5, 1.3, 8
INTERVAL = 0.9
# The variance of the difference between a pilot's log variance and that of later launches, relative to normal noise at
# a constant level: 1 to 2 on two busy cores, 1.3 to 2.3 in simulations with tails and a wandering level.
RESTLESS = 2.0
# Degrees of freedom that stand for a known variance.
MANY = 1e6


@dataclass(frozen=True)
class Pilot:
    """A measured pilot.

    `differences` has the shape (configurations, pairs): log(b / a) of each pair of launches that all configurations
    have. `begun_s` is the start of each pair and `ended_s` the end of the session, in seconds after its start. `rounds`
    is None if whole launches alternate. `left_out` are configurations without a pair.
    """

    suite: str
    rounds: int | None
    cases: tuple[str, ...]
    differences: Numbers
    begun_s: Numbers
    ended_s: float | None = None
    left_out: tuple[str, ...] = ()

    @property
    def pairs(self) -> int:
        """The number of pairs."""
        return len(self.begun_s)

    @property
    def first_s(self) -> float | None:
        """The time before the first pair; 0 if the clock was set back."""
        return max(0.0, float(self.begun_s[0])) if self.pairs else None

    @property
    def pair_s(self) -> float | None:
        """The median time from the start of a pair to the next; for one pair, to the end of the session."""
        if self.pairs == 1 and self.ended_s is not None:
            return max(0.0, self.ended_s - float(self.begun_s[0]))
        return max(0.0, float(np.median(np.diff(self.begun_s)))) if self.pairs > 1 else None

    def minutes(self, launches: int) -> float:
        """Return the time of an `ab` with so many launches per side."""
        assert self.first_s is not None
        assert self.pair_s is not None
        return (self.first_s + launches * self.pair_s) / 60

    def launches_in(self, minutes: float) -> int:
        """Return the launches per side that fit, MOST_LAUNCHES at most."""
        return bisect_right(range(1, MOST_LAUNCHES + 1), minutes, key=self.minutes)


def pilot_of(base: SessionData, candidate: SessionData) -> Pilot:
    """Return the pilot of two sides of an `ab`. They need not be equal, because a difference is not noise."""
    cases = [case for case in base.cases_by_id.index if case in candidate.cases_by_id.index]
    sides = {case: of_pair((case, case), base.by_case, candidate.by_case, paired=True) for case in cases}
    found = {
        case: pd.Series(logs_of(new) - logs_of(old), old.index.get_level_values("repetition"))
        for case, (old, new) in sides.items()
        if len(old)
    }
    common = pd.DataFrame(found).dropna()
    start = np.datetime64(base.session.started_utc.rstrip("Z"), "ms")

    def seconds(utc: str) -> float:
        return float((np.datetime64(utc.rstrip("Z"), "ms") - start) / np.timedelta64(1, "s"))

    begun = [side.numbers.groupby("repetition")["started_utc"].min() for side in (base, candidate)]
    return Pilot(
        suite=base.session.suite,
        rounds=base.session.plan["protocol"].get("rounds") or None,
        cases=tuple(base.labels[case] for case in found),
        differences=common.to_numpy(dtype=float).T.reshape(len(found), len(common)),
        begun_s=np.array([min(seconds(side[block]) for side in begun) for block in common.index], dtype=float),
        ended_s=seconds(base.session.finished_utc) if base.session.finished_utc is not None else None,
        left_out=tuple(base.labels[case] for case in cases if case not in found),
    )


def read_pilot(store: str) -> Pilot:
    """Return the pilot of the newest `ab` in a results database, or of STORE@SESSION. Raises UsageError."""
    path, session = split(store)
    return pilot_of(*sides_of_ab(load(path, LAUNCH_NUMBERS), session))


def sides_of_ab(results: Results, session: str | int | None = None) -> tuple[SessionData, SessionData]:
    """Return both sides of an `ab`: of the named session, else of the newest. Raises UsageError if there is none."""
    every = [row["id"] for row in records(results.listed, ("id",))]
    if session is None:
        found = [each for each in select_sessions(results, every) if each.interleaved]
        if not found:
            raise UsageError(f"{results.path} holds no sides that took turns; measure some with `parabench noise`")
        own = found[-1]
    else:
        own = select_session(results, session)
        found = select_sessions(results, every) if own.interleaved else []
    run = own.interleaved.get("run")
    both = {each.interleaved["side"]: each.id for each in found if each.interleaved.get("run") == run}
    if set(both) != {"a", "b"}:
        raise UsageError(
            f"{own.name} of {results.path} is no side of an ab that has two; name one of those that `parabench ab` or "
            "`parabench noise` measured"
        )
    return side_of(results, both["a"], "base"), side_of(results, both["b"], "candidate")


@dataclass(frozen=True)
class Spread:
    """The standard deviation of one pair's log-ratio.

    `typical` is the geometric mean over configurations, right within a factor `off` in INTERVAL of pilots. `own` is
    that of each configuration, shrunk to the typical one as far as the pairs do not distinguish them. `alike` is the
    variance of the typical one, relative to independent configurations.
    """

    typical: float
    off: float
    own: Numbers
    alike: float


def spread_of(differences: Numbers) -> Spread | None:
    """Return the spread of `differences` of shape (configurations, pairs); None for fewer than two pairs.

    The logarithm of a sample variance with f degrees of freedom is biased by psi(f/2) - log(f/2) and has the variance
    psi'(f/2). Shrinkage as in G. K. Smyth, "Linear models and empirical Bayes methods", Statistical Applications in
    Genetics and Molecular Biology 3, 2004.
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
    own = np.exp(typical + (logs - typical) * beyond / (beyond + error))
    return Spread(math.exp(typical), _factor(_error(cases, pairs, alike)), own, alike)


def _factor(error: float) -> float:
    """Return the factor either way by which a logarithm with that standard error is uncertain."""
    deviates: float = ndtri((1 + INTERVAL) / 2)
    return math.exp(deviates * error)


def _error(cases: int, pairs: int, alike: float) -> float:
    """Return the standard error of the logarithm of the typical standard deviation."""
    error: float = math.sqrt(alike * polygamma(1, (pairs - 1) / 2) / 4 / cases)
    return error


def _alike(differences: Numbers) -> float:
    """Return `alike` of `Spread`: log variances correlate by the square of the correlation of the differences, of which
    1 / (pairs - 1) is by chance."""
    cases, pairs = differences.shape
    if cases < 2 or pairs <= FEWEST_LAUNCHES:
        return float(cases)
    apart = differences - differences.mean(axis=1, keepdims=True)
    apart /= np.maximum(np.sqrt((apart**2).sum(axis=1, keepdims=True)), LEAST_SD)
    squares = (apart @ apart.T) ** 2
    mean = (float(squares.sum()) - float(np.trace(squares))) / (cases * (cases - 1))
    by_chance = 1 / (pairs - 1)
    return float(1 + (cases - 1) * max(0.0, (mean - by_chance) / (1 - by_chance)))


def pairs_needed(cases: int, alike: float) -> int:
    """Return the number of pairs with which the typical spread is known within KNOWN_WITHIN."""
    return next(n for n in range(FEWEST_PAIRS, MOST_LAUNCHES) if _factor(_error(cases, n, alike)) <= KNOWN_WITHIN)


def sure(cases: int, pairs: int, launches: int, alike: float) -> bool:
    """Return whether a pilot of so many pairs should predict the interval of a run of `launches` within RIGHT_WITHIN,
    in INTERVAL of runs, if the noise stays as it was."""
    both = math.hypot(*(_error(cases, each, alike) for each in (pairs, launches)))
    return _factor(math.sqrt(RESTLESS) * both) <= RIGHT_WITHIN


def least_change(sd: float, launches: int, cases: int, alpha: float = ALPHA) -> float:
    """Return the smallest slowdown of one configuration that is called a regression in POWER of runs, as a fraction.

    Holm's method tests the slowest configuration at alpha / cases.
    """
    errors = float(errors_shown(np.array([launches - 1.0]), 1 - alpha / cases, POWER)[0])
    return math.expm1(min(50.0, errors * sd / math.sqrt(launches)))


def half_width(sd: float, launches: int) -> float:
    """Return the typical half-width of the 95% interval of a ratio from so many pairs, as a fraction."""
    half = (launches - 1) / 2
    told = math.exp((float(psi(half)) - math.log(half)) / 2)
    return math.expm1(float(stdtrit(launches - 1, (1 + CONFIDENCE) / 2)) * told * sd / math.sqrt(launches))


def passes(errors: Numbers, df: Numbers, tolerance: float) -> float:
    """Return the least probability that a gate of equal sides passes, by the standard errors of all configurations."""
    return 1 - float((1 - shown(math.log1p(tolerance) / errors, df)).sum())


def least_tolerance(errors: Numbers, df: Numbers) -> float:
    """Return the smallest tolerance with which such a gate passes in POWER of runs."""
    low, high = 0.0, 1.0
    while passes(errors, df, high) < POWER and high < 1e6:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if passes(errors, df, middle) >= POWER else (middle, high)
    return high


def in_turns(spread: Spread, launches: int) -> tuple[Numbers, Numbers]:
    """Return the standard error and degrees of freedom of the difference of each configuration in so many pairs."""
    errors: Numbers = spread.own / math.sqrt(launches)
    return errors, np.full(len(errors), launches - 1.0)


@dataclass(frozen=True)
class Seen:
    """What an `ab` of `minutes` with `launches` per side detects; None if there is no time for two.

    `change` is the smallest slowdown of a typical configuration that is called a regression in POWER of runs, with a
    tolerance of half of it; `low` and `high` are its interval. `half_width` is that of the 95% interval of a typical
    configuration. `tolerance` is the smallest with which a gate of equal sides passes in POWER of runs. `sure`: the
    half-width is right within RIGHT_WITHIN in INTERVAL of runs.
    """

    minutes: float
    launches: int | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    half_width: float | None = None
    tolerance: float | None = None
    sure: bool = False


@dataclass(frozen=True)
class Needs:
    """The launches per side and minutes that an `ab` needs to detect a slowdown of `change`, and those that its gate
    needs to pass with this tolerance and to detect twice as much; None beyond MOST_LAUNCHES."""

    change: float
    launches: int | None
    minutes: float | None
    low_minutes: float | None
    high_minutes: float | None
    gate_launches: int | None
    gate_minutes: float | None


@dataclass(frozen=True)
class AgainstBaseline:
    """A gate of a new session against a stored one, whose error contains the variation between sessions.

    `tolerance` is the smallest with which it passes in POWER of runs without a change, in all `cases`, with `launches`
    per side as the stored session has; `least` is the limit for any number of launches. `measured` configurations have
    the variance of `sessions`; the others have the `allowance`, a standard deviation of a session's log time.
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
    """The answer, and the JSON of `parabench noise` (docs/how-to/ci.md).

    `sd` is the standard deviation of a pair of launches of a typical configuration, as a fraction, with its interval;
    None for fewer than two pairs. `seen` and `needs` are empty for fewer than `pairs_needed`.
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
    sd: float | None = None
    sd_low: float | None = None
    sd_high: float | None = None
    noisiest: str | None = None
    noisiest_sd: float | None = None
    seen: tuple[Seen, ...] = ()
    needs: tuple[Needs, ...] = ()
    baseline: AgainstBaseline | None = None

    @property
    def exit_code(self) -> int:
        """0, or 3 if the pilot is too short."""
        return 0 if self.seen else 3


def sensitivity(pilot: Pilot, alpha: float = ALPHA, baseline: AgainstBaseline | None = None) -> Sensitivity:
    """Return what `ab` detects on the machine of a pilot."""
    spread, cases = spread_of(pilot.differences), len(pilot.cases)
    # Two pairs or fewer do not show whether configurations vary together.
    alike = spread.alike if spread and pilot.pairs > FEWEST_LAUNCHES else 1.0
    needed = pairs_needed(cases, alike) if cases else FEWEST_PAIRS
    known: dict[str, Any] = {}
    if spread is not None:
        at = int(np.argmax(spread.own))
        sds = (spread.typical * off for off in (1, 1 / spread.off, spread.off))
        known = dict(zip(("sd", "sd_low", "sd_high"), map(math.expm1, sds), strict=True))
        known |= {"noisiest": pilot.cases[at], "noisiest_sd": math.expm1(float(spread.own[at]))}
        if pilot.pairs >= needed:
            known["seen"] = tuple(_seen(pilot, spread, minutes, alpha) for minutes in BUDGETS)
            known["needs"] = tuple(_needs(pilot, spread, change, alpha) for change in CHANGES)
    return Sensitivity(
        suite=pilot.suite,
        rounds=pilot.rounds,
        cases=cases,
        left_out=pilot.left_out,
        pairs=pilot.pairs,
        pairs_needed=needed,
        minutes_needed=pilot.minutes(needed) if pilot.pair_s is not None else None,
        first_s=pilot.first_s,
        pair_s=pilot.pair_s,
        baseline=baseline,
        **known,
    )


def _seen(pilot: Pilot, spread: Spread, minutes: float, alpha: float) -> Seen:
    n, cases = pilot.launches_in(minutes), len(pilot.cases)
    if n < FEWEST_LAUNCHES:
        return Seen(minutes)
    low, change, high = (
        least_change(spread.typical * off, n, cases, alpha) for off in (1 / spread.off, 1.0, spread.off)
    )
    tolerance = least_tolerance(*in_turns(spread, n))
    is_sure = sure(cases, pilot.pairs, n, spread.alike)
    return Seen(minutes, n, change, low, high, half_width(spread.typical, n), tolerance, is_sure)


def _needs(pilot: Pilot, spread: Spread, change: float, alpha: float) -> Needs:
    cases = len(pilot.cases)

    def fewest(enough: Callable[[int], bool]) -> int | None:
        """Return the fewest launches per side that are enough; None beyond MOST_LAUNCHES."""
        if not enough(MOST_LAUNCHES):
            return None
        return bisect_left(range(MOST_LAUNCHES + 1), True, lo=FEWEST_LAUNCHES, key=enough)

    def detects(of: float, off: float = 1.0) -> Callable[[int], bool]:
        return lambda n: least_change(spread.typical * off, n, cases, alpha) <= of

    low, launches, high = (fewest(detects(change, off)) for off in (1 / spread.off, 1, spread.off))
    gate = fewest(lambda n: passes(*in_turns(spread, n), change) >= POWER and detects(2 * change)(n))
    low_s, minutes, high_s, gate_s = (n and pilot.minutes(n) for n in (low, launches, high, gate))
    return Needs(change, launches, minutes, low_s, high_s, gate, gate_s)


def against_baseline(base: SessionData) -> AgainstBaseline:
    """Return what a gate against this session can pass. Raises UsageError if it has too few launches."""
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


def lines(of: Sensitivity) -> Iterator[str]:
    """Yield the answer in a sentence, its basis, and its tables."""
    if not of.seen:
        yield _too_short(of)
        if of.sd is not None:
            yield _basis(of)
        if of.baseline is not None:
            yield _baseline(of)
        return
    yield _sentence(of)
    yield _basis(of)
    yield from format.aligned(
        [("minutes", "--launches", "sees", "interval", "passes"), *map(_by_time, of.seen)], texts=0
    )
    head = ("change", "to see it", "--launches", "to pass with it", "--launches")
    yield from format.aligned([head, *map(_by_change, of.needs)], texts=0)
    yield (
        f"sees: the smallest slowdown of a typical case that is called a regression in {format.percent(POWER)} of runs "
        "(with a tolerance of half of it); passes: the smallest tolerance with which equal sides pass as often."
    )
    if any(each.launches and not each.sure for each in of.seen):
        yield (
            f"?: the interval of such a run may be off by more than a factor of {RIGHT_WITHIN:g}; of more cases or "
            "launches it varies less."
        )
    yield _baseline(of)


def to_dict(of: Sensitivity) -> dict[str, Any]:
    """Return the answer as JSON can hold it (docs/reference/json.md); unknown is null."""
    return {"schema": SCHEMA, "sentence": _sentence(of) if of.seen else _too_short(of), **asdict(of)}


def _sentence(of: Sensitivity) -> str:
    """Return 'Here `ab` of quick sees 2.1 % in 3 minutes, 1.0 % in 12; its gate needs 4 minutes for 2 %.'"""
    told = [each for each in of.seen if each.minutes in (SHORT, LONG) and each.change]
    sees = ", ".join(
        f"{format.percent(each.change)} in {each.minutes:g}{' minutes' if not at else ''}"
        for at, each in enumerate(told)
    )
    least = f"Here `ab` of {of.suite} sees {sees}" if told else f"Here {LONG:g} minutes are too short for an `ab`"
    gate = next(each for each in of.needs if each.change == TOLERANCE)
    name = format.percent(gate.change)
    if gate.gate_minutes is None:
        return f"{least}; no gate of up to {MOST_LAUNCHES} launches passes {name}."
    return f"{least}; its gate needs {_minutes(gate.gate_minutes)} for {name}."


def _too_short(of: Sensitivity) -> str:
    if not of.cases:
        return "The pilot tells nothing: no case succeeded on both sides; look at the report of a `parabench run`."
    least = "at least " if of.pairs < of.pairs_needed / 2 else ""  # the correlation of configurations is uncertain
    needs = f"an answer that is right within a factor of {RIGHT_WITHIN:g} needs {least}{of.pairs_needed}"
    more = "" if of.minutes_needed is None else f": give --minutes {_rounded_up(of.minutes_needed)}"
    return f"The pilot is too short to say: it has {format.count(of.pairs, 'pair')} of launches, and {needs}{more}."


def _basis(of: Sensitivity) -> str:
    rounds = f" of {format.count(of.rounds, 'round')}" if of.rounds else ""
    said = (
        f"{format.count(of.pairs, 'pair')} of launches{rounds}, {format.count(of.cases, 'case')}: of a typical one "
        f"pairs of equal sides differ by {format.percent(of.sd)} (standard deviation; {format.percent(INTERVAL)}: "
        f"{_between(of.sd_low, of.sd_high)})"
    )
    if of.cases > 1:
        said += f", of {of.noisiest} by {format.percent(of.noisiest_sd)}"
    took = f"a pair took {format.duration(of.pair_s or 0.0)}, all before the first {format.duration(of.first_s or 0.0)}"
    left = f"; left out: {format.listed(of.left_out, most=3)}" if of.left_out else ""
    return f"{said}; {took}{left}."


def _baseline(of: Sensitivity) -> str:
    gate = of.baseline
    if gate is None:
        return (
            "All this is of sides that take turns. Against a stored baseline sessions differ by themselves: --baseline "
            "STORE tells what its sessions allow."
        )
    if gate.measured == gate.cases:
        rests = f"its {format.count(gate.sessions, 'session')} tell how sessions differ"
    else:
        rests = (
            f"of {format.count(gate.sessions, 'session')}, where {FEWEST_SESSIONS} or more would tell how they differ, "
            f"so {format.percent(gate.allowance)} is assumed in {gate.cases - gate.measured} of {gate.cases} cases"
        )
    return (
        f"Against the baseline {gate.session} a gate passes with a tolerance of {format.percent(gate.tolerance)} "
        f"({format.count(gate.launches, 'launch')} a side), and with any number of launches not below "
        f"{format.percent(gate.least)}: {rests}."
    )


def _by_time(each: Seen) -> tuple[str, ...]:
    if each.launches is None:
        return (f"{each.minutes:g}", "too short", "", "", "")
    sees = f"{format.percent(each.change)} ({_between(each.low, each.high)})"
    interval = format.within(each.half_width or 0.0) + ("" if each.sure else "?")
    return f"{each.minutes:g}", str(each.launches), sees, interval, format.percent(each.tolerance)


def _by_change(each: Needs) -> tuple[str, ...]:
    sees = "" if each.minutes is None else _minutes(each.minutes)
    if sees and each.low_minutes is not None and each.high_minutes is not None:
        sees += f" ({_rounded_up(each.low_minutes)} to {_rounded_up(each.high_minutes)})"
    gate = "" if each.gate_minutes is None else _minutes(each.gate_minutes)
    launches = (str(n or f">{MOST_LAUNCHES}") for n in (each.launches, each.gate_launches))
    return (format.percent(each.change), sees, next(launches), gate, next(launches))


def _between(low: float | None, high: float | None) -> str:
    return f"{format.percent(low).removesuffix(' %')} to {format.percent(high)}"


def _minutes(minutes: float) -> str:
    return format.count(_rounded_up(minutes), "minute")


def _rounded_up(minutes: float) -> int:
    return max(1, math.ceil(minutes - 1e-9))
