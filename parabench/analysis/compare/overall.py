"""Sides compared over all configurations of a workload, in numbers and in sentences."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.compare.between import between_means
from parabench.analysis.compare.cases import Outcome
from parabench.analysis.compare.comparison import GIVES, SHARED_WORK, STEP, Comparison
from parabench.analysis.environment.diff import differences
from parabench.analysis.numbers import of_pair, same_work
from parabench.analysis.stats.contrasts import FEWEST_LAUNCHES, Mean, geometric_mean, logs_of
from parabench.strategies import entry_of

# With this number of launches per configuration, a quiet machine detects a difference of a few percent.
ENOUGH_LAUNCHES = 5


@dataclass(frozen=True)
class Overall:
    """The sides at one workload, all relative to the first."""

    heading: str  # the difference from other workloads
    work: dict[str, Any]
    rows: tuple[int, ...]  # the places of its configurations in the comparison
    names: tuple[str, ...]
    cases: int  # the number of ranked configurations
    # For each side but the first:
    means: dict[str, tuple[Mean, ...]]  # by quantity, over common configurations
    changes: tuple[dict[Outcome, int], ...]  # the number of configurations by outcome
    lost: tuple[int, ...]  # configurations with a step time on the first side only
    mended: tuple[int, ...]  # configurations with a step time on the other side only

    @property
    def steps(self) -> tuple[Mean, ...]:
        """The mean step times."""
        return self.means[STEP]


def overall(of: Comparison) -> tuple[Overall, ...]:
    """Return one result for each workload, in the order of the configurations."""
    works = same_work(of.cases, SHARED_WORK)
    differing = [name for name in SHARED_WORK if len({str(work[name]) for work, _ in works}) > 1]
    places = range(1, len(of.sides))
    steps, found = of.of(STEP), []
    steps = steps[steps["ratio"].notna()]
    for work, cases in works:
        named = (f"{name.replace('_', ' ')} {'default' if work[name] is None else work[name]}" for name in differing)
        ranked = [entry_of(str(name)).ranked for name in cases["strategy"]]
        rows = cases.index[ranked].tolist()
        changes = (steps["outcome"][(steps["at"] == at) & steps["row"].isin(rows)] for at in places)
        found.append(
            Overall(
                heading=", ".join(named),
                work=work,
                rows=tuple(cases.index.tolist()),
                names=of.names,
                cases=len(rows),
                means={name: tuple(_mean(of, rows, at, name) for at in places) for name in (STEP, *GIVES)},
                changes=tuple(dict(Counter(own)) for own in changes),
                lost=tuple(int(of.lost(0, at)[rows].sum()) for at in places),
                mended=tuple(int(of.lost(at, 0)[rows].sum()) for at in places),
            )
        )
    return tuple(found)


def work_key(work: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the fields of a workload that are equal on all machines."""
    return tuple(None if pd.isna(work.get(name)) else work[name] for name in SHARED_WORK)


def _mean(of: Comparison, rows: Sequence[int], at: int, name: str) -> Mean:
    """Return the mean ratio of a side to the first over the configurations that both have.

    The interval of step times contains the variation between sessions, as in the gate.
    """
    own = of.of(name, at)
    own = own[own["row"].isin(rows)]
    if own.empty:
        return Mean(reason=f"no case in common with {of.names[0]}")
    base, candidate, paired = of.known[0][name], of.known[at][name], of.paired[at]
    logs, judged = [], []
    for row in own["row"]:
        pair = of.id(row, 0), of.id(row, at)
        sides = of_pair(pair, base.by_case, candidate.by_case, paired)
        old, new = (pd.Series(logs_of(side), side.index) for side in sides)
        if min(len(old), len(new)) >= FEWEST_LAUNCHES:
            judged.append(pair)
        logs.append((pd.Series(new.to_numpy() - old.to_numpy(), old.index),) if paired else (old, new))
    between = None
    if name == STEP and judged and not paired:
        between = between_means(of.first, of.sides[at], judged, of.alike[at - 1])
    unknown = dict.fromkeys(own["note"][own["ratio"].isna()])
    return geometric_mean(logs, format.listed(unknown, most=2), between)


def answers(works: Iterable[Overall]) -> list[str]:
    """Return the sentences about all workloads."""
    found = []
    for work in works:
        known = any(mean.ratio for mean in work.steps)
        own = [*sentences(work), *(given(work, name) for name in GIVES if known)]
        found += [f"{work.heading[0].upper()}{work.heading[1:]}: {own[0]}" if work.heading else own[0], *own[1:]]
    return found


