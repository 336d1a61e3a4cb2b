"""Which side is fastest at one workload, over all its configurations, in numbers and in sentences."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.compare.between import between_means
from parabench.analysis.compare.cases import CaseResult, Outcome
from parabench.analysis.compare.several import SHARED_WORK, Ratio, Row, Several
from parabench.analysis.compare.sides import interleaved
from parabench.analysis.environment.diff import differences
from parabench.analysis.numbers import of_pair, same_work
from parabench.analysis.session import Origin
from parabench.analysis.stats.contrasts import FEWEST_LAUNCHES, Mean, geometric_mean, logs_of
from parabench.strategies import entry_of

# What is compared besides the step time, and how a sentence names it.
GIVES = {"per_joule": "per joule", "per_gb": "/s per GB of peak memory"}
# With so many launches per configuration, a difference of a few percent shows on a quiet machine.
ENOUGH_LAUNCHES = 5


@dataclass(frozen=True)
class Overall:
    """The sides at one workload. `heading` distinguishes it from other workloads, and is empty if there is one.

    `cases` is the number of configurations that can be an answer; a baseline without communication does not count.
    `compared` are the places of sides that can be compared: the first, and all with a configuration that succeeded on
    both. `means` belong to every side but the first: its step time relative to the first's. They are over the same
    `shared` configurations for all of `compared`; if no configuration is common to all of these, `shared` is 0 and each
    mean is over the configurations in common with the first. `gives` are the means of `GIVES`.

    `best` is the fastest of the `judged`; `tied` are those of them that the 95% interval of their ratio does not
    distinguish from it. `changes` counts the outcomes by side. `lost` counts the configurations with a step time
    on the first side and none on the other, `mended` the reverse, by side.
    """

    heading: str
    work: dict[str, Any]
    names: tuple[str, ...]
    compared: tuple[int, ...]
    cases: int
    shared: int
    means: tuple[Mean, ...]
    gives: dict[str, tuple[Mean, ...]]
    best: int | None
    tied: tuple[int, ...]
    changes: tuple[dict[str, int], ...]
    lost: tuple[int, ...]
    mended: tuple[int, ...]

    @property
    def others(self) -> tuple[int, ...]:
        """Those of `compared` that are compared with the first."""
        return self.compared[1:]

    @property
    def judged(self) -> tuple[int, ...]:
        """Those of `compared` that can be tested: the first, and those whose mean has an interval."""
        return (0, *(at for at in self.others if self.means[at - 1].low is not None))


def overall(of: Several) -> tuple[Overall, ...]:
    """Return one result for each workload, in the order of the configurations."""
    works = same_work(of.cases, SHARED_WORK)
    differing = [name for name in SHARED_WORK if len({str(work[name]) for work, _ in works}) > 1]
    found = []
    for work, group in works:
        heading = ", ".join(
            f"{name.replace('_', ' ')} {'default' if work[name] is None else work[name]}" for name in differing
        )
        ranked = {str(id_) for id_, name in zip(group["case_id"], group["strategy"], strict=True)
                  if entry_of(str(name)).ranked}  # fmt: skip
        rows = [row for row, id_ in zip(of.rows, of.cases["case_id"], strict=True) if id_ in ranked]
        found.append(_overall(of, work, heading, rows))
    return tuple(found)


def work_key(work: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the fields of a workload that are equal on all machines."""
    return tuple(None if pd.isna(work.get(name)) else work[name] for name in SHARED_WORK)


def _overall(of: Several, work: dict[str, Any], heading: str, rows: Sequence[Row]) -> Overall:
    places = range(1, len(of.sides))
    fewest = {row.cases: [_launches(row, at) for at in places] for row in rows}
    compared = (0, *(at for at in places if any(each[at - 1] for each in fewest.values())))
    # An interval needs two launches; a side where no configuration has them is compared without an interval.
    needed = {at: min(FEWEST_LAUNCHES, max(each[at - 1] for each in fewest.values())) for at in compared[1:]}
    shared = [row for row in rows if needed and all(fewest[row.cases][at - 1] >= n for at, n in needed.items())]
    means = tuple(_mean(of, shared if shared and at in compared else rows, 0, at) for at in places)
    best, tied = _fastest(of, compared, means, shared)
    return Overall(
        heading=heading,
        work=work,
        names=of.names,
        compared=compared,
        cases=len(rows),
        shared=len(shared),
        means=means,
        gives={name: tuple(_mean(of, rows, 0, at, name) for at in places) for name in GIVES},
        best=best,
        tied=tied,
        changes=tuple(
            dict(Counter(str(each.outcome) for row in rows if (each := row.step_time[at - 1]) and each.ratio))
            for at in places
        ),
        lost=tuple(len(of.lost(rows, 0, at)) for at in places),
        mended=tuple(len(of.lost(rows, at, 0)) for at in places),
    )


