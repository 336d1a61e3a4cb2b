"""Predict the smallest slowdown that `ab` can detect in some minutes, from a pilot, which is a short run of `ab`.

`Spread` is the standard deviation of the pairs of launches in a `Pilot`, and `sensitivity` makes the answer.
docs/site/keys.toml describes every column.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import nctdtrinc, ndtri, polygamma, psi, stdtrit

from parabench.analysis import format
from parabench.analysis.answer import Answer, Columns, Row, rows, tables
from parabench.analysis.compare.comparison import ALPHA
from parabench.analysis.compare.sides import side_of
from parabench.analysis.numbers import LAUNCH_NUMBERS
from parabench.analysis.session import SessionData, select_session, select_sessions, split
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.contrasts import FEWEST_LAUNCHES, LEAST_SD, MOST_LAUNCHES, POWER, Numbers, power_of
from parabench.errors import UsageError
from parabench.store.results import load

# The rows of the tables: durations of `ab` in minutes, and slowdowns. The sentence has SHOWN and TOLERANCE.
BUDGETS, SHOWN = (1.0, 3.0, 5.0, 12.0, 30.0), (3.0, 12.0)
CHANGES, TOLERANCE = (0.1, 0.05, 0.02, 0.01), 0.02
# An answer should be right within the factor RIGHT_WITHIN in INTERVAL of runs. The error of the pilot may be
# KNOWN_WITHIN, because the interval of a run varies too. The gate depends on the spread of each case, so any number of
# cases needs FEWEST_PAIRS (`python -m benchmarks.noise_trials simulated`).
RIGHT_WITHIN, KNOWN_WITHIN, FEWEST_PAIRS = 1.5, 1.3, 8
INTERVAL = 0.9
# The sampling variance of log standard deviations in later launches, relative to constant normal noise. It was 1 to 2
# on two busy cores. In simulations with heavy tails and a drifting level, it was 1.3 to 2.3 with up to four cases.
RESTLESS = 2.0
# Larger differences of logarithms are not distinguished.
MOST_DIFFERENCE = 50.0


@dataclass(frozen=True)
class Pilot:
    """The pairs of launches of two interleaved variants, to estimate their noise."""

    suite: str
    rounds: int | None  # None if whole launches alternate
    cases: tuple[str, ...]
    differences: Numbers  # log(b / a) of the pairs that all cases have, shape (cases, pairs)
    first_s: float | None  # before the first pair: the first launch of each case, and references
    pair_s: float | None  # the median time from the start of a pair to the next start, or to the end
    left_out: tuple[str, ...] = ()  # cases without any pair

    @property
    def pairs(self) -> int:
        """The number of pairs that all cases have."""
        return int(self.differences.shape[1])

    def minutes(self, launches: Any) -> Any:
        """Return the duration of an `ab` with this number of launches per variant; None if it is unknown."""
        return None if self.first_s is None or self.pair_s is None else (self.first_s + launches * self.pair_s) / 60


@dataclass(frozen=True)
class Spread:
    """The standard deviation of the log-ratio of a pair of launches."""

    typical: float  # the geometric mean over cases
    factor: float  # from `typical` to each end of its interval, with the confidence INTERVAL
    by_case: Numbers  # the value of each case, shrunk toward the typical one
    inflation: float  # the increase of the variance of log(typical) by correlation between cases, a factor

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the interval of `typical`."""
        return self.typical / self.factor, self.typical * self.factor


# The tables of the answer. `seen` has the result of an `ab` of some minutes, `needs` the launches and minutes that `ab`
# needs to detect a slowdown, and that its gate needs to pass with this tolerance. Both are empty if the pilot is short.
TABLES: dict[str, Columns] = {
    "pilot": {
        "exit_code": Literal[0, 3], "suite": str, "rounds": int | None, "cases": int, "left_out": tuple[str, ...],
        "pairs": int, "pairs_needed": int, "minutes_needed": float | None, "first_s": float | None,
        "pair_s": float | None, "sd": float | None, "sd_low": float | None, "sd_high": float | None,
        "noisiest": str | None, "noisiest_sd": float | None,
    },
    "seen": {
        "minutes": float, "launches": int | None, "change": float | None, "low": float | None, "high": float | None,
        "half_width": float | None, "tolerance": float | None, "sure": bool,
    },
    "needs": {
        "change": float, "launches": int | None, "minutes": float | None, "low_minutes": float | None,
        "high_minutes": float | None, "gate_launches": int | None, "gate_minutes": float | None,
    },
}  # fmt: skip