def sentences(of: Overall) -> list[str]:
    """Return the faster sides, the outcomes of configurations, and those that failed on one side."""
    first, names = of.names[0], of.names[1:]
    by_ratio = sorted(zip(names, of.steps, strict=True), key=lambda side: side[1].ratio or math.inf)
    found = [_verdict(of, name, mean) for name, mean in by_ratio]
    # The variation between sessions that the intervals contain.
    between = dict.fromkeys(_between(mean) for mean in of.steps if mean.session_sd is not None)
    if between:
        text = format.joined(between)
        found.append(f"Not interleaved: the intervals contain a standard deviation between sessions of {text}.")
    changes = [
        f"{name} {', '.join(f'{each} in {own[each]:,}' for each in Outcome if each in own)}"
        for name, own in zip(names, of.changes, strict=True)
        if own
    ]
    if changes:
        found.append(f"Case by case against {first}: {'; '.join(changes)}.")
    for name, lost, mended in zip(names, of.lost, of.mended, strict=True):
        for count, there, here in ((lost, first, name), (mended, name, first)):
            if count:
                found.append(f"{format.count(count, 'case')} with a step time on {there} and none on {here}.")
    return found


def _verdict(of: Overall, name: str, mean: Mean) -> str:
    first = of.names[0]
    if mean.ratio is None:
        return f"No ranked case succeeded both on {first} and on {name}, so nothing can be compared."
    where = "overall" if mean.cases == of.cases else f"over {mean.cases:,} of {format.count(of.cases, 'case')}"
    if mean.low is None or mean.high is None:
        answer = "Significance cannot be tested with one launch per case"
    elif mean.low <= 1 <= mean.high:
        answer = f"{first} and {name} are not statistically distinguishable {where}"
    else:
        faster, slower = (name, first) if mean.ratio < 1 else (first, name)
        answer = f"{faster} is faster{f' than {slower}' if len(of.names) > 2 else ''} {where}"
    return f"{answer}: a step takes {format.times(mean.ratio)} times as long on {name} as on {first} ({over(mean)})."


def _between(mean: Mean) -> str:
    source = f"measured in {format.count(mean.sessions, 'session')}" if mean.sessions else "assumed"
    return f"{format.percent(mean.session_sd)} ({source})"


def over(mean: Mean) -> str:
    """Return 'geometric mean of 3 cases; 95%: 0.40 to 0.42'."""
    ends = "no interval" if mean.low is None else f"95%: {interval(mean.low, mean.high)}"
    return f"geometric mean of {format.count(mean.cases, 'case')}; {ends}"


def given(work: Overall, name: str) -> str:
    """Return the means of a quantity in `GIVES` relative to the first side, and why others are unknown."""
    quantity = f"{format.unit_of(work.work['seq_len'])}{'' if GIVES[name].startswith('/') else ' '}{GIVES[name]}"
    known, unknown = [], dict[str, list[str]]()
    for role, mean in zip(work.names[1:], work.means[name], strict=True):
        if mean.ratio:
            known.append(f"{format.times(mean.ratio)} times on {role} ({over(mean)})")
        else:
            unknown.setdefault(mean.reason, []).append(role)
    found = [f"Relative to {work.names[0]}, {quantity}: {format.joined(known)}."] if known else []
    start = f"{quantity[0].upper()}{quantity[1:]}"
    return " ".join([*found, *(f"{start} on {format.joined(on)}: unknown: {why}." for why, on in unknown.items())])


def interval(low: float | None, high: float | None) -> str:
    """Return '0.40 to 0.42', or a dash if the interval is unknown."""
    if low is None or high is None or pd.isna(low) or pd.isna(high):
        return "–"
    return format.times_between(low, high)


def steps(of: Comparison, works: Sequence[Overall]) -> list[tuple[str, str]]:
    """Return (reason, command) for what would add to the answer: missing launches, a verdict, interleaved sides."""
    found: list[tuple[str, Sequence[str]]] = []
    first = of.first
    for at, side in enumerate(of.sides[1:], 1):
        means = [work.steps[at - 1] for work in works if work.steps[at - 1].ratio]
        if not of.common(at):
            there, here = (first, side) if len(first.cases) else (side, first)
            why = f"measure on {here.role} the cases of {there.role}, with a separate --out"
            found.append((why, there.session.argv))
        elif not means:
            bad = first if len(side.counted) else side
            found.append((f"see how launches of {bad.role} ended", ["parabench", "report", bad.origin.at]))
        elif all(mean.low is None for mean in means):
            few = min(first, side, key=lambda each: each.counted["case"].value_counts().max())
            command = [*few.session.argv, "--launches", str(ENOUGH_LAUNCHES)] if few.session.argv else []
            found.append((f"more launches of every case on {few.role}, which give an interval", command))
        elif not of.other_hardware[at]:  # no verdict compares other hardware
            differing = () if of.paired[at] else differences(first, side)
            options = [word for each in differing if each.matters for word in ("--changed", each.name)]
            why = f"a verdict with a known false-alarm rate on {side.role} against {first.role}"
            found.append((why, ["parabench", "compare", first.origin.at, side.origin.at, *options]))
    interleaved = all(paired or other for paired, other in zip(of.paired[1:], of.other_hardware[1:], strict=True))
    if any(mean.ratio for work in works for mean in work.steps) and not interleaved:
        why = (
            "the strongest comparison: both sides take turns on one machine (OLD and NEW are folders of a checkout or "
            "of a virtual environment, or NAME=VALUE)"
        )
        found.append((why, ["parabench", "ab", first.session.suite, "--baseline", "OLD", "--candidate", "NEW"]))
    return list(dict.fromkeys((why, shlex.join(command)) for why, command in found if command))
