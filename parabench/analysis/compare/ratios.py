"""The numbers of launches by which sides are compared, and their ratios with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from parabench.analysis.energy import COUNTER
from parabench.analysis.numbers import Launches, by_case, launch_ids, of_pair
from parabench.analysis.session import SessionData
from parabench.analysis.stats.geometric import Mean, averaged, geometric_mean
from parabench.analysis.stats.ttest import FEWEST_LAUNCHES, Between, Numbers, TTest, factor, judge, logs_of
from parabench.analysis.text import format
from parabench.store.record import GB


@dataclass(frozen=True)
class Known:
    """Numbers of launches by case (`numbers.by_case`), and the reason for each case that has none.

    `cases` are the numbers of whole cases, if these are more than a mean of their launches.
    """

    by_case: Mapping[str, pd.Series[float]]
    why: dict[str, str]
    cases: Mapping[str, float] = field(default_factory=dict)


def step_times(side: SessionData) -> Known:
    """Return step times in seconds."""
    status = side.cases_by_id.loc[~side.cases_by_id.index.isin(list(side.by_case)), "status"]
    why = {str(case): f"its launches ended {how}" for case, how in status.items()}
    return Known(side.by_case, why, side.step_times)


def tokens_per_gb(side: SessionData) -> Known:
    """Return tokens/s (samples/s without sequences) per GB of peak memory of the largest rank."""
    good = side.counted
    value = good["tokens_per_s"] / (good["peak_memory_bytes"] / GB)
    return _known(side, good.assign(value=value, reason="peak memory was not recorded"))


def tokens_per_joule(side: SessionData) -> Known:
    """Return tokens (samples without sequences) per joule of all devices in the measured steps."""
    good = side.counted
    # Numbers of two kinds are not mixed: those of a case are from one source.
    counter = good["joules_source"] == COUNTER
    joules = good["joules_per_step"].where(counter | ~counter.groupby(good["case"]).transform("any"))
    return _known(
        side, good.assign(value=good["global_batch"] * good["seq_len"] / joules, reason=good["joules_reason"])
    )


def _known(side: SessionData, good: pd.DataFrame) -> Known:
    """Return what is known of a `value`, with the `reason` for launches without one."""
    unknown = good[good["value"].isna() & (good["reason"] != "")].drop_duplicates("case")
    why = dict(zip(unknown["case"], unknown["reason"], strict=True)) | step_times(side).why
    return Known(by_case(good[good["value"] > 0], "value"), why)


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
    logs = {pair: (logs_of(own[0]), logs_of(own[1])) for pair, own in sides.items()}
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
    """Return the launches of each pair of cases; if they are paired, those of the repetitions that both have."""
    return {pair: of_pair(pair, base.by_case, candidate.by_case, paired) for pair in pairs}


def mean_ratio(
    launches: Mapping[Pair, Launches],
    paired: bool,
    reason: str = "",
    between: Callable[[Sequence[Pair]], Between] | None = None,
) -> Mean:
    """Return the geometric mean over pairs of launches.

    `reason` is why other pairs have no number. `between` returns the variance between sessions of means over pairs.
    """
    logs = {pair: _logs(own, paired) for pair, own in launches.items()}
    judged, enough = averaged(logs)
    return geometric_mean(list(logs.values()), reason, between(judged) if between and enough else None)


def _logs(own: Launches, paired: bool) -> tuple[pd.Series[float], ...]:
    """Return the logarithms of both sides; or, if launches are paired, of their ratios."""
    first, other = (pd.Series(logs_of(each), each.index) for each in own)
    return (pd.Series(other.to_numpy() - first.to_numpy(), first.index),) if paired else (first, other)


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
        base_launches=launch_ids(own[0]),
        candidate_launches=launch_ids(own[1]),
    )