# ---- the pilot


def read_pilot(store: str) -> Pilot:
    """Return the pilot of the newest `ab` of a database, or of STORE@SESSION. Raises UsageError if there is none."""
    path, named = split(store)
    results = load(path, LAUNCH_NUMBERS)
    found = [each for each in select_sessions(results, results.listed["id"].tolist()) if each.interleaved]
    own = select_session(results, named) if named is not None else next(reversed(found), None)
    run = own.interleaved.get("run") if own else None
    both = {each.interleaved["side"]: each.id for each in found if each.interleaved["run"] == run}
    if set(both) != {"a", "b"}:
        name = f"{own.name} of {results.path}" if own else str(results.path)
        raise UsageError(f"{name} has no interleaved variants; name a session of `parabench ab` or `parabench noise`")
    return pilot_of(side_of(results, both["a"], "base"), side_of(results, both["b"], "candidate"))


def pilot_of(base: SessionData, candidate: SessionData) -> Pilot:
    """Return the pilot of the variants of an `ab`. They need not be equal: a constant difference adds no spread."""
    first, second = (side.timed.set_index(["repetition", "case"])["step_s"] for side in (base, candidate))
    ratios = (second / first).astype(float).transform(np.log).unstack("case")
    cases = [case for case in base.cases_by_id.index if case in candidate.cases_by_id.index]
    found = ratios.reindex(columns=cases).dropna(axis="columns", how="all")
    names = [str(case) for case in found.columns]
    common = found.dropna()
    starts = pd.concat([base.numbers, candidate.numbers]).groupby("repetition")["started_utc"].min()
    times = pd.to_datetime([*starts.loc[common.index], *filter(None, [base.session.finished_utc])], format="ISO8601")
    times_s = np.asarray((times - pd.Timestamp(base.session.started_utc)).total_seconds(), dtype=float)
    return Pilot(
        suite=base.session.suite,
        rounds=base.session.plan["protocol"].get("rounds") or None,
        cases=tuple(base.labels[case] for case in names),
        differences=common.to_numpy(dtype=float).T,
        first_s=max(0.0, float(times_s[0])) if len(common) else None,
        pair_s=max(0.0, float(np.median(np.diff(times_s)))) if len(common) and len(times_s) > 1 else None,
        left_out=tuple(base.labels[case] for case in cases if case not in names),
    )


# ---- the statistics


def spread_of(differences: Numbers) -> Spread | None:
    """Return the spread of `differences` of shape (cases, pairs); None for fewer than two pairs.

    Each case's log standard deviation is shrunk toward the mean over cases. It is shrunk more if its sampling error is
    large compared with the differences between cases (G. K. Smyth, "Linear models and empirical Bayes methods",
    Statistical Applications in Genetics and Molecular Biology 3, 2004).
    """
    cases, pairs = differences.shape
    if not cases or pairs < FEWEST_LAUNCHES:
        return None
    half = (pairs - 1) / 2
    logs = np.log(np.maximum(differences.std(axis=1, ddof=1), LEAST_SD)) - _bias(half)
    error = float(polygamma(1, half)) / 4
    beyond = max(0.0, float(logs.var(ddof=1)) - error) if cases > 1 else 0.0
    inflation, typical = _inflation(differences), float(logs.mean())
    own = np.exp(typical + (logs - typical) * beyond / (beyond + error))
    return Spread(math.exp(typical), _factor(cases, inflation, pairs), own, inflation)


def _bias(half: Any) -> Any:
    """Return E[log(s / sigma)] for a sample standard deviation s with 2 * `half` degrees of freedom."""
    return (psi(half) - np.log(half)) / 2


