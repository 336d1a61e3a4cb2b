"""The fastest side at each workload, over all its configurations, in numbers and in sentences."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.compare.between import between_means
from parabench.analysis.compare.cases import Outcome
from parabench.analysis.compare.comparison import GIVES, SHARED_WORK, STEP, Comparison
from parabench.analysis.compare.sides import interleaved
from parabench.analysis.environment.diff import differences
from parabench.analysis.numbers import of_pair, same_work
from parabench.analysis.stats.contrasts import FEWEST_LAUNCHES, Mean, geometric_mean, logs_of
from parabench.strategies import entry_of

# With so many launches per configuration, a difference of a few percent shows on a quiet machine.
ENOUGH_LAUNCHES = 5


@dataclass(frozen=True)
class Overall:
    """The sides at one workload.

    Attributes:
        heading: The difference from other workloads; empty if there is one.
        work: The fields of the workload.
        rows: The places of its configurations in the comparison.
        names: The names of the sides.
        compared: The places of sides that can be compared: the first, and all with a configuration that succeeded on
            both.
        cases: The number of configurations that can be an answer; a baseline without communication does not count.
        shared: The number of configurations that are common to all of `compared`, over which the means of step times
            are. If it is 0, each mean is over the configurations in common with the first.
        means: By quantity, the mean of every side but the first, relative to the first.
        best: The fastest of the sides whose mean has an interval.
        tied: Those of them that the 95% interval of their ratio does not distinguish from the fastest.
        changes: The number of configurations by outcome, for every side but the first.
        lost: The number of configurations with a step time on the first side and none on another, by side.
        mended: The reverse.
    """

    heading: str
    work: dict[str, Any]
    rows: tuple[int, ...]
    names: tuple[str, ...]
    compared: tuple[int, ...]
    cases: int
    shared: int
    means: dict[str, tuple[Mean, ...]]
    best: int | None
    tied: tuple[int, ...]
    changes: tuple[dict[Outcome, int], ...]
    lost: tuple[int, ...]
    mended: tuple[int, ...]

    @property
    def others(self) -> tuple[int, ...]:
        """Those of `compared` that are compared with the first."""
        return self.compared[1:]

    @property
    def judged(self) -> tuple[int, ...]:
        """Those of `compared` that can be tested: the first, and those whose mean has an interval."""
        return (0, *(at for at in self.others if self.mean(at).low is not None))

    def mean(self, at: int) -> Mean:
        """Return the mean step time of a side relative to the first."""
        return self.means[STEP][at - 1]


def overall(of: Comparison) -> tuple[Overall, ...]:
    """Return one result for each workload, in the order of the configurations."""
    works = same_work(of.cases, SHARED_WORK)
    differing = [name for name in SHARED_WORK if len({str(work[name]) for work, _ in works}) > 1]
    found = []
    for work, cases in works:
        named = (f"{name.replace('_', ' ')} {'default' if work[name] is None else work[name]}" for name in differing)
        found.append(_overall(of, work, ", ".join(named), cases))
    return tuple(found)


def work_key(work: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the fields of a workload that are equal on all machines."""
    return tuple(None if pd.isna(work.get(name)) else work[name] for name in SHARED_WORK)


