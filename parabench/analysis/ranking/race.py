"""The race of `parabench run`: which cases may still be the fastest after each block, and why the others left.

After each block every case is compared with the best so far, by all launches so far. It leaves where it is slower at a
confidence that rises from look to look, so that the fastest leaves wrongly in one race of twenty at most, however often
one looks (Bonferroni's bound over looks: the errors ERROR / (n (n - 1)) of looks n = 2, 3, ... add up to ERROR; E.
Paulson, "A sequential procedure for selecting the population with the largest mean from k normal populations", Annals
of Mathematical Statistics 35, 1964, is the first of such races).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parabench.analysis.ranking.objectives import STEP
from parabench.analysis.stats.block_model import SHARP_ENOUGH, Effects, fit
from parabench.analysis.tables import only_ranked, same_work, timed_launches
from parabench.analysis.text import format
from parabench.store.columns import Rows
from parabench.store.record import FIRST_BLOCK

# How often the fastest may leave a race wrongly.
ERROR = 0.05
# Of one launch nobody knows how launches differ.
FIRST_LOOK = 2


@dataclass(frozen=True)
class Exit:
    """A case that left: by how much slower it is than the best, as a fraction, and the least that it may be."""

    case_id: str
    slower: float
    at_least: float


@dataclass(frozen=True)
class Look:
    """What a race stood at after `block`, `seconds` of launches after its begin: the ids of the cases that may still be
    the fastest, the best first; those that left here; and the largest simultaneous 95 % half-width of a comparison with
    the best among those that did not, as a fraction, None where it is not known."""

    block: int
    seconds: float
    racing: tuple[str, ...]
    left: tuple[Exit, ...]
    half_width: float | None

    @property
    def decided(self) -> bool:
        """Whether nothing is left that another block could settle."""
        return len(self.racing) < 2 or (self.half_width is not None and self.half_width <= SHARP_ENOUGH)


def exits(looks: Sequence[Look]) -> dict[str, tuple[Look, Exit]]:
    """Of each case that is out of the race, by its id, the look at which it left, the last where it came back."""
    left = {each.case_id: (look, each) for look in looks for each in look.left}
    return {case: found for case, found in left.items() if case not in looks[-1].racing}


def confidence_of(look: int) -> float:
    """At what confidence a case leaves at that look, the second or a later one."""
    return 1 - ERROR / (look * (look - 1))


def races(launches: Rows) -> Iterator[tuple[Look, ...]]:
    """The race of each work of a launch table."""
    seconds = seconds_at(launches)
    for _, own in same_work(launches[launches["block"] >= FIRST_BLOCK], STEP.work):
        yield race(only_ranked(timed_launches(own)), seconds)


def race(own: Rows, seconds: Mapping[int, float]) -> tuple[Look, ...]:
    """The looks at the launches of one work that count; `seconds` says when each block had ended."""
    own = own[np.asarray(own["in_turns"], dtype=bool)]
    blocks = sorted({int(block) for block in own["block"]})
    looks: list[Look] = []
    for number, block in enumerate(blocks, 1):
        if number < FIRST_LOOK:
            continue
        effects = fit(own[own["block"] <= block])
        best = effects.cases[int(np.argmin(effects.levels))]
        racing = effects.indistinguishable(best, confidence_of(number))
        before = looks[-1].racing if looks else effects.cases
        gone = [case for case in before if case not in racing]
        looks.append(
            Look(block, seconds[block], tuple(racing), _exits(effects, best, gone, number), _width(effects, racing))
        )
    return tuple(looks)


def _exits(effects: Effects, best: str, gone: list[str], look: int) -> tuple[Exit, ...]:
    widths = dict(zip(effects.cases, effects.best_half_widths(best, confidence_of(look)).tolist(), strict=True))
    apart = {case: effects.means[case] - effects.means[best] for case in gone}
    return tuple(Exit(case, math.expm1(apart[case]), math.expm1(apart[case] - widths[case])) for case in gone)


def _width(effects: Effects, racing: list[str]) -> float | None:
    widths = dict(zip(effects.cases, effects.best_half_widths(racing[0]).tolist(), strict=True))
    return format.number_or_none(math.expm1(max(widths[case] for case in racing)))


def seconds_at(launches: Rows) -> dict[int, float]:
    """How long all launches had taken when each block had ended."""
    block, took = np.asarray(launches["block"]), np.asarray(launches["wall_s"], dtype=float)
    return {int(each): float(took[block <= each].sum()) for each in np.unique(block)}
