"""What another block is worth launching for: the configurations that may still be the fastest, or equal it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from parabench.analysis.ranking.answer import Answer
from parabench.analysis.ranking.ranking import answers
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.block_model import MOST_BLOCKS, SHARP_ENOUGH, fit
from parabench.analysis.stats.quantiles import Numbers
from parabench.store.record import FIRST_BLOCK

# Of fewer blocks nobody can say that any number of them is too few.
FEWEST_BLOCKS = 5
# A median polish hardly changes after the third round.
POLISHINGS = 5
# How much of the launches a median absolute deviation uses, of normal noise, where a standard deviation uses all:
# Rousseeuw and Croux, "Alternatives to the median absolute deviation", 1993.
MAD_EFFICIENCY = 0.37
# Three quarters of normal deviates are below it, so that half are no farther than it from 0.
QUARTILE = 0.6744897501960817


class Undecided(NamedTuple):
    """`cases` are the ids that the next block needs, of every work that is undecided; empty: run no more.

    `more_blocks` is about how many blocks would make the sets sharp, None where that is not known yet. `too_noisy` are
    the headings of works that MOST_BLOCKS blocks would hardly decide, or did not; a session of one work has the heading
    ''.
    """

    cases: tuple[str, ...]
    more_blocks: int | None
    too_noisy: tuple[str, ...]


def candidates(launches: pd.DataFrame, patient: bool = False) -> Undecided:
    """The rule by which `run --until-decided` goes on, from a launch table: the best and all that cannot be told
    apart from it, while their set is wider than SHARP_ENOUGH, and in the first repetitions those that no common one
    connects with it. It is asked again after every block. When `patient`, only
    MOST_BLOCKS blocks are enough to give a work up, however noisy it looks."""
    return candidates_of_spots(answers(launches), launches, patient)


def candidates_of_spots(spots: Sequence[Answer], launches: pd.DataFrame, patient: bool = False) -> Undecided:
    """The same where the sweet spots of the launches' step times are known already."""
    # Blocks of launches that all failed count too: they must not go on for ever.
    begun = blocks_begun(launches)
    cases: list[str] = []
    more: list[int | None] = []
    too_noisy: list[str] = []
    good = launches[launches["timed"]]
    for answer in spots:
        # A common repetition connects configurations that are not compared, unless they fail again and again.
        unconnected = answer.not_compared if begun < FEWEST_BLOCKS else ()
        if not unconnected and not _is_undecided(answer):
            continue
        if begun >= MOST_BLOCKS or (not patient and answer.decided and _hopeless(good, answer)):
            too_noisy.append(answer.heading)
        else:
            best = () if answer.best is None else (answer.best,)
            cases += [each.case_id for each in (*best, *answer.tied, *unconnected)]
            more.append(None if unconnected else answer.more_blocks)
    known = [blocks for blocks in more if blocks is not None]
    return Undecided(tuple(cases), max(known) if len(known) == len(more) > 0 else None, tuple(too_noisy))


def blocks_begun(launches: pd.DataFrame) -> int:
    """How many blocks have a launch."""
    return len(set(launches[launches["repetition"] >= FIRST_BLOCK]["repetition"]))


def _is_undecided(answer: Answer) -> bool:
    """Whether more blocks could say more. Of a single configuration, or of none, they could not."""
    return bool(answer.tied) and (answer.more_blocks is not None or not answer.decided)


def _hopeless(good: pd.DataFrame, answer: Answer) -> bool:
    """Whether MOST_BLOCKS blocks would hardly be enough, not with the least noise either that the launches so far
    allow. A few slow launches make the usual estimate of the noise far too large, so a robust one decides, and none
    before FEWEST_BLOCKS blocks. It can err all the same: whoever gives a budget is not stopped by it."""
    assert answer.best is not None
    good = good[np.isin(good["case"], [candidate.case_id for candidate in answer.candidates])]
    if blocks_begun(good) < FEWEST_BLOCKS:
        return False
    effects = fit(good)
    least = replace(effects, residual=_least_noise(_residuals(good), effects.df))
    return least.blocks_for(math.log1p(SHARP_ENOUGH)) > MOST_BLOCKS


def _residuals(good: pd.DataFrame) -> Numbers:
    """What is left of log(number) when cases and blocks have given up their medians in turn, where there is another
    case in the block: the median polish of Tukey, "Exploratory Data Analysis", 1977, chapter 11."""
    logs = pd.DataFrame({name: good[name] for name in ("repetition", "case")} | {"log": np.log(good["step_s"])})
    left = logs.pivot(index="repetition", columns="case", values="log")
    left = left[left.count(axis=1) > 1]
    for _ in range(POLISHINGS):
        left = left.sub(left.median(axis=1), axis=0)
        left = left.sub(left.median())
    values: Numbers = left.to_numpy(dtype=float).ravel()
    known: Numbers = values[np.isfinite(values)]
    return known


def _least_noise(residuals: Numbers, df: int) -> float:
    """The lower bound of the noise of one launch, by its median absolute deviation.

    Its square is taken as chi-squared, of MAD_EFFICIENCY times the degrees of freedom. Residuals are smaller than the
    noise, as the fit follows it: sqrt(n / df) makes up for that.
    """
    from scipy.special import gammaincinv  # a fifth of a second that most sessions need not spend

    noise = _deviation(residuals) * math.sqrt(len(residuals) / df)
    worth = MAD_EFFICIENCY * df
    return noise * math.sqrt(worth / (2 * float(gammaincinv(worth / 2, CONFIDENCE))))


def block_seconds(launches: pd.DataFrame, cases: tuple[str, ...]) -> float:
    """How long a block of these cases takes at most: each as long as its longest launch so far."""
    own = launches[(launches["repetition"] >= FIRST_BLOCK) & launches["case"].isin(cases)]
    return float(own.groupby("case")["wall_s"].max().sum())


def _deviation(residuals: Numbers) -> float:
    """The standard deviation of normal residuals by the median of their distances from the median."""
    return float(np.median(np.abs(residuals - np.median(residuals))) / QUARTILE)