def _factor(cases: int, inflation: float, *pairs: int) -> float:
    """Return the factor from the typical standard deviation to the ends of its interval.

    For two numbers of pairs, it is the factor of the ratio of two typical standard deviations.
    """
    variance = sum(inflation * float(polygamma(1, (each - 1) / 2)) / 4 / cases for each in pairs)
    return math.exp(float(ndtri((1 + INTERVAL) / 2)) * math.sqrt(variance))


def _inflation(differences: Numbers) -> float:
    """Return the variance of the mean log standard deviation over cases, relative to independent cases.

    Log variances correlate by the square of the correlation of the differences, which is 1 / (pairs - 1) by chance.
    """
    cases, pairs = differences.shape
    if cases < 2 or pairs <= FEWEST_LAUNCHES:
        return float(cases)  # as if they were equal: two pairs cannot distinguish them
    apart = differences - differences.mean(axis=1, keepdims=True)
    apart /= np.maximum(np.linalg.norm(apart, axis=1, keepdims=True), LEAST_SD)
    squares = (apart @ apart.T) ** 2
    mean = (float(squares.sum()) - float(np.trace(squares))) / (cases * (cases - 1))
    by_chance = 1 / (pairs - 1)
    return float(1 + (cases - 1) * max(0.0, (mean - by_chance) / (1 - by_chance)))


def pairs_needed(cases: int, inflation: float) -> int:
    """Return the number of pairs that determines the typical spread within a factor of KNOWN_WITHIN."""
    return next(n for n in range(FEWEST_PAIRS, MOST_LAUNCHES) if _factor(cases, inflation, n) <= KNOWN_WITHIN)


def least_change(sd: float, launches: Any, cases: int) -> Any:
    """Return the smallest slowdown of one case, a fraction, that is reported as a regression in POWER of runs.

    Holm's method tests the slowest case at ALPHA / cases.
    """
    df = np.subtract(launches, 1.0)
    errors = nctdtrinc(df, 1 - POWER, stdtrit(df, 1 - ALPHA / cases))
    return np.expm1(np.minimum(MOST_DIFFERENCE, errors * sd / np.sqrt(launches)))


def half_width(sd: float, launches: int) -> float:
    """Return the typical half-width of the 95% interval of a ratio, a fraction.

    The typical standard deviation of a few pairs is smaller than the true one (`_bias`).
    """
    typical = sd * math.exp(_bias((launches - 1) / 2))
    return math.expm1(float(stdtrit(launches - 1, (1 + CONFIDENCE) / 2)) * typical / math.sqrt(launches))


def passes(sds: Numbers, launches: Any, tolerance: float) -> Any:
    """Return a lower bound of the probability that equal variants pass in all cases (Bonferroni).

    `sds` has the standard deviation of a pair of each case. The result has the shape of `launches`.
    """
    errors = np.divide.outer(sds, np.sqrt(launches))
    df = np.broadcast_to(np.subtract(launches, 1.0), errors.shape)
    return 1 - (1 - power_of(math.log1p(tolerance) / errors, df)).sum(axis=0)


def least_tolerance(sds: Numbers, launches: int) -> float:
    """Return the smallest tolerance that equal variants pass in POWER of runs."""

    def lacks(difference: float) -> float:
        return POWER - float(passes(sds, launches, math.expm1(difference)))

    return math.expm1(MOST_DIFFERENCE if lacks(MOST_DIFFERENCE) > 0 else brentq(lacks, 0.0, MOST_DIFFERENCE))


# ---- the answer


