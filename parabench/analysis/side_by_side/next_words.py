"""What to do after a comparison: the commands that sharpen or repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from parabench.analysis.gate.sides import differences
from parabench.analysis.side_by_side.doubts import two_machines
from parabench.analysis.side_by_side.several import Against, Several


def steps(of: Several) -> list[tuple[str, str]]:
    """(why, command) of what would tell more: a verdict for each side, and sides that take turns."""
    found = []
    for against, origin in zip(of.against, of.origins[1:], strict=True):
        words = ["parabench", "compare", of.origins[0].at, origin.at, *_options(of, against)]
        machines = two_machines(of, against)
        what = (
            "what a step, a joule and a gigabyte give on"
            if machines
            else "a verdict with a known rate of false alarms on"
        )
        found.append((f"{what} {against.side.role} against {of.first.role}", shlex.join(words)))
    return found + list(_turns(of))


def _options(of: Several, against: Against) -> Iterator[str]:
    if two_machines(of, against):
        yield "--across-hardware"
    elif not against.paired:
        for each in differences(of.first, against.side):
            if each.matters:
                yield from ("--changed", each.name)


def _turns(of: Several) -> Iterator[tuple[str, str]]:
    if all(against.paired or two_machines(of, against) for against in of.against):
        return
    suite = shlex.join(["parabench", "ab", of.first.session.suite])
    yield (
        "the strongest comparison: both sides take turns on one machine (OLD and NEW are folders of a checkout or of a "
        "virtual environment, or NAME=VALUE)",
        f"{suite} --a OLD --b NEW",
    )
