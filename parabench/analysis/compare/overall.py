"""Which side is fastest at one work, over all its configurations, in numbers and in sentences."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.compare.between import ALLOWANCE, between_means
from parabench.analysis.compare.cases import Outcome, Ratio
from parabench.analysis.compare.several import SHARED_WORK, Row, Several
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
_CHANCE = "with one launch per case, significance cannot be tested"


@dataclass(frozen=True)
class Overall:
    """The sides at one work. `heading` distinguishes it from other works, and is empty if there is one.

    `cases` is the number of configurations that can be an answer; a baseline without communication counts nowhere.
    `compared` are the places of sides that can be compared: the first, and all with a configuration that succeeded on
    both. `means` belong to every side but the first: its step time relative to the first's. They are over the same
    `shared` configurations for all of `compared`; if no configuration is common to all of these, `shared` is 0 and each
    mean is over the configurations in common with the first. `gives` are the means of `GIVES`.

    `best` is the fastest of the `judged`; `tied` are those of them that the 95% interval of their ratio does not
    distinguish from it. `changes` counts the outcomes by side. The rest are numbers of configurations: `met` both the
    first and another side have, `single` are left out for one launch on a side, `absent` were not measured on a side;
    `lost` succeeded on the first side and failed on the other, `mended` the reverse, by side.
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
    met: int
    single: int
    absent: int
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
    """Return one result for each work, in the order of the configurations."""
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
    """Return what distinguishes a work from others on all machines."""
    return tuple(None if pd.isna(work.get(name)) else work[name] for name in SHARED_WORK)


def _overall(of: Several, work: dict[str, Any], heading: str, rows: Sequence[Row]) -> Overall:
    places = range(1, len(of.sides))
    fewest = {row.cases: [_launches(row, at) for at in places] for row in rows}
    compared = (0, *(at for at in places if any(each[at - 1] for each in fewest.values())))
    # An interval needs two launches; a side where no configuration has them is compared without an interval.
    needed = {at: min(FEWEST_LAUNCHES, max(each[at - 1] for each in fewest.values())) for at in compared[1:]}
    shared = [row for row in rows if needed and all(fewest[row.cases][at - 1] >= n for at, n in needed.items())]
    on_all = sum(all(fewest[row.cases][at - 1] for at in compared[1:]) for row in rows) if needed else len(shared)
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
        met=sum(row.cases[0] is not None and any(row.cases[1:]) for row in rows),
        single=on_all - len(shared),
        absent=sum(any(row.cases[at] is None for at in compared) for row in rows),
        lost=tuple(len(of.lost(rows, 0, at)) for at in places),
        mended=tuple(len(of.lost(rows, at, 0)) for at in places),
    )


def _launches(row: Row, at: int) -> int:
    """Return with how many launches a row is compared, on the side that has fewer."""
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
    """Return which side is fastest, the outcomes of configurations, and what is left out."""
    said = [_verdict(of), *_sessions(of)]
    told = [f"{of.names[at]} is {_counts(of.changes[at - 1])}" for at in of.others if of.changes[at - 1]]
    if told:
        said.append(f"Case by case against {of.names[0]}, {'; '.join(told)}.")
    said += _left_out(of)
    missing = [of.names[at] for at in range(1, len(of.names)) if at not in of.compared]
    if missing and of.others:
        verb = "has" if len(missing) == 1 else "have"
        said.append(f"{format.joined(missing)} {verb} no case that succeeded there and on {of.names[0]}.")
    return said


def _verdict(of: Overall) -> str:
    if not of.others:
        return _nothing(of)
    if not of.shared:
        told = [f"{_times(of.means[at - 1])} as long on {of.names[at]} ({over(of.means[at - 1])})" for at in of.others]
        names = format.joined(of.names[at] for at in of.compared)
        return (
            f"No case can be compared on all of {names}, so none is called the fastest. Relative to {of.names[0]} a "
            f"step takes {format.joined(told)}."
        )
    return _two(of) if len(of.compared) == 2 else _many(of)


def _nothing(of: Overall) -> str:
    first, others = of.names[0], " or ".join(of.names[1:])
    if not of.cases:
        return "Only the no-communication baseline was measured, which is not ranked."
    if of.met:
        return f"No case succeeded both on {first} and on {others}, so nothing can be compared."
    return f"No case of {first} has the same workload as one of {others}, so there is no ratio to give."


