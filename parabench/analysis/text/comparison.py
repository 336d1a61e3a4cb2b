"""Which side is fastest, as a person would say it; and the commands that would tell more."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from parabench.analysis.compare.between import ALLOWANCE
from parabench.analysis.compare.overall import Overall
from parabench.analysis.compare.rule import Outcome
from parabench.analysis.compare.several import Against, Several
from parabench.analysis.environment.diff import differences
from parabench.analysis.stats.geometric import Mean
from parabench.analysis.stats.ttest import FEWEST_LAUNCHES
from parabench.analysis.text import across, format

# So many launches a case show a few per cent on a quiet machine.
ENOUGH_LAUNCHES = 5
_CHANCE = "with one launch per case, significance cannot be tested"


def sentences(of: Overall) -> list[str]:
    """Who is fastest over which cases; how many cases became what by the gate's rule; and what is left out."""
    said = [*_verdict(of), *_sessions(of), *_cases(of), *_left(of)]
    missing = [of.names[at] for at in range(1, len(of.names)) if at not in of.compared]
    if missing and of.others:
        verb = "has" if len(missing) == 1 else "have"
        said.append(f"{format.joined(missing)} {verb} no case that succeeded there and on {of.names[0]}.")
    return said


def _verdict(of: Overall) -> Iterator[str]:
    if not of.others:
        yield _nothing(of)
    elif not of.shared:
        yield _each(of)
    else:
        yield _two(of) if len(of.compared) == 2 else _many(of)


def _ends(mean: Mean) -> str:
    return f"95 %: {across.interval(mean)}"


def _nothing(of: Overall) -> str:
    first, others = of.names[0], of.names[1:]
    if not of.cases:
        return "Only the no-communication baseline was measured, which is not ranked."
    if of.left.met:
        return f"No case succeeded both on {first} and on {_or(others)}, so nothing can be compared."
    return f"No case of {first} has the same workload as one of {_or(others)}, so there is no ratio to give."


def _or(names: Iterable[str]) -> str:
    *before, last = names
    return f"{', '.join(before)} or {last}" if before else last


def _where(of: Overall) -> str:
    """Of how much of the work a verdict is."""
    return "overall" if of.shared == of.cases else f"over {of.shared:,} of {format.count(of.cases, 'case')}"


def _each(of: Overall) -> str:
    """Sides that have cases in common with the first, and none all together."""
    told = [f"{_times(of.means[at - 1])} as long on {of.names[at]} ({_over(of.means[at - 1])})" for at in of.others]
    names = format.joined(of.names[at] for at in of.compared)
    return (
        f"No case can be compared on all of {names}, so none is called the fastest. Beside {of.names[0]} a step takes "
        f"{format.joined(told)}."
    )


def _two(of: Overall) -> str:
    """The first and one other."""
    at = of.others[0]
    first, other, mean = of.names[0], of.names[at], of.means[at - 1]
    takes = f"a step takes {_times(mean)} as long as on {first} ({_over(mean)})"
    if mean.low is None:
        return f"On {other} {takes}; {_CHANCE}."
    if of.tied:
        return f"{first} and {other} are not statistically distinguishable {_where(of)}: on {other} {takes}."
    faster = of.names[of.best or 0]
    return f"{faster} is faster {_where(of)}: {'' if of.best == at else f'on {other} '}{takes}."


def _over(mean: Mean) -> str:
    cases = f"geometric mean of {format.count(mean.cases, 'case')}" if mean.cases > 1 else "in 1 case"
    return f"{cases}; {_ends(mean)}" if mean.low is not None else cases


def _many(of: Overall) -> str:
    """The first and several others, over the cases that all of them have."""
    ratios = {at: of.means[at - 1] for at in of.others}
    over = f"geometric means of the {format.count(of.shared, 'case')} that they share" if of.shared > 1 else "in 1 case"
    fastest, *others = sorted(ratios.items(), key=lambda one: one[1].ratio or 1)
    told = [f"{_times(fastest[1])} as long on {of.names[fastest[0]]} as on {of.names[0]}"]
    told += [f"{_times(mean)} on {of.names[at]}" for at, mean in others]
    takes = f"a step takes {format.joined(told)}; {over}"
    if of.best is None:
        return f"{takes[0].upper()}{takes[1:]}; {_CHANCE}."
    unjudged = [of.names[at] for at in of.others if at not in of.judged]
    if unjudged:
        takes += f". {format.joined(unjudged)} cannot be tested: one launch per case"
    return f"{_head(of)}: {takes}."


def _head(of: Overall) -> str:
    """Who is fastest, of those of which that can be said."""
    assert of.best is not None
    group = format.joined(of.names[at] for at in sorted((of.best, *of.tied)))
    among = "" if of.judged == of.compared else f"Of {format.joined(of.names[at] for at in of.judged)}, "
    if len(of.tied) + 1 == len(of.judged):
        return f"{group} are not statistically distinguishable {_where(of)}"
    if of.tied:
        return f"{among}{group} are fastest {_where(of)} and not statistically distinguishable"
    return f"{among}{group} is fastest {_where(of)}"


def _sessions(of: Overall) -> Iterator[str]:
    """What the intervals hold of sessions that did not take turns."""
    told: dict[str, list[str]] = {}
    for at in of.others:
        if (sd := of.means[at - 1].session_sd) is not None:
            said = f"{_source(of.means[at - 1], sd)}, {format.percent(sd)} (standard deviation)"
            told.setdefault(said, []).append(of.names[at])
    if told:
        which = [said if len(told) == 1 else f"{said}, for {format.joined(names)}" for said, names in told.items()]
        yield f"Not interleaved; sessions are assumed to differ {'; '.join(which)}."


