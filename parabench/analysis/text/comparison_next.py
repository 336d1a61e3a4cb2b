"""What to do after a comparison: the commands that sharpen or repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from parabench.analysis.compare.overall import Overall
from parabench.analysis.compare.several import Against, Several
from parabench.analysis.environment.diff import differences
from parabench.analysis.stats.ttest import FEWEST_LAUNCHES

# So many launches a case show a few per cent on a quiet machine.
ENOUGH_LAUNCHES = 5


def steps(of: Several, works: Sequence[Overall]) -> list[tuple[str, str]]:
    """(why, command) of what would tell more: what a comparison still lacks, a verdict for each side, and sides that
    take turns."""
    found = [step for at in range(1, len(of.sides)) for step in (_lacking(of, works, at) or _verdict(of, at))]
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
        bad = [place for place in (0, at) if not len(of.sides[place].good)] or [0, at]
        return [
            (
                f"see why nothing of {of.sides[place].role} ended well" if len(bad) == 1
                else f"see how launches of {of.sides[place].role} ended",
                shlex.join(["parabench", "report", of.origins[place].at]),
            )
            for place in bad
        ]  # fmt: skip
    if any(work.means[at - 1].low is not None for work in works):
        return []
    few = [place for place in (0, at) if of.sides[place].good["case_id"].value_counts().max() < FEWEST_LAUNCHES]
    return [
        (
            f"more launches of every case on {of.sides[place].role}, which give an interval",
            shlex.join([*of.sides[place].session.argv, "--launches", str(ENOUGH_LAUNCHES)]),
        )
        for place in few or [0, at]
        if of.sides[place].session.argv
    ]


def _verdict(of: Several, at: int) -> list[tuple[str, str]]:
    if of.launches_alone:  # no case is judged of two machines
        return []
    against = of.against[at - 1]
    command = ["parabench", "compare", of.origins[0].at, of.origins[at].at, *_options(of, against)]
    machines = against.machines
    what = (
        "what a step, a joule and a gigabyte give on" if machines else "a verdict with a known rate of false alarms on"
    )
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
