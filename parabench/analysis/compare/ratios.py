"""The numbers of launches by which sides are compared, and their ratios with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from parabench.analysis.case_launches import NO_LAUNCHES, CaseLaunches, Launches, by_case, in_turns
from parabench.analysis.efficiency import COUNTER, launch_joules
from parabench.analysis.session import SessionData
from parabench.analysis.stats.geometric import Logs, Mean, averaged, geometric_mean
from parabench.analysis.stats.ttest import FEWEST_LAUNCHES, Between, Numbers, TTest, factor, judge
from parabench.analysis.text import format
from parabench.store.record import GB


@dataclass(frozen=True)
class Known:
    """A number of launches, of each case that has some; where a case has none, why. `cases` are the cases' own numbers
    in their session where those are more than a mean of their launches."""

    by_case: Mapping[str, CaseLaunches]
    why: dict[str, str]
    cases: Mapping[str, float] = field(default_factory=dict)


def step_times(side: SessionData) -> Known:
    """Step time, s."""
    status = side.cases_by_id.loc[~side.cases_by_id.index.isin(list(side.by_case)), "status"]
    why = {str(case): f"its launches ended {said}" for case, said in status.items()}
    return Known(side.by_case, why, side.step_times)


def tokens_per_gb(side: SessionData) -> Known:
    """Tokens/s (samples/s without sequences) per GB of peak memory of the largest rank."""
    good = side.counted
    per_gb = good["tokens_per_s"] / (good["peak_memory_bytes"] / GB)
    found = good[["launch_id", "case", "repetition"]].assign(value=per_gb)
    why = step_times(side).why | _none(found, "peak memory was not recorded")
    return Known(by_case(found[found["value"] > 0], "value"), why)


def _none(launches: pd.DataFrame, reason: str) -> dict[str, str]:
    there = set(launches.loc[launches["value"] > 0, "case"])
    return {str(case): reason for case in launches["case"].unique() if case not in there}


def tokens_per_joule(side: SessionData) -> Known:
    """Tokens (samples without sequences) per joule of all devices in the measured steps."""
    energies = side.once(launch_joules)
    good = side.counted
    keys = good["launch_id"]
    # Numbers of two kinds are not mixed: a case's are of one source.
    counted = {case for case, key in zip(good["case"], keys, strict=True) if energies[key][1] == COUNTER}
    joules = [
        energies[key][0] if case not in counted or energies[key][1] == COUNTER else np.nan
        for case, key in zip(good["case"], keys, strict=True)
    ]
    tokens = good["global_batch"] * good["seq_len"]
    found = good[["launch_id", "case", "repetition"]].assign(value=tokens / pd.Series(joules, good.index, dtype=float))
    why = step_times(side).why
    for case, key in zip(good["case"], keys, strict=True):
        if not format.known(energies[key][0]):
            why.setdefault(str(case), energies[key][1])
    return Known(by_case(found[found["value"] > 0], "value"), why)


# Case ids: of base, and of candidate.
Pair = tuple[str, str]


@dataclass(frozen=True)
class Ratio:
    """One number of a case on both sides, and candidate / base with its 95 % interval.

    `base` and `candidate` are geometric means over launches; of a step the step time that the case has in its session.
    The ratio is of the launches that are compared: where one has no partner, it is not the ratio of these two.
    `reason` says why a number or the interval is unknown. The launches are ids in table `launch` of each side's store.
    """

    base: float | None
    candidate: float | None
    ratio: float | None
    low: float | None
    high: float | None
    reason: str
    base_launches: tuple[int, ...]
    candidate_launches: tuple[int, ...]


@dataclass(frozen=True)
class Ratios:
    """The ratio of each pair of cases, their geometric mean, and the tests of those with launches enough."""

    of: dict[Pair, Ratio]
    mean: Mean
    tests: dict[Pair, TTest]


def ratios(
    pairs: Sequence[Pair],
    base: Known,
    candidate: Known,
    *,
    paired: bool = False,
    names: tuple[str, str] = ("base", "candidate"),
    tests: dict[Pair, TTest] | None = None,
) -> Ratios:
    """Compare the (base, candidate) pairs of case ids. `paired`: the launches of both sides took turns, and are
    compared block by block. `names` are what the reasons call the sides. `tests` are the pairs', where a rule has made
    them already; else they are of the launches alone."""
    sides = launches_of(pairs, base, candidate, paired)
    logs = {pair: (own[0].logs.value, own[1].logs.value) for pair, own in sides.items()}
    tests = judge(logs, paired=paired) if tests is None else tests
    found = {
        pair: _ratio(
            logs[pair],
            (base.cases.get(pair[0]), candidate.cases.get(pair[1])),
            tests.get(pair),
            _reason(pair, base, candidate, names),
            own,
        )
        for pair, own in sides.items()
    }
    reasons = [ratio.reason for ratio in found.values() if ratio.ratio is None]
    return Ratios(found, mean_ratio(sides, paired, format.listed(dict.fromkeys(reasons), most=2)), tests)


def launches_of(pairs: Sequence[Pair], base: Known, candidate: Known, paired: bool) -> dict[Pair, Launches]:
    """Each pair's launches, by block; where both sides took turns, those of the blocks that both have."""
    found = {
        pair: (base.by_case.get(pair[0], NO_LAUNCHES), candidate.by_case.get(pair[1], NO_LAUNCHES)) for pair in pairs
    }
    return {pair: in_turns(own) for pair, own in found.items()} if paired else found


def mean_ratio(
    launches: Mapping[Pair, Launches],
    paired: bool,
    reason: str = "",
    between: Callable[[Sequence[Pair]], Between] | None = None,
) -> Mean:
    """The geometric mean over pairs of what `launches_of` found; `reason` is why those without a number have none.
    `between` tells what two sessions' means over some of the pairs differ by themselves."""
    logs = {pair: _by_block(own, paired) for pair, own in launches.items()}
    judged, enough = averaged(logs)
    return geometric_mean(list(logs.values()), reason, between(judged) if between and enough else None)


def _by_block(own: Launches, paired: bool) -> tuple[Logs, ...]:
    """One case as the geometric mean takes it: both sides, or of launches that took turns their differences."""
    first, other = own[0].logs, own[1].logs
    return (Logs(first.block, other.value - first.value),) if paired else (first, other)


def _reason(pair: Pair, base: Known, candidate: Known, names: tuple[str, str]) -> str:
    """Why a number is unknown on one of the sides, or on both."""
    why = [base.why.get(pair[0]), candidate.why.get(pair[1])]
    if why[0] == why[1]:
        return why[0] or ""
    return " and ".join(f"on {name}, {said}" for name, said in zip(names, why, strict=True) if said)


def _ratio(
    logs: tuple[Numbers, Numbers],
    numbers: tuple[float | None, float | None],
    test: TTest | None,
    reason: str,
    own: Launches,
) -> Ratio:
    """`numbers` are the case's own in each session, where they are known apart from its launches."""
    means = [math.exp(side.mean()) if len(side) else None for side in logs]
    ratio = means[1] / means[0] if means[0] and means[1] else None
    if ratio is not None:
        reason = ""
    if ratio is not None and test is None:
        reason = f"an interval needs {FEWEST_LAUNCHES} launches per side; there are {len(logs[0])} and {len(logs[1])}"
    return Ratio(
        base=numbers[0] or means[0],
        candidate=numbers[1] or means[1],
        ratio=ratio,
        low=factor(test.low) if test else None,
        high=factor(test.high) if test else None,
        reason=reason,
        base_launches=own[0].ids,
        candidate_launches=own[1].ids,
    )