def _where(of: Overall) -> str:
    return "overall" if of.shared == of.cases else f"over {of.shared:,} of {format.count(of.cases, 'case')}"


def _two(of: Overall) -> str:
    at = of.others[0]
    first, other, mean = of.names[0], of.names[at], of.means[at - 1]
    takes = f"a step takes {_times(mean)} as long as on {first} ({over(mean)})"
    if mean.low is None:
        return f"On {other} {takes}; {_CHANCE}."
    if of.tied:
        return f"{first} and {other} are not statistically distinguishable {_where(of)}: on {other} {takes}."
    faster = of.names[of.best or 0]
    return f"{faster} is faster {_where(of)}: {'' if of.best == at else f'on {other} '}{takes}."


def over(mean: Mean) -> str:
    """Return 'geometric mean of 3 cases; 95 %: 0.40 to 0.42'."""
    cases = f"geometric mean of {format.count(mean.cases, 'case')}" if mean.cases > 1 else "in 1 case"
    return f"{cases}; 95 %: {interval(mean)}" if mean.low is not None else cases


def _many(of: Overall) -> str:
    ratios = {at: of.means[at - 1] for at in of.others}
    cases = (
        f"geometric means of the {format.count(of.shared, 'case')} that they share" if of.shared > 1 else "in 1 case"
    )
    fastest, *others = sorted(ratios.items(), key=lambda one: one[1].ratio or 1)
    told = [f"{_times(fastest[1])} as long on {of.names[fastest[0]]} as on {of.names[0]}"]
    told += [f"{_times(mean)} on {of.names[at]}" for at, mean in others]
    takes = f"a step takes {format.joined(told)}; {cases}"
    if of.best is None:
        return f"{takes[0].upper()}{takes[1:]}; {_CHANCE}."
    unjudged = [of.names[at] for at in of.others if at not in of.judged]
    if unjudged:
        takes += f". {format.joined(unjudged)} cannot be tested: one launch per case"
    group = format.joined(of.names[at] for at in sorted((of.best, *of.tied)))
    among = "" if of.judged == of.compared else f"Of {format.joined(of.names[at] for at in of.judged)}, "
    if len(of.tied) + 1 == len(of.judged):
        return f"{group} are not statistically distinguishable {_where(of)}: {takes}."
    if of.tied:
        return f"{among}{group} are fastest {_where(of)} and not statistically distinguishable: {takes}."
    return f"{among}{group} is fastest {_where(of)}: {takes}."


def _sessions(of: Overall) -> Iterator[str]:
    """Yield the variation between sessions that the intervals contain."""
    told: dict[str, list[str]] = {}
    for at in of.others:
        mean = of.means[at - 1]
        if (sd := mean.session_sd) is not None:
            source = "by an allowance" if sd <= ALLOWANCE else "as much as the blocks of one do"
            if mean.sessions:
                source = f"by what {format.count(mean.sessions, 'session')} tell"
            told.setdefault(f"{source}, {format.percent(sd)} (standard deviation)", []).append(of.names[at])
    if told:
        which = [said if len(told) == 1 else f"{said}, for {format.joined(names)}" for said, names in told.items()]
        yield f"Not interleaved; sessions are assumed to differ {'; '.join(which)}."


def _times(mean: Mean) -> str:
    return f"{format.times(mean.ratio or 1)} times"


def _left_out(of: Overall) -> Iterator[str]:
    first = of.names[0]
    if of.single and of.shared:
        verb = "is" if of.single == 1 else "are"
        yield f"{format.count(of.single, 'case')} with one launch on a side {verb} left out."
    for name, lost, mended in zip(of.names[1:], of.lost, of.mended, strict=True):
        if lost:
            yield f"{format.count(lost, 'case')} succeeded on {first} and failed on {name}."
        if mended:
            yield f"{format.count(mended, 'case')} failed on {first} and succeeded on {name}."
    if of.absent and of.shared:
        verb = "was" if of.absent == 1 else "were"
        where = "both" if len(of.compared) == 2 else "all of these"
        yield f"{format.count(of.absent, 'case')} {verb} not measured on {where}."


def _counts(changes: dict[str, int]) -> str:
    return ", ".join(f"{change} in {changes[change]:,}" for change in Outcome if changes.get(change))


