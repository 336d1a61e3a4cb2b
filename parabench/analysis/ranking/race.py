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
from collections.abc import Collection, Iterable

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.answer import Row
from parabench.analysis.numbers import only_ranked, same_work
from parabench.analysis.stats.contrasts import MOST_REPETITIONS, SHARP_ENOUGH, Effects, Numbers, fit
from parabench.store.record import FIRST_REPETITION

# How often the fastest may be eliminated.
ERROR = 0.05
# The noise between launches is unknown after one launch.
FIRST_LOOK = 2
# With fewer, the number of repetitions that are needed is uncertain, and a failed case may succeed in the next one.
FEWEST_REPETITIONS = 5

# The rows of one workload by table.
Rows = dict[str, list[Row]]


def confidences(launches: pd.DataFrame, cases: Iterable[str]) -> Numbers:
    """Return the confidence level for eliminating each case: the level of the look after its last launch."""
    looks = launches["repetition"].rank(method="dense").groupby(launches["case"]).max().clip(lower=FIRST_LOOK)
    return np.array([1 - ERROR / (look * (look - 1)) for look in map(looks.__getitem__, cases)])


def race(launches: pd.DataFrame, seconds: pd.Series[float]) -> Rows:
    """Return the rows of the tables `race` and `eliminated` from the launches of one workload.

    `seconds` are the end times of repetitions: the duration of all launches until then.
    """
    launches = _in_race(launches, raced=True)
    looks: list[Row] = []
    eliminated: list[Row] = []
    racing: Collection[str] = launches["case"].unique().tolist()
    for repetition in sorted(launches["repetition"].unique().tolist())[FIRST_LOOK - 1 :]:
        until = launches[launches["repetition"] <= repetition]
        effects = fit(until)
        before, (racing, half_width) = racing, _look(until, effects)
        look = {"repetition": repetition, "seconds": float(seconds[repetition])}
        looks.append(look | {"racing": tuple(racing), "half_width": half_width})
        if left := [case for case in before if case not in racing]:
            best = effects.connected()[0]
            behind = effects.behind(best)
            least = behind - effects.best_half_widths(best, confidences(until, effects.cases))
            for case in left:
                sizes = {"slower": math.expm1(behind[case]), "at_least": math.expm1(least[case])}
                eliminated.append({"repetition": repetition, "case_id": case} | sizes)
    return {"race": looks, "eliminated": eliminated}


def exits(rows: Rows) -> dict[str, Row]:
    """Return {case id: its last row in `eliminated`} of the cases that are eliminated at the end of the race."""
    racing = rows["race"][-1]["racing"] if rows["race"] else ()
    return {row["case_id"]: row for row in rows["eliminated"] if row["case_id"] not in racing}


def undecided(launches: pd.DataFrame, raced: bool, patient: bool = False) -> tuple[tuple[str, ...], float | None, bool]:
    """Return the configurations that another repetition should launch, in all workloads of a launch table.

    The limit of racing is time; otherwise it is MOST_REPETITIONS, and unless `patient` also the noise.

    Returns:
        The ids, their widest half-width if known, and whether a workload is too noisy.
    """
    # Repetitions whose launches all failed count, too. Otherwise they could go on forever.
    begun = launches.loc[launches["repetition"] >= FIRST_REPETITION, "repetition"].nunique()
    early = begun < FEWEST_REPETITIONS
    cases: list[str] = []
    widths: list[float | None] = []
    too_noisy = False
    for _, of_work in same_work(launches[launches["timed"]]):
        own = _in_race(only_ranked(of_work), raced)
        if not len(own):
            continue
        effects = fit(own)
        racing, half_width = _look(own, effects)
        if not early:  # a common repetition connects cases, unless they fail again and again
            racing = [case for case in racing if case in effects.connected()]
        if len(racing) < 2 or (half_width is not None and half_width <= SHARP_ENOUGH):
            continue
        needed = 0
        if not (early or patient) and effects.df >= 1:
            needed = effects.blocks_for(math.log1p(SHARP_ENOUGH), racing, at_least=True)
        if not raced and max(begun + 1, needed) > MOST_REPETITIONS:
            too_noisy = True
        else:
            cases += racing
            widths.append(half_width)
    known = [width for width in widths if width is not None]
    return tuple(cases), max(known) if len(known) == len(widths) > 0 else None, too_noisy


def next_seconds(launches: pd.DataFrame, cases: Collection[str]) -> float:
    """Return the expected seconds of another repetition of these cases: the time of their launches in the last one.

    A shared launch takes the same time with fewer cases.
    """
    last = launches[launches["repetition"] == launches["repetition"].max()]
    return float(last.loc[last["in_turns"] | last["case"].isin(cases), "wall_s"].sum())


def _in_race(launches: pd.DataFrame, raced: bool) -> pd.DataFrame:
    """Return the launches of one workload that decide: in racing only shared launches, if there are any."""
    shared = launches["in_turns"].astype(bool)
    return launches[shared] if raced and shared.any() else launches


def _look(launches: pd.DataFrame, effects: Effects) -> tuple[list[str], float | None]:
    """Return the cases that may be the fastest, the best first, and the widest half-width of their comparisons."""
    best = effects.connected()[0]
    behind = effects.behind(best)
    # Cases that no launch connects with the best may be the fastest, too.
    near = effects.indistinguishable(best, confidences(launches, effects.cases))
    racing = [*near, *behind.index[behind.isna()]]
    return racing, format.number_or_none(math.expm1(effects.best_half_widths(best)[racing].max()))