def _launches(row: Row, at: int) -> int:
    """Return the number of launches by which a row is compared, of the side that has fewer."""
    result = row.step_time[at - 1]
    return 0 if result is None else min(len(result.base_launches), len(result.candidate_launches))


def _mean(of: Several, rows: Sequence[Row], base: int, other: int, name: str = "step_time") -> Mean:
    """Return the mean ratio of two sides over the rows that both have.

    The interval of step times contains the variation between sessions, as in the gate.
    """
    both = ((row.cases[base], row.cases[other]) for row in rows)
    pairs = [(old, new) for old, new in both if old is not None and new is not None]
    if not pairs:
        return Mean(reason=f"no case in common with {of.names[base]}")
    paired = interleaved(of.sides[base], of.sides[other])
    known = of.known[name]
    logs, judged = [], []
    for pair in pairs:
        sides = of_pair(pair, known[base].by_case, known[other].by_case, paired)
        first, second = (pd.Series(logs_of(side), side.index) for side in sides)
        if min(len(first), len(second)) >= FEWEST_LAUNCHES:
            judged.append(pair)
        logs.append((pd.Series(second.to_numpy() - first.to_numpy(), first.index),) if paired else (first, second))
    between = None
    if name == "step_time" and judged and not paired:
        between = between_means(of.sides[base], of.sides[other], judged, of.alike(base, other))
    return geometric_mean(logs, _why(rows, base, other, name), between)


def _why(rows: Sequence[Row], base: int, other: int, name: str) -> str:
    """Return why rows have no ratio to the first side."""
    if base != 0:
        return "no case succeeded on both sides"
    unknown = [each for row in rows if (each := row.ratio(name, other)) and each.ratio is None]
    reasons = [each.reason if isinstance(each, Ratio) else each.note for each in unknown]
    return format.listed(dict.fromkeys(reasons), most=2)


def _fastest(
    of: Several, compared: tuple[int, ...], means: tuple[Mean, ...], shared: Sequence[Row]
) -> tuple[int | None, tuple[int, ...]]:
    """Return the fastest side over the shared rows, and those that are not distinguished from it."""
    ratios = {0: 1.0} | {at: means[at - 1].ratio or 1.0 for at in compared[1:] if means[at - 1].low is not None}
    if not shared or len(ratios) < 2:
        return None, ()
    best = min(ratios, key=ratios.__getitem__)

    def slower(at: int) -> bool:
        if at == 0:
            high = means[best - 1].high
            return high is not None and high < 1
        low = means[at - 1].low if best == 0 else _mean(of, shared, best, at).low
        return low is not None and low > 1

    return best, tuple(at for at in ratios if at != best and not slower(at))


def sentences(of: Overall) -> list[str]:
    """Return which side is fastest, the outcomes of configurations, and those that failed on one side."""
    first = of.names[0]
    said = [_verdict(of), *_sessions(of)]
    told = [f"{of.names[at]} {_counts(of.changes[at - 1])}" for at in of.others if of.changes[at - 1]]
    if told:
        said.append(f"Case by case against {first}: {'; '.join(told)}.")
    for at, (name, lost, mended) in enumerate(zip(of.names[1:], of.lost, of.mended, strict=True), 1):
        if of.others and at not in of.compared:
            said.append(f"No case succeeded both on {first} and on {name}.")
        if lost:
            said.append(f"{format.count(lost, 'case')} with a step time on {first} and none on {name}.")
        if mended:
            said.append(f"{format.count(mended, 'case')} with a step time on {name} and none on {first}.")
    return said


def _verdict(of: Overall) -> str:
    def named(places: Iterable[int]) -> str:
        return format.joined(of.names[at] for at in places)

    if not of.others:
        others = " or ".join(of.names[1:])
        return f"No ranked case succeeded both on {of.names[0]} and on {others}, so nothing can be compared."
    told: list[str] = []
    for at in sorted(of.others, key=lambda at: of.means[at - 1].ratio or 1):
        as_long, than = ("", "") if told else (" as long", f" as on {of.names[0]}")
        mean = of.means[at - 1]
        told.append(f"{format.times(mean.ratio or 1)} times{as_long} on {of.names[at]}{than} ({over(mean)})")
    where = "overall" if of.shared == of.cases else f"over {of.shared:,} of {format.count(of.cases, 'case')}"
    if not of.shared:
        answer = f"No case can be compared on all of {named(of.compared)}, so none is called the fastest"
    elif of.best is None:
        answer = "Significance cannot be tested with one launch per case"
    elif len(of.tied) + 1 == len(of.judged):
        answer = f"{named(of.judged)} are not statistically distinguishable {where}"
    else:
        group = named(sorted((of.best, *of.tied)))
        among = "" if of.judged == of.compared else f"Of {named(of.judged)}, "
        how = f"{'fastest' if len(of.judged) > 2 else 'faster'} {where}"
        tied = f"are {how} and not statistically distinguishable" if of.tied else f"is {how}"
        answer = f"{among}{group} {tied}"
    return f"{answer}: a step takes {format.joined(told)}."


