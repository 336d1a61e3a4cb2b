"""What it costs that two sides were measured one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import pandas as pd
from scipy import stats

from parabench.analysis.session import SessionData
from parabench.analysis.stats.block_model import Effects, fit
from parabench.analysis.stats.confidence import CONFIDENCE
from parabench.analysis.stats.ttest import LEAST_SD, Test, logs_of
from parabench.analysis.stats.tukey import studentized_range
from parabench.analysis.text import format
from parabench.store.record import Finding


def unpaired_finding(base: SessionData, candidate: SessionData, tests: Mapping[str, Test]) -> Iterator[Finding]:
    """The finding that no launch of one side has a partner in the other, and what partners would have ruled out.

    A difference of partners has the noise that is left when what a block's launches share is taken away, twice: it is
    read from the residuals of case + block in each side.
    """
    message = (
        "The two sides were measured one after the other: whatever else changed in between (clocks, temperature, "
        "neighbours) counts as the candidate's doing, and no number of launches shows it."
    )
    effects = [_effects(side, tests) for side in (base, candidate)]
    moved = max(_moved(side, tests, fitted) for side, fitted in zip((base, candidate), effects, strict=True))
    if moved > 0:
        message += f" Within one of these sessions all cases together moved by {format.percent(math.expm1(moved))}."
    interleaved = _interleaved(base, candidate, tests, effects)
    if interleaved is not None and interleaved <= 1:
        now = math.expm1(min(50.0, median(test.upper - test.difference for test in tests.values())))
        if interleaved < now:
            message += (
                f" It also costs sharpness: in a typical case the upper bound lies {format.percent(now)} above the "
                f"estimate; interleaved, as many launches of this spread would put it {format.percent(interleaved)} "
                "above."
            )
    yield Finding("unpaired", message, "Measure both interleaved with `parabench ab`.")


def _effects(side: SessionData, tests: Mapping[str, Test]) -> Effects | None:
    """Case + block of the cases that were judged; None where the spread within blocks is unknown."""
    good = side.good[side.good["case_id"].isin(tests)]
    effects = fit(good) if len(good) else None
    return effects if effects is not None and effects.df >= 1 else None


def _moved(side: SessionData, tests: Mapping[str, Test], effects: Effects | None) -> float:
    """How far a session's blocks lie apart on the log scale, mean over the cases that were judged.

    0 where that is one case, which moves alone, and where the noise of launches explains it: Tukey's range of as many
    means of blocks, each of as many launches as the block that has fewest.
    """
    good = side.good[side.good["case_id"].isin(tests)]
    if effects is None or good["case_id"].nunique() < 2 or good["block"].nunique() < 2:
        return 0.0
    logs = pd.Series(logs_of(good["number_s"]), index=good.index)
    blocks = (logs - logs.groupby(good["case_id"]).transform("mean")).groupby(good["block"])
    levels = blocks.mean()
    moved = float(levels.max() - levels.min())
    error = max(effects.residual, LEAST_SD) / math.sqrt(int(blocks.size().min()))
    return moved if moved > studentized_range(len(levels), effects.df, CONFIDENCE) * error else 0.0


def _interleaved(
    base: SessionData, candidate: SessionData, tests: Mapping[str, Test], effects: Sequence[Effects | None]
) -> float | None:
    """How far above the estimate partners would put the upper bound in a typical case; None where the spread within
    blocks is unknown."""
    variances = [max(each.residual**2, LEAST_SD**2) for each in effects if each is not None]
    if len(variances) < 2:
        return None
    counts = [side.good["case_id"].value_counts() for side in (base, candidate)]
    n = int(median(min(int(count.get(case, 0)) for count in counts) for case in tests))
    return math.expm1(min(50.0, float(stats.t.ppf(CONFIDENCE, n - 1)) * math.sqrt(sum(variances) / n)))