def _source(mean: Mean, sd: float) -> str:
    """What tells by how much sessions differ."""
    if mean.sessions:
        return f"by what {format.count(mean.sessions, 'session')} tell"
    return "by an allowance" if sd <= ALLOWANCE else "as much as the blocks of one do"


def _times(mean: Mean) -> str:
    return f"{format.times(mean.ratio or 1)} times"


def _cases(of: Overall) -> Iterator[str]:
    told = [f"{of.names[at]} is {_counts(of.changes[at - 1])}" for at in of.others if of.changes[at - 1]]
    if told:
        yield f"Case by case against {of.names[0]}, {'; '.join(told)}."


def _left(of: Overall) -> Iterator[str]:
    """What the means are not of."""
    first, left = of.names[0], of.left
    if left.single and of.shared:
        verb = "is" if left.single == 1 else "are"
        yield f"{format.count(left.single, 'case')} with one launch on a side {verb} left out."
    for name, lost, mended in zip(of.names[1:], left.lost, left.mended, strict=True):
        if lost:
            yield f"{format.count(lost, 'case')} succeeded on {first} and failed on {name}."
        if mended:
            yield f"{format.count(mended, 'case')} failed on {first} and succeeded on {name}."
    if left.absent and of.shared:
        verb = "was" if left.absent == 1 else "were"
        yield (
            f"{format.count(left.absent, 'case')} {verb} not measured on "
            f"{'both' if len(of.compared) == 2 else 'all of these'}."
        )


def _counts(changes: dict[Outcome, int]) -> str:
    """'slower in 1, unclear in 2, faster in 20'."""
    said = [f"{change} in {changes[change]:,}" for change in Outcome if changes.get(change)]
    return ", ".join(said)


def said(mean: Mean) -> tuple[str, str, str]:
    """A mean as a number with its unit and its interval: ('0.83', 'times', '95 %: 0.82 to 0.84')."""
    if mean.ratio is None:
        return "unknown", "", mean.reason
    return (
        format.times(mean.ratio),
        "times",
        _ends(mean) if mean.low is not None else f"no interval: {mean.reason}",
    )


def steps(of: Several, works: Sequence[Overall]) -> list[tuple[str, str]]:
    """(why, command) of what would tell more: what a comparison still lacks, a verdict for each side, and sides that
    take turns."""
    found = [step for at in range(1, len(of.sides)) for step in (_lacking(of, works, at) or _judged(of, at))]
    return list(dict.fromkeys(found)) + list(_turns(of, works))


def _lacking(of: Several, works: Sequence[Overall], at: int) -> list[tuple[str, str]]:
    """What must be measured before a side can be held against the first; empty where it can."""
    first, side = of.first, of.sides[at]
    if not any(row[0] and row[at] for row in of.rows):
        # What was measured on one of them, for the other; where neither has a case both must be measured.
        here, there = (side, 0) if len(first.cases) else (first, at)
        why = f"measure on {here.role} what was measured on {of.sides[there].role}, into a store of its own"
        return [(why, of.origins[there].command)] if of.origins[there].command else []
    if not any(at in work.compared for work in works):
        bad = [place for place in (0, at) if not len(of.sides[place].counted)] or [0, at]
        return [
            (
                f"see why nothing of {of.sides[place].role} succeeded" if len(bad) == 1
                else f"see how launches of {of.sides[place].role} ended",
                shlex.join(["parabench", "report", of.origins[place].at]),
            )
            for place in bad
        ]  # fmt: skip
    if any(work.means[at - 1].low is not None for work in works):
        return []
    few = [place for place in (0, at) if of.sides[place].counted["case"].value_counts().max() < FEWEST_LAUNCHES]
    return [
        (
            f"more launches of every case on {of.sides[place].role}, which give an interval",
            shlex.join([*of.sides[place].session.argv, "--launches", str(ENOUGH_LAUNCHES)]),
        )
        for place in few or [0, at]
        if of.sides[place].session.argv
    ]


def _judged(of: Several, at: int) -> list[tuple[str, str]]:
    if of.launches_alone:  # no case is judged of two machines
        return []
    against = of.against[at - 1]
    command = ["parabench", "compare", of.origins[0].at, of.origins[at].at, *_options(of, against)]
    machines = against.machines
    what = "ratios of step time, energy and memory of" if machines else "a verdict with a known false-alarm rate on"
    return [(f"{what} {against.side.role} against {of.first.role}", shlex.join(command))]


def _options(of: Several, against: Against) -> Iterator[str]:
    if against.machines:
        yield "--across-hardware"
    elif not against.paired:
        for each in differences(of.first, against.side):
            if each.matters:
                yield from ("--changed", each.name)


def _turns(of: Several, works: Sequence[Overall]) -> Iterator[tuple[str, str]]:
    if not any(work.others for work in works):
        return
    if all(against.paired or against.machines for against in of.against):
        return
    suite = shlex.join(["parabench", "ab", of.first.session.suite])
    yield (
        "the strongest comparison: both sides take turns on one machine (OLD and NEW are folders of a checkout or of a "
        "virtual environment, or NAME=VALUE)",
        f"{suite} --a OLD --b NEW",
    )