def given(work: Overall, name: str) -> str:
    """Return the means of a number in `GIVES` relative to the first side, and why others are unknown."""
    means = list(zip(work.names[1:], work.gives[name], strict=True))
    said = [
        f"{format.times(mean.ratio)} times on {role} ({over(mean)}{'' if mean.low is not None else '; no interval'})"
        for role, mean in means
        if mean.ratio is not None
    ]
    what = f"{format.unit_of(work.work['seq_len'])}{'' if GIVES[name].startswith('/') else ' '}{GIVES[name]}"
    told = [f"Relative to {work.names[0]}, {what}: {format.joined(said)}."] if said else []
    why: dict[str, list[str]] = {}
    for role, mean in means:
        if mean.ratio is None:
            why.setdefault(mean.reason, []).append(role)
    told += [
        f"{what[0].upper()}{what[1:]} on {format.joined(roles)}: unknown: {reason}." for reason, roles in why.items()
    ]
    return " ".join(told)


def interval(of: Any) -> str:
    """Return '0.40 to 0.42' for anything with `low` and `high`, with more digits if both ends would read the same."""
    if of.low is None or of.high is None:
        return format.UNKNOWN
    said = [
        (format.times(of.low), format.times(of.high)),
        *((format.digits(of.low, n), format.digits(of.high, n)) for n in (3, 4)),
    ]
    low, high = next((ends for ends in said if ends[0] != ends[1]), said[0])
    return f"{low} to {high}"


def explore(*origins: Origin) -> str:
    """Return the command that shows sessions with all their configurations, curves and facts."""
    return shlex.join(["parabench", "report", *(origin.at for origin in origins)])


def steps(of: Several, works: Sequence[Overall]) -> list[tuple[str, str]]:
    """Return (reason, command) for what would add to the answer: missing launches, a verdict, interleaved sides."""
    found = [step for at in range(1, len(of.sides)) for step in (_lacking(of, works, at) or _judged(of, at))]
    interleaved = all(paired or other for paired, other in zip(of.paired[1:], of.other_hardware[1:], strict=True))
    if any(work.others for work in works) and not interleaved:
        why = (
            "the strongest comparison: both sides take turns on one machine (OLD and NEW are folders of a checkout or "
            "of a virtual environment, or NAME=VALUE)"
        )
        suite = shlex.join(["parabench", "ab", of.first.session.suite])
        found.append((why, f"{suite} --a OLD --b NEW"))
    return list(dict.fromkeys(found))


def _lacking(of: Several, works: Sequence[Overall], at: int) -> list[tuple[str, str]]:
    """Return what must be measured before a side can be compared with the first; empty if it can."""
    first, side = of.first, of.sides[at]
    if not of.common(at):
        # Measure on one side what was measured on the other.
        here, there = (side, 0) if len(first.cases) else (first, at)
        why = f"measure on {here.role} what was measured on {of.names[there]}, into a store of its own"
        return [(why, of.origins[there].command)] if of.origins[there].command else []
    if not any(at in work.compared for work in works):
        bad = [place for place in (0, at) if not len(of.sides[place].counted)] or [0, at]
        return [
            (
                f"see why nothing of {of.names[place]} succeeded" if len(bad) == 1
                else f"see how launches of {of.names[place]} ended",
                shlex.join(["parabench", "report", of.origins[place].at]),
            )
            for place in bad
        ]  # fmt: skip
    if any(work.means[at - 1].low is not None for work in works):
        return []
    few = [place for place in (0, at) if of.sides[place].counted["case"].value_counts().max() < FEWEST_LAUNCHES]
    return [
        (
            f"more launches of every case on {of.names[place]}, which give an interval",
            shlex.join([*of.sides[place].session.argv, "--launches", str(ENOUGH_LAUNCHES)]),
        )
        for place in few or [0, at]
        if of.sides[place].session.argv
    ]


def _judged(of: Several, at: int) -> list[tuple[str, str]]:
    """Return the command that judges a side against the first; none for other hardware, which has no verdict."""
    if of.other_hardware[at]:
        return []
    differing = [] if of.paired[at] else [each.name for each in differences(of.first, of.sides[at]) if each.matters]
    options = [word for name in differing for word in ("--changed", name)]
    command = ["parabench", "compare", of.origins[0].at, of.origins[at].at, *options]
    return [(f"a verdict with a known false-alarm rate on {of.names[at]} against {of.names[0]}", shlex.join(command))]
