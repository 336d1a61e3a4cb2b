"""`run --until-decided`: the configurations that another repetition is worth launching for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from parabench.analysis.ranking.ranking import Ranking, answers
from parabench.analysis.stats.contrasts import MOST_BLOCKS, SHARP_ENOUGH, fit
from parabench.store.record import FIRST_BLOCK

# With fewer blocks no number of blocks is known to be too few.
FEWEST_BLOCKS = 5


class Undecided(NamedTuple):
    """The `cases` of the next repetition; empty if there is none.

    About `more_blocks` would make the sets sharp; `None` if that is unknown. `too_noisy` are the headings of workloads
    that MOST_BLOCKS would hardly decide.
    """

    cases: tuple[str, ...]
    more_blocks: int | None
    too_noisy: tuple[str, ...]


def candidates(launches: pd.DataFrame, patient: bool = False, known: Sequence[Ranking] | None = None) -> Undecided:
    """Return what is still open in a launch table; `known` are its answers by step time, if they are known.

    These are the best and all that may equal it, while their set is wider than SHARP_ENOUGH; and, in the first
    repetitions, those that no common one connects with it. If `patient`, MOST_BLOCKS is the only limit.
    """
    # Blocks whose launches all failed count too: they must not go on forever.
    begun = blocks_begun(launches)
    cases: list[str] = []
    more: list[int | None] = []
    too_noisy: list[str] = []
    good = launches[launches["timed"]]
    for answer in answers(launches) if known is None else known:
        # A common repetition connects configurations that are not compared, unless they fail again and again.
        unconnected = answer.not_compared if begun < FEWEST_BLOCKS else ()
        wide = answer.tied and (answer.more_blocks is not None or not answer.decided)
        if not unconnected and not wide:
            continue
        if begun >= MOST_BLOCKS or (not patient and answer.decided and _hopeless(good, answer)):
            too_noisy.append(answer.heading)
        else:
            best = () if answer.best is None else (answer.best,)
            cases += [each.case_id for each in (*best, *answer.tied, *unconnected)]
            more.append(None if unconnected else answer.more_blocks)
    numbers = [blocks for blocks in more if blocks is not None]
    return Undecided(tuple(cases), max(numbers) if len(numbers) == len(more) > 0 else None, tuple(too_noisy))


def blocks_begun(launches: pd.DataFrame) -> int:
    """Return how many repetitions have a launch."""
    return int(launches[launches["repetition"] >= FIRST_BLOCK]["repetition"].nunique())


def block_seconds(launches: pd.DataFrame, cases: tuple[str, ...]) -> float:
    """Return how long a repetition of these cases takes at most: each as long as its longest launch so far."""
    own = launches[(launches["repetition"] >= FIRST_BLOCK) & launches["case"].isin(cases)]
    return float(own.groupby("case")["wall_s"].max().sum())


def _hopeless(good: pd.DataFrame, answer: Ranking) -> bool:
    """Return whether MOST_BLOCKS would hardly be enough, even with the least noise that the launches allow."""
    good = good[good["case"].isin([candidate.case_id for candidate in answer.candidates])]
    if blocks_begun(good) < FEWEST_BLOCKS:
        return False
    return fit(good).blocks_for(math.log1p(SHARP_ENOUGH), at_least=True) > MOST_BLOCKS
