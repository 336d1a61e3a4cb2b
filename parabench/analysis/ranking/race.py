"""Racing and `run --until-decided`: the configurations that may still be the fastest after each repetition.

After each repetition, every case is compared with the best one, by all launches so far. This is a look. A case is
eliminated if it is slower than the best at a confidence level that rises from look to look. So the fastest is
eliminated in at most 5% of races, by Bonferroni's bound: the errors ERROR / (n (n - 1)) of looks n = 2, 3, ... add up
to ERROR. The first such procedure is by E. Paulson, "A sequential procedure for selecting the population with the
largest mean from k normal populations", Annals of Mathematical Statistics 35, 1964. An eliminated case is judged at the
confidence level of the look after its last launch. It comes back if later launches of the others bring it within the
bound.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.numbers import only_ranked, same_work
from parabench.analysis.stats.contrasts import MOST_BLOCKS, SHARP_ENOUGH, Effects, Numbers, fit
from parabench.store.record import FIRST_BLOCK

# How often the fastest may be eliminated.
ERROR = 0.05
# One launch does not tell how launches differ.
FIRST_LOOK = 2
# With fewer blocks, the number of blocks that are needed is uncertain, and a failed case may succeed in the next one.
FEWEST_BLOCKS = 5


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


@dataclass(frozen=True)
class Undecided:
    """The `cases` of the next repetition, empty if nothing is open, and their widest half-width, if known.

    `too_noisy`: a workload is left out, because MOST_BLOCKS repetitions would hardly decide it.
    """

    cases: tuple[str, ...]
    half_width: float | None
    too_noisy: bool


def exits(looks: Sequence[Look]) -> dict[str, tuple[Look, Exit]]:
    """Return the last look that eliminated each case, for cases that did not come back."""
    left = {each.case_id: (look, each) for look in looks for each in look.left}
    return {case: found for case, found in left.items() if case not in looks[-1].racing}


def race_note(looks: Sequence[Look]) -> list[str]:
    """Return 'Eliminated: 11 configurations by block 3, 24% or more slower.'"""
    left = list(exits(looks).values())
    if not left:
        return []
    last, least = max(look.block + 1 for look, _ in left), min(each.at_least for _, each in left)
    some = format.count(len(left), "configuration")
    return [f"Eliminated: {some} by block {last}, {format.percent(least)} or more slower."]


def confidence_of(look: int) -> float:
    """Return the confidence level of eliminations at a look, the second or a later one."""
    return 1 - ERROR / (look * (look - 1))


def confidences(own: pd.DataFrame, cases: Iterable[str]) -> Numbers:
    """Return the confidence level for eliminating each case, which is the level of the look after its last launch."""
    look = own["repetition"].rank(method="dense").groupby(own["case"]).max().clip(lower=FIRST_LOOK)
    return np.array([confidence_of(int(look[case])) for case in cases])


def race(own: pd.DataFrame, seconds: Mapping[int, float]) -> tuple[Look, ...]:
    """Return the looks at the launches of one workload; `seconds` are the end times of repetitions."""
    own = _in_race(own, raced=True)
    looks: list[Look] = []
    for block in sorted(own["repetition"].unique().tolist())[FIRST_LOOK - 1 :]:
        before = looks[-1].racing if looks else own["case"].unique().tolist()
        until = own[own["repetition"] <= block]
        looks.append(_look(until, fit(until), seconds[block], before))
    return tuple(looks)


def undecided(launches: pd.DataFrame, raced: bool, patient: bool = False) -> Undecided:
    """Return the configurations that another repetition should launch, in all workloads of a launch table.

    Racing itself is limited by time. Otherwise the limit is MOST_BLOCKS, and unless `patient` also the noise.
    """
    # Blocks whose launches all failed count, too. Otherwise they could go on forever.
    begun = launches.loc[launches["repetition"] >= FIRST_BLOCK, "repetition"].nunique()
    cases: list[str] = []
    widths: list[float | None] = []
    too_noisy, limit = False, math.log1p(SHARP_ENOUGH)
    for _, of_work in same_work(launches[launches["timed"]]):
        own = _in_race(only_ranked(of_work), raced)
        if not len(own):
            continue
        effects = fit(own)
        look, early = _look(own, effects, 0.0, ()), begun < FEWEST_BLOCKS
        if not early:  # a common repetition connects cases, unless they fail again and again
            look = replace(look, racing=tuple(case for case in look.racing if case in effects.connected()))
        if look.decided:
            continue
        needed = 0 if early or patient or effects.df < 1 else effects.blocks_for(limit, look.racing, at_least=True)
        if not raced and max(begun + 1, needed) > MOST_BLOCKS:
            too_noisy = True
        else:
            cases += look.racing
            widths.append(look.half_width)
    known = [width for width in widths if width is not None]
    return Undecided(tuple(cases), max(known) if len(known) == len(widths) > 0 else None, too_noisy)


def next_seconds(launches: pd.DataFrame, cases: Collection[str]) -> float:
    """Return the expected seconds of another repetition of these cases, from their launches in the last one. A shared
    launch takes the same time with fewer cases."""
    last = launches[launches["repetition"] == launches["repetition"].max()]
    return float(last.loc[last["in_turns"] | last["case"].isin(cases), "wall_s"].sum())


def seconds_at(launches: pd.DataFrame) -> dict[int, float]:
    """Return {repetition: seconds of all launches until its end}."""
    took = launches.groupby("repetition")["wall_s"].sum().cumsum()
    return {int(str(block)): float(seconds) for block, seconds in took.items()}


def _in_race(own: pd.DataFrame, raced: bool) -> pd.DataFrame:
    """Return the launches of one workload that decide: in racing those that cases shared, if any."""
    shared = own["in_turns"].astype(bool)
    return own[shared] if raced and shared.any() else own


def _look(own: pd.DataFrame, effects: Effects, seconds: float, before: Collection[str]) -> Look:
    """Compare cases by these launches; `before` are those that may leave."""
    best, *_ = effects.connected()
    confidence, behind = confidences(own, effects.cases), effects.behind(best)
    # A case that is not connected with the best is not known to be slower.
    racing = (*effects.indistinguishable(best, confidence), *behind.index[behind.isna()])
    sure, wide = effects.best_half_widths(best, confidence), effects.best_half_widths(best)
    left = (case for case in before if case not in racing)
    return Look(
        int(own["repetition"].max()),
        seconds,
        racing,
        tuple(Exit(case, math.expm1(behind[case]), math.expm1(behind[case] - sure[case])) for case in left),
        format.number_or_none(math.expm1(wide[list(racing)].max())),
    )
