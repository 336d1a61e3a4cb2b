"""The race of `parabench run`: which cases may still be the fastest after each block, and why the others left.

After each block every case is compared with the best so far, by all launches so far. It leaves where it is slower at a
confidence that rises from look to look, so that the fastest leaves wrongly in one race of twenty at most, however often
one looks (Bonferroni's bound over looks: the errors ERROR / (n (n - 1)) of looks n = 2, 3, ... add up to ERROR; E.
Paulson, "A sequential procedure for selecting the population with the largest mean from k normal populations", Annals
of Mathematical Statistics 35, 1964, is the first of such races). One that left is judged on at the confidence of the
look of its last launch, and comes back where later launches of the others leave it within that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import pandas as pd

from parabench.analysis.numbers import only_ranked, same_work
from parabench.analysis.ranking.objectives import STEP
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.block_model import SHARP_ENOUGH, fit
from parabench.analysis.stats.quantiles import Numbers
from parabench.analysis.text import format
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


def standings(launches: pd.DataFrame) -> Iterator[Look]:
    """The last look at the race of each work of a launch table that has come to one; nobody is said to have left."""
    seconds = seconds_at(launches)
    for _, of_work in same_work(launches[launches["repetition"] >= FIRST_BLOCK], STEP.work):
        own, blocks = _raced(only_ranked(of_work[of_work["timed"]]))
        if len(blocks) >= FIRST_LOOK:
            yield _look(own, blocks[-1], seconds, ())


def race(own: pd.DataFrame, seconds: Mapping[int, float]) -> tuple[Look, ...]:
    """The looks at the launches of one work that count; `seconds` says when each block had ended."""
    own, blocks = _raced(own)
    looks: list[Look] = []
    for block in blocks[FIRST_LOOK - 1 :]:
        before = looks[-1].racing if looks else None
        looks.append(_look(own[own["repetition"] <= block], block, seconds, before))
    return tuple(looks)


def _raced(own: pd.DataFrame) -> tuple[pd.DataFrame, list[int]]:
    """The launches that cases shared, or all where none that they shared counts, and their blocks."""
    shared = np.asarray(own["in_turns"], dtype=bool)
    own = own[shared] if shared.any() else own
    return own, sorted({int(block) for block in own["repetition"]})


def confidences(own: pd.DataFrame, cases: Sequence[str]) -> Numbers:
    """At what confidence each of these cases leaves by shared launches: that of the look of its last one."""
    blocks = sorted({*own["repetition"]})
    last = dict(sorted(zip(own["case"], own["repetition"], strict=True), key=itemgetter(1)))
    return np.array([confidence_of(max(FIRST_LOOK, blocks.index(last[case]) + 1)) for case in cases])


def _look(own: pd.DataFrame, block: int, seconds: Mapping[int, float], before: Sequence[str] | None) -> Look:
    """Compare cases by the launches up to `block`; `before` were in the race until then, None for all cases."""
    effects = fit(own)
    best, *_ = effects.connected()
    asked, behind = (
        confidences(own, effects.cases),
        dict(zip(effects.cases, effects.behind(best).tolist(), strict=True)),
    )
    # Nothing excludes a case that is not connected with the best.
    unconnected = (case for case, log in behind.items() if math.isnan(log))
    racing = (*effects.indistinguishable(best, asked), *unconnected)
    sure, wide = effects.behind_best(best, asked), effects.behind_best(best, CONFIDENCE)
    apart = {case: behind[case] for case in (effects.cases if before is None else before) if case not in racing}
    return Look(
        block,
        seconds[block],
        racing,
        tuple(Exit(case, math.expm1(by), math.expm1(by - sure[case])) for case, by in apart.items()),
        format.number_or_none(math.expm1(max(wide[case] for case in racing))),
    )


def seconds_at(launches: pd.DataFrame) -> dict[int, float]:
    """How long all launches had taken when each block had ended."""
    block, took = np.asarray(launches["repetition"]), np.asarray(launches["wall_s"], dtype=float)
    return {int(each): float(took[block <= each].sum()) for each in np.unique(block)}