def over(mean: Mean) -> str:
    """Return 'geometric mean of 3 cases; 95%: 0.40 to 0.42'."""
    ends = "no interval" if mean.low is None else f"95%: {interval(mean)}"
    return f"geometric mean of {format.count(mean.cases, 'case')}; {ends}"


def _sessions(of: Overall) -> Iterator[str]:
    """Yield the variation between sessions that the intervals contain."""
    told: dict[str, list[str]] = {}
    for at in of.others:
        mean = of.means[at - 1]
        if mean.session_sd is not None:
            source = f"measured in {format.count(mean.sessions, 'session')}" if mean.sessions else "assumed"
            told.setdefault(f"{format.percent(mean.session_sd)} ({source})", []).append(of.names[at])
    if told:
        which = [text if len(told) == 1 else f"{text} for {format.joined(names)}" for text, names in told.items()]
        yield f"Not interleaved: the intervals contain a standard deviation between sessions of {format.joined(which)}."


def _counts(changes: dict[str, int]) -> str:
    return ", ".join(f"{change} in {changes[change]:,}" for change in Outcome if changes.get(change))


def given(work: Overall, name: str) -> str:
    """Return the means of a number in `GIVES` relative to the first side, and why others are unknown."""
    means = list(zip(work.names[1:], work.gives[name], strict=True))
    said = [f"{format.times(mean.ratio)} times on {role} ({over(mean)})" for role, mean in means if mean.ratio]
    what = f"{format.unit_of(work.work['seq_len'])}{'' if GIVES[name].startswith('/') else ' '}{GIVES[name]}"
    told = [f"Relative to {work.names[0]}, {what}: {format.joined(said)}."] if said else []
    why: dict[str, list[str]] = {}
    for role, mean in means:
        if mean.ratio is None:
            why.setdefault(mean.reason, []).append(role)
    what = f"{what[0].upper()}{what[1:]}"
    return " ".join([*told, *(f"{what} on {format.joined(on)}: unknown: {reason}." for reason, on in why.items())])


def interval(of: CaseResult | Ratio | Mean) -> str:
    """Return '0.40 to 0.42', or a dash if the interval is unknown."""
    return "–" if of.low is None or of.high is None else format.times_between(of.low, of.high)


def explore(*origins: Origin) -> str:
    """Return the command that shows sessions with all their configurations, curves and facts."""
    return shlex.join(["parabench", "report", *(origin.at for origin in origins)])


def steps(of: Several, works: Sequence[Overall]) -> list[tuple[str, str]]:
    """Return (reason, command) for what would add to the answer: missing launches, a verdict, interleaved sides."""
    found = [_step(of, works, at) for at in range(1, len(of.sides))]
    interleaved = all(paired or other for paired, other in zip(of.paired[1:], of.other_hardware[1:], strict=True))
    if any(work.others for work in works) and not interleaved:
        why = (
            "the strongest comparison: both sides take turns on one machine (OLD and NEW are folders of a checkout or "
            "of a virtual environment, or NAME=VALUE)"
        )
        suite = shlex.join(["parabench", "ab", of.first.session.suite])
        found.append((why, f"{suite} --a OLD --b NEW"))
    return list(dict.fromkeys(step for step in found if step[1]))


def _step(of: Several, works: Sequence[Overall], at: int) -> tuple[str, str]:
    """Return the reason and the command that add most to the comparison of a side; an empty command if none does."""
    first, side = of.first, of.sides[at]
    means = [work.means[at - 1] for work in works if at in work.compared]
    if not of.common(at):
        there, here = (first, side) if len(first.cases) else (side, first)
        why = f"measure on {here.role} what was measured on {there.role}, into a store of its own"
        return why, there.origin.command
    if not means:
        bad = first if len(side.counted) else side
        return f"see how launches of {bad.role} ended", explore(bad.origin)
    if all(mean.low is None for mean in means):
        few = min(first, side, key=lambda each: each.counted["case"].value_counts().max())
        command = shlex.join([*few.session.argv, "--launches", str(ENOUGH_LAUNCHES)]) if few.session.argv else ""
        return f"more launches of every case on {few.role}, which give an interval", command
    if of.other_hardware[at]:
        return "", ""  # no verdict compares other hardware
    differing = [] if of.paired[at] else [each.name for each in differences(first, side) if each.matters]
    options = [word for name in differing for word in ("--changed", name)]
    command = shlex.join(["parabench", "compare", first.origin.at, side.origin.at, *options])
    return f"a verdict with a known false-alarm rate on {side.role} against {first.role}", command
