"""Racing in `parabench run`: which cases may still be the fastest after each repetition.

After each repetition every case is compared with the best so far, by all launches so far. A case is eliminated if it is
slower at a confidence that rises from look to look, so that the fastest is eliminated in at most 5% of races
(Bonferroni's bound over looks: the errors ERROR / (n (n - 1)) of looks n = 2, 3, ... add up to ERROR; E. Paulson, "A
sequential procedure for selecting the population with the largest mean from k normal populations", Annals of
Mathematical Statistics 35, 1964, is the first of such procedures). An eliminated case is judged at the confidence of
the look of its last launch, and comes back if later launches of the others leave it within that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.numbers import only_ranked, same_work
from parabench.analysis.stats.contrasts import SHARP_ENOUGH, fit
from parabench.analysis.stats.quantiles import Numbers
from parabench.store.record import FIRST_BLOCK

# How often the fastest may be eliminated.
ERROR = 0.05
# One launch does not tell how launches differ.
FIRST_LOOK = 2


@dataclass(frozen=True)
class Exit:
    """An eliminated case: how much slower than the best it is, as a fraction, and at least is."""

    case_id: str
    slower: float
    at_least: float


@dataclass(frozen=True)
class Look:
    """The state of a race after `block`, `seconds` of launches after its start.

    `racing` are the cases that may be the fastest, the best first; `left` were eliminated at this look.
    """

    block: int
    seconds: float
    racing: tuple[str, ...]
    left: tuple[Exit, ...]
    half_width: float | None

    @property
    def decided(self) -> bool:
        """Whether another repetition could not settle anything."""
        return len(self.racing) < 2 or (self.half_width is not None and self.half_width <= SHARP_ENOUGH)


def exits(looks: Sequence[Look]) -> dict[str, tuple[Look, Exit]]:
    """Return for each eliminated case the look at which it left, the last one if it came back."""
    left = {each.case_id: (look, each) for look in looks for each in look.left}
    return {case: found for case, found in left.items() if case not in looks[-1].racing}


def race_note(looks: Sequence[Look]) -> list[str]:
    """Return when configurations were eliminated, and by which bound: 'Left the race: 11 configurations by block 3,
    24% or more behind.'"""
    left = list(exits(looks).values())
    if not left:
        return []
    last, least = max(look.block + 1 for look, _ in left), min(each.at_least for _, each in left)
    some = format.count(len(left), "configuration")
    return [f"Left the race: {some} by block {last}, {format.percent(least)} or more behind."]


def confidence_of(look: int) -> float:
    """Return the confidence at which a case is eliminated at that look, the second or a later one."""
    return 1 - ERROR / (look * (look - 1))


def standings(launches: pd.DataFrame) -> Iterator[Look]:
    """Yield the last look at each workload of a launch table that has one, without those that left."""
    seconds = seconds_at(launches)
    for _, of_work in same_work(launches[launches["repetition"] >= FIRST_BLOCK]):
        own, blocks = _raced(only_ranked(of_work[of_work["timed"]]))
        if len(blocks) >= FIRST_LOOK:
            yield _look(own, blocks[-1], seconds, ())


def race(own: pd.DataFrame, seconds: Mapping[int, float]) -> tuple[Look, ...]:
    """Return the looks at the launches of one workload; `seconds` has the time at which each repetition ended."""
    own, blocks = _raced(own)
    looks: list[Look] = []
    for block in blocks[FIRST_LOOK - 1 :]:
        before = looks[-1].racing if looks else tuple(own["case"].unique())
        looks.append(_look(own[own["repetition"] <= block], block, seconds, before))
    return tuple(looks)


def _raced(own: pd.DataFrame) -> tuple[pd.DataFrame, list[int]]:
    """Return the launches that cases shared, or all if none is shared, and their repetitions."""
    shared = own["in_turns"].astype(bool)
    own = own[shared] if shared.any() else own
    return own, sorted({int(block) for block in own["repetition"]})


def confidences(own: pd.DataFrame, cases: Iterable[str]) -> Numbers:
    """Return the confidence at which each of these cases is eliminated: that of the look of its last launch."""
    look = own["repetition"].rank(method="dense").groupby(own["case"]).max().clip(lower=FIRST_LOOK)
    return np.array([confidence_of(int(look[case])) for case in cases])


def _look(own: pd.DataFrame, block: int, seconds: Mapping[int, float], before: Collection[str]) -> Look:
    """Compare cases by the launches up to `block`; `before` are those that may leave."""
    effects = fit(own)
    best, *_ = effects.connected()
    confidence, behind = confidences(own, effects.cases), effects.behind(best)
    # A case that is not connected with the best is not known to be slower.
    racing = (*effects.indistinguishable(best, confidence), *behind.index[behind.isna()])
    sure, wide = effects.best_half_widths(best, confidence), effects.best_half_widths(best)
    left = (case for case in before if case not in racing)
    return Look(
        block,
        seconds[block],
        racing,
        tuple(Exit(case, math.expm1(behind[case]), math.expm1(behind[case] - sure[case])) for case in left),
        format.number_or_none(math.expm1(wide[list(racing)].max())),
    )


def seconds_at(launches: pd.DataFrame) -> dict[int, float]:
    """Return for each repetition how long all launches until its end took."""
    took = launches.groupby("repetition")["wall_s"].sum().cumsum()
    return {int(str(block)): float(seconds) for block, seconds in took.items()}