def sensitivity(pilot: Pilot) -> Answer:
    """Return the answer of `parabench noise` from a pilot."""
    spread, cases = spread_of(pilot.differences), len(pilot.cases)
    # Two pairs or fewer cannot show whether cases vary together.
    inflation = spread.inflation if spread and pilot.pairs > FEWEST_LAUNCHES else 1.0
    needed = pairs_needed(cases, inflation) if cases else FEWEST_PAIRS
    row: Row = dict.fromkeys(TABLES["pilot"]) | {
        "exit_code": 3,
        "suite": pilot.suite,
        "rounds": pilot.rounds,
        "cases": cases,
        "left_out": pilot.left_out,
        "pairs": pilot.pairs,
        "pairs_needed": needed,
        "minutes_needed": pilot.minutes(needed),
        "first_s": pilot.first_s,
        "pair_s": pilot.pair_s,
    }
    seen: list[Row] = []
    needs: list[Row] = []
    if spread is not None:
        at = int(np.argmax(spread.by_case))
        sds = dict(zip(("sd_low", "sd_high"), spread.interval, strict=True)) | {"sd": spread.typical}
        sds["noisiest_sd"] = float(spread.by_case[at])
        row |= {name: math.expm1(sd) for name, sd in sds.items()} | {"noisiest": pilot.cases[at]}
        if pilot.pairs >= needed:
            row["exit_code"] = 0
            seen, needs = _predicted(pilot, spread)
    return Answer((_sentence(row, seen, needs),), tables(TABLES, {"pilot": [row], "seen": seen, "needs": needs}))


def _predicted(pilot: Pilot, spread: Spread) -> tuple[list[Row], list[Row]]:
    """Return the rows of `seen` and `needs`. Numbers are unknown for fewer than two launches, and beyond
    MOST_LAUNCHES."""
    launches, cases = np.arange(FEWEST_LAUNCHES, MOST_LAUNCHES + 1), len(pilot.cases)
    minutes = pilot.minutes(launches)
    sds = dict(zip(("low", "high"), spread.interval, strict=True)) | {"change": spread.typical}
    changes = {name: least_change(sd, launches, cases) for name, sd in sds.items()}
    seen, needs = [], []
    for budget in BUDGETS:
        row: Row = dict.fromkeys(TABLES["seen"]) | {"minutes": budget, "sure": False}
        at = int(np.searchsorted(minutes, budget, side="right")) - 1
        if at >= 0:
            n = int(launches[at])
            # The spreads of the pilot and of the run both have an error. Later changes of the noise are unknown.
            factor = _factor(cases, RESTLESS * spread.inflation, pilot.pairs, n)
            row |= {name: float(values[at]) for name, values in changes.items()}
            row |= {"launches": n, "half_width": half_width(spread.typical, n), "sure": factor <= RIGHT_WITHIN}
            row["tolerance"] = least_tolerance(spread.by_case, n)
        seen.append(row)

    def first(enough: Any) -> tuple[int | None, float | None]:
        places = np.flatnonzero(enough)
        return (int(launches[places[0]]), float(minutes[places[0]])) if len(places) else (None, None)

    for change in CHANGES:
        (n_launches, took), (_, low), (_, high) = (first(changes[name] <= change) for name in ("change", "low", "high"))
        gate = first((passes(spread.by_case, launches, change) >= POWER) & (changes["change"] <= 2 * change))
        needs.append(dict(zip(TABLES["needs"], (change, n_launches, took, low, high, *gate), strict=True)))
    return seen, needs


def exit_code(of: Answer) -> int:
    """Return the exit code of `parabench noise`: 0, or 3 if the pilot is too short."""
    return int(of.tables["pilot"]["exit_code"].iloc[0])


# ---- text


def _sentence(pilot: Row, seen: Sequence[Row], needs: Sequence[Row]) -> str:
    """Return the sentence of the answer, or the reason why the pilot is too short.

    'Here `ab` of quick detects 2.1% in 3 minutes, 1.0% in 12 minutes; its gate needs 4 minutes for 2.0%.'
    """
    if not pilot["cases"]:
        return "The pilot has no result: nothing succeeded on both variants; look at the report of a `parabench run`."
    if not seen:
        minutes = pilot["minutes_needed"]
        more = "" if minutes is None else f": give --minutes {_rounded_up(minutes)}"
        return (
            f"The pilot is too short: it has {format.count(pilot['pairs'], 'pair')} of launches, and an answer that "
            f"is right within a factor of {RIGHT_WITHIN:g} needs about {pilot['pairs_needed']}{more}."
        )
    shown = [each for each in seen if each["minutes"] in SHOWN and each["change"]]
    found = [f"{format.percent(each['change'])} in {each['minutes']:g} minutes" for each in shown]
    gate = next(each for each in needs if each["change"] == TOLERANCE)
    time = _minutes(gate["gate_minutes"]) or f"more than {MOST_LAUNCHES} launches"
    detects = ", ".join(found) or f"nothing in {max(SHOWN):g} minutes"
    return f"Here `ab` of {pilot['suite']} detects {detects}; its gate needs {time} for {format.percent(TOLERANCE)}."