def _overall(of: Comparison, work: dict[str, Any], heading: str, cases: pd.DataFrame) -> Overall:
    rows = [int(row) for row, name in cases["strategy"].items() if entry_of(str(name)).ranked]  # type: ignore[call-overload]
    places = range(1, len(of.sides))
    steps = of.of(STEP)
    steps = steps[steps["row"].isin(rows)]
    # The launches of the side that has fewer, by configuration (a row) and side (a column).
    counts = pd.concat([steps[f"{side}_launches"].map(len) for side in ("base", "candidate")], axis=1).min(axis=1)
    fewest = steps.assign(n=counts).pivot(index="row", columns="at", values="n")
    fewest = fewest.reindex(index=rows, columns=list(places)).fillna(0)
    # An interval needs two launches; a side where no configuration has them is compared without an interval.
    needed = fewest.max().clip(upper=FEWEST_LAUNCHES)
    compared = (0, *(at for at in places if needed[at] > 0))
    shared = [] if len(compared) == 1 else fewest.index[(fewest >= needed)[[*compared[1:]]].all(axis=1)].tolist()
    means = {STEP: tuple(_mean(of, shared if shared and at in compared else rows, 0, at) for at in places)}
    means |= {name: tuple(_mean(of, rows, 0, at, name) for at in places) for name in GIVES}
    best, tied = _fastest(of, compared, means[STEP], shared)
    outcomes = steps[steps["ratio"].notna()]
    return Overall(
        heading=heading,
        work=work,
        rows=tuple(cases.index.tolist()),
        names=of.names,
        compared=compared,
        cases=len(rows),
        shared=len(shared),
        means=means,
        best=best,
        tied=tied,
        changes=tuple(dict(Counter(outcomes["outcome"][outcomes["at"] == at])) for at in places),
        lost=tuple(int(of.lost(0, at)[rows].sum()) for at in places),
        mended=tuple(int(of.lost(at, 0)[rows].sum()) for at in places),
    )


def _mean(of: Comparison, rows: Sequence[int], base: int, other: int, name: str = STEP) -> Mean:
    """Return the mean ratio of two sides over the configurations that both have.

    The interval of step times contains the variation between sessions, as in the gate.
    """
    both = of.ids.loc[[row for row in rows if of.measured.at[row, base] and of.measured.at[row, other]]]
    if both.empty:
        return Mean(reason=f"no case in common with {of.names[base]}")
    first, second = of.sides[base], of.sides[other]
    paired = interleaved(first, second)
    known = of.known[name]
    logs, judged = [], []
    for pair in zip(both[base], both[other], strict=True):
        sides = of_pair(pair, known[base].by_case, known[other].by_case, paired)
        own, new = (pd.Series(logs_of(side), side.index) for side in sides)
        if min(len(own), len(new)) >= FEWEST_LAUNCHES:
            judged.append(pair)
        logs.append((pd.Series(new.to_numpy() - own.to_numpy(), own.index),) if paired else (own, new))
    between = None
    if name == STEP and judged and not paired:
        between = between_means(first, second, judged, of.alike(base, other))
    unknown = of.of(name, other)
    unknown = unknown[unknown["ratio"].isna() & unknown["row"].isin(rows)]
    return geometric_mean(logs, format.listed(dict.fromkeys(unknown["note"]), most=2), between)


def _fastest(
    of: Comparison, compared: tuple[int, ...], means: Sequence[Mean], shared: Sequence[int]
) -> tuple[int | None, tuple[int, ...]]:
    """Return the fastest side over the shared configurations, and those that are not distinguished from it."""
    ratios = {0: 1.0} | {at: means[at - 1].ratio or 1.0 for at in compared[1:] if means[at - 1].low is not None}
    if not shared or len(ratios) < 2:
        return None, ()
    best = min(ratios, key=ratios.__getitem__)

    def slower(at: int) -> bool:
        if at == 0:
            return (means[best - 1].high or 1) < 1
        low = means[at - 1].low if best == 0 else _mean(of, shared, best, at).low
        return low is not None and low > 1

    return best, tuple(at for at in ratios if at != best and not slower(at))


def answers(works: Iterable[Overall]) -> list[str]:
    """Return the sentences about all workloads."""
    found = []
    for work in works:
        own = [*sentences(work), *(given(work, name) for name in GIVES if work.others)]
        found += [f"{work.heading[0].upper()}{work.heading[1:]}: {own[0]}" if work.heading else own[0], *own[1:]]
    return found


def sentences(of: Overall) -> list[str]:
    """Return the fastest side, the outcomes of configurations, and those that failed on one side."""
    first = of.names[0]
    found = [_verdict(of), *_sessions(of)]
    changes = [
        f"{of.names[at]} {', '.join(f'{each} in {count:,}' for each in Outcome if (count := own.get(each, 0)))}"
        for at, own in enumerate(of.changes, 1)
        if own and at in of.others
    ]
    if changes:
        found.append(f"Case by case against {first}: {'; '.join(changes)}.")
    for at, (name, lost, mended) in enumerate(zip(of.names[1:], of.lost, of.mended, strict=True), 1):
        if of.others and at not in of.compared:
            found.append(f"No case succeeded both on {first} and on {name}.")
        if lost:
            found.append(f"{format.count(lost, 'case')} with a step time on {first} and none on {name}.")
        if mended:
            found.append(f"{format.count(mended, 'case')} with a step time on {name} and none on {first}.")
    return found


