"""What both variants of `parabench ab` measure: the cases that both can run, in pairs of launches in one order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from parabench.errors import UsageError
from parabench.plan.fields import option_fields
from parabench.plan.protocol import Protocol

# The options that make a part of the plan equal in both variants.
OPTIONS = {name: each.field.option for name, each in option_fields(Protocol).items() if not each.field.role}
OPTIONS |= {"seed": "--seed"}


def shared(plans: Sequence[dict[str, Any]], log: Callable[[str], None]) -> tuple[list[str], list[dict[str, str]]]:
    """Return the cases that both variants can run, and for each variant the skipped cases, {case id: reason}.

    `plans` are the answers of a and b to `plan`. Raises UsageError if the variants would measure differently, or share
    no case.
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
    """Raise UsageError if the protocols differ in a field that both versions of parabench have."""
    own, other = (plan["protocol"] | {"seed": plan["seed"]} for plan in plans)
    found = [name for name in own if name in other and own[name] != other[name]]
    if found:
        texts = [[str(plan[name]) for name in found] for plan in (own, other)]
        differ = ", ".join(f"{name}: {a} in a, {b} in b" for name, a, b in zip(found, *texts, strict=True))
        options = [OPTIONS[name] for name in found if name in OPTIONS]
        give = f"give {', '.join(options)}, or " if options else ""
        raise UsageError(f"{differ}; {give}make both suites say the same")


@dataclass(frozen=True, slots=True)
class LaunchPair:
    """A launch of each variant, of the same case in the same repetition; `order` has the variants in their order."""

    case: str
    block: int
    order: tuple[int, int]

    @property
    def key(self) -> tuple[str, int]:
        return self.case, self.block


def pairs(turns: Sequence[tuple[str, int]], seed: int) -> Iterator[LaunchPair]:
    """Yield a pair for each (case, repetition).

    The first variant is random in a case's first repetition, and alternates from then on, so that an effect of the
    place affects both variants equally often.
    """
    draw = random.Random(f"who is first, {seed}")
    first: dict[str, int] = {}
    for case, block in turns:
        first[case] = 1 - first[case] if case in first else draw.randrange(2)
        yield LaunchPair(case, block, (first[case], 1 - first[case]))