def lines(of: Answer) -> Iterator[str]:
    """Yield the answer as lines of text."""
    (pilot,), seen, needs = (rows(of.tables[name]) for name in TABLES)
    yield from of.sentences
    if pilot["sd"] is not None:
        left = f"; left out: {format.listed(pilot['left_out'], most=3)}" if pilot["left_out"] else ""
        yield (
            f"{format.count(pilot['pairs'], 'pair')} of launches of {format.count(pilot['rounds'] or 1, 'round')}, "
            f"{format.count(pilot['cases'], 'configuration')}: pairs of one differ by {format.percent(pilot['sd'])} "
            f"(standard deviation; {format.percent(INTERVAL)}: {_between(pilot['sd_low'], pilot['sd_high'])}), of "
            f"{pilot['noisiest']} by {format.percent(pilot['noisiest_sd'])}; a pair took "
            f"{format.duration(pilot['pair_s'] or 0.0)}, all before the first "
            f"{format.duration(pilot['first_s'] or 0.0)}{left}."
        )
    if not seen:
        return
    found: list[tuple[str, ...]] = [("minutes", "--launches", "detects", "interval", "passes")]
    for row in seen:
        cells = ("too short", "", "", "")
        if row["launches"] is not None:
            detects = f"{format.percent(row['change'])} ({_between(row['low'], row['high'])})"
            interval = format.within(row["half_width"]) + ("" if row["sure"] else "?")
            cells = (str(row["launches"]), detects, interval, format.percent(row["tolerance"]))
        found.append((f"{row['minutes']:g}", *cells))
    yield from format.aligned(found, texts=0)
    found = [("change", "to detect it", "--launches", "to pass with it", "--launches")]
    for row in needs:
        detects = _minutes(row["minutes"])
        if row["low_minutes"] is not None and row["high_minutes"] is not None:
            detects += f" ({_rounded_up(row['low_minutes'])} to {_rounded_up(row['high_minutes'])})"
        launches, gate = (str(row[name] or f">{MOST_LAUNCHES}") for name in ("launches", "gate_launches"))
        found.append((format.percent(row["change"]), detects, launches, _minutes(row["gate_minutes"]), gate))
    yield from format.aligned(found, texts=0)
    yield (
        f"detects: the smallest slowdown of a typical configuration that is a regression in {format.percent(POWER)} of "
        "runs (if the tolerance is half of it); passes: the smallest tolerance that equal variants pass as often; "
        f"?: the interval of such a run may be off by more than a factor of {RIGHT_WITHIN:g}."
    )
    gates = (each for each in needs[::-1] if each["gate_launches"] is not None and each["change"] >= TOLERANCE)
    if (chosen := next(gates, None)) is not None:
        yield (
            f"Options of a gate: --tolerance {100 * chosen['change']:g}% --launches {chosen['gate_launches']} "
            f"--rounds {pilot['rounds'] or 0}"
        )


def _between(low: float | None, high: float | None) -> str:
    """Return the ends of an interval in percent: '1.8 to 2.5%'."""
    return f"{format.percent(low).removesuffix('%')} to {format.percent(high)}"


def _minutes(minutes: float | None) -> str:
    """Return a duration in whole minutes, '1 minute' or '4 minutes'; empty for None."""
    return "" if minutes is None else format.count(_rounded_up(minutes), "minute")


def _rounded_up(minutes: float) -> int:
    return max(1, math.ceil(minutes - 1e-9))