def _verdict(of: Overall) -> str:
    def named(places: Iterable[int]) -> str:
        return format.joined(of.names[at] for at in sorted(places))

    if not of.others:
        others = " or ".join(of.names[1:])
        return f"No ranked case succeeded both on {of.names[0]} and on {others}, so nothing can be compared."
    times: list[str] = []
    for at in sorted(of.others, key=lambda at: of.mean(at).ratio or 1):
        as_long, than = ("", "") if times else (" as long", f" as on {of.names[0]}")
        mean = of.mean(at)
        times.append(f"{format.times(mean.ratio or 1)} times{as_long} on {of.names[at]}{than} ({over(mean)})")
    where = "overall" if of.shared == of.cases else f"over {of.shared:,} of {format.count(of.cases, 'case')}"
    if not of.shared:
        answer = f"No case can be compared on all of {named(of.compared)}, so none is called the fastest"
    elif of.best is None:
        answer = "Significance cannot be tested with one launch per case"
    elif len(of.tied) + 1 == len(of.judged):
        answer = f"{named(of.judged)} are not statistically distinguishable {where}"
    else:
        among = "" if of.judged == of.compared else f"Among {named(of.judged)}, "
        how = f"{'fastest' if len(of.judged) > 2 else 'faster'} {where}"
        tied = f"are {how} and not statistically distinguishable" if of.tied else f"is {how}"
        answer = f"{among}{named((of.best, *of.tied))} {tied}"
    return f"{answer}: a step takes {format.joined(times)}."


def over(mean: Mean) -> str:
    """Return 'geometric mean of 3 cases; 95%: 0.40 to 0.42'."""
    ends = "no interval" if mean.low is None else f"95%: {interval(mean.low, mean.high)}"
    return f"geometric mean of {format.count(mean.cases, 'case')}; {ends}"


def _sessions(of: Overall) -> Iterator[str]:
    """Yield the variation between sessions that the intervals contain."""
    found: dict[str, list[str]] = {}
    for at in of.others:
        mean = of.mean(at)
        if mean.session_sd is not None:
            source = f"measured in {format.count(mean.sessions, 'session')}" if mean.sessions else "assumed"
            found.setdefault(f"{format.percent(mean.session_sd)} ({source})", []).append(of.names[at])
    if found:
        each = [text if len(found) == 1 else f"{text} for {format.joined(names)}" for text, names in found.items()]
        yield f"Not interleaved: the intervals contain a standard deviation between sessions of {format.joined(each)}."


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
    """Return '0.40 to 0.42', with more digits if both ends would read the same; a dash if it is unknown."""
    if low is None or high is None or pd.isna(low) or pd.isna(high):
        return "–"
    ends = [(format.times(low), format.times(high))]
    ends += [(format.digits(low, n), format.digits(high, n)) for n in (3, 4)]
    return " to ".join(next((each for each in ends if each[0] != each[1]), ends[0]))


def explore(*stores: str) -> str:
    """Return the command that shows sessions with all their configurations, curves and facts."""
    return shlex.join(["parabench", "report", *stores])


def steps(of: Comparison, works: Sequence[Overall]) -> list[tuple[str, str]]:
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


def _step(of: Comparison, works: Sequence[Overall], at: int) -> tuple[str, str]:
    """Return the reason and the command that add most to the comparison of a side; an empty command if none does."""
    first, side = of.first, of.sides[at]
    means = [work.mean(at) for work in works if at in work.compared]
    if not of.common(at):
        there, here = (first, side) if len(first.cases) else (side, first)
        why = f"measure on {here.role} what was measured on {there.role}, into a store of its own"
        return why, there.origin.command
    if not means:
        bad = first if len(side.counted) else side
        return f"see how launches of {bad.role} ended", explore(bad.origin.at)
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
