"""What both sides of `parabench ab` do: the cases that both can run, each launched alike, and whose turn it is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from parabench.errors import UsageError
from parabench.plan.fields import option_fields
from parabench.plan.protocol import BY_STEPS_OR_TIME, Protocol

# How a user makes a part of the plan the same on both sides.
OPTIONS = {name: each.field.option for name, each in option_fields(Protocol).items() if not each.field.role}
OPTIONS |= {"seed": "--seed"}


def shared(plans: Sequence[dict[str, Any]], log: Callable[[str], None]) -> tuple[list[str], list[dict[str, str]]]:
    """Of what the sides a and b answered to `plan`, the cases that both can do, in one order; and for each side those
    that are set aside, {case id: why}, which is said.

    Raises UsageError when they would launch otherwise, because that would be judged as the change's doing, and when
    there is no case that both can run.
    """
    check_alike(plans)
    apart = [
        {
            case: f"side {name} does not run it: {other['skipped'].get(case, 'its suite has no such case')}"
            for case in own["cases"]
            if case not in other["cases"]
        }
        for own, other, name in ((plans[0], plans[1], "b"), (plans[1], plans[0], "a"))
    ]
    both = [case for case in plans[0]["cases"] if case in plans[1]["cases"]]
    if not both:
        why = next(chain(*(each.values() for each in apart)), "no cases")
        raise UsageError(f"there is no case that both sides can run: {why}")
    for own, aside, name in zip(plans, apart, "ab", strict=True):
        for case, reason in aside.items():
            log(f"skipped {own['cases'][case]} in {name}: {reason}")
    return both, apart


def check_alike(plans: Sequence[dict[str, Any]]) -> None:
    """Raise UsageError when launches of the sides would not be alike; of what only one side's version knows nothing
    can be said."""
    own, other = (plan["protocol"] | {"seed": plan["seed"]} for plan in plans)
    found = [name for name in own if name in other and own[name] != other[name]]
    if found:
        differ = ", ".join(f"{name}: {_shown(own[name])} in a, {_shown(other[name])} in b" for name in found)
        # Steps and seconds of the same cannot both be given.
        also = [timed for name, timed in BY_STEPS_OR_TIME.items() if name in found and timed in found]
        options = [
            OPTIONS[name] + (f" or {OPTIONS[timed]}" if (timed := BY_STEPS_OR_TIME.get(name)) in also and timed else "")
            for name in found
            if name in OPTIONS and name not in also
        ]
        suites = [] if len(options) + len(also) == len(found) else ["make both suites say the same"]
        remedy = " and ".join([*([f"give {' '.join(options)}"] if options else []), *suites])
        raise UsageError(f"{differ}; {remedy}")


def check_turns(plans: Sequence[dict[str, Any]]) -> None:
    """Raise UsageError when the sides would walk in different orders."""
    if plans[0]["turns"] != plans[1]["turns"]:
        raise UsageError("the sides order their cases differently; give both a parabench that orders them alike")


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class LaunchPair:
    """One launch of each side, of the same case in the same block; `order` says who is first."""

    case: str
    block: int
    order: tuple[int, int]

    @property
    def key(self) -> tuple[str, int]:
        """By which a launch of the pair is found."""
        return self.case, self.block


def pairs(turns: Sequence[tuple[str, int]], seed: int) -> Iterator[LaunchPair]:
    """A pair for every turn. Who is first is random in a case's first block, and then alternates: what the first
    launch of a pair gains or loses by its place, both sides gain or lose equally often."""
    draw = random.Random(f"who is first, {seed}")
    first: dict[str, int] = {}
    for case, block in turns:
        first[case] = 1 - first[case] if case in first else draw.randrange(2)
        yield LaunchPair(case, block, (first[case], 1 - first[case]))
