"""What communication could cost at most: the fastest's step against one with no exchange at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis.stats.block_model import fit
from parabench.analysis.text import format
from parabench.plan.case import MEANS, fields_of
from parabench.strategies import Rule, entry_of

# Of the cases without exchange, only one that computes in the same way says anything about the fastest.
SAME = ("world_size", "threads", "grad_accumulation", *fields_of(MEANS))


@dataclass(frozen=True)
class NoCommBaseline:
    """Compare a step of `label`, whose ranks exchange nothing, with the fastest's.

    `share` is the time that the fastest's step takes longer, as a fraction of that step; None if no launch or
    repetition that counts connects the two. `low` to `high` is its 95 % interval, None with too few launches. `bound`:
    the rest of the step is the same arithmetic, so that communication costs `share` at most. It is False if layers or
    the optimizer's work are split too.
    """

    case_id: str
    label: str
    strategy: str
    step_time_s: float
    share: float | None
    low: float | None
    high: float | None
    bound: bool


def no_comm_baseline(
    launches: pd.DataFrame, cases: Mapping[str, Mapping[str, Any]], best: str
) -> NoCommBaseline | None:
    """Against the case `best`; None where none without exchange was measured at its world size and options.

    `launches` are those that count, of one work; `cases` the rows of the same work's case table by id.
    """
    own = cases[best]
    found = [
        (row["step_time_s"], case)
        for case, row in cases.items()
        if entry_of(row["strategy"]).rule is Rule.FIRST_LOSS
        and row["world_size"] > 1
        and all(row[name] == own[name] for name in SAME)
        and format.known(row["step_time_s"])
    ]
    if not found:
        return None
    step_time_s, case = min(found)
    effects = fit(launches[np.isin(launches["case"], (case, best))])
    difference = float(effects.behind(best)[effects.cases.index(case)])
    width = effects.half_width(case, best)
    strategy = cases[case]["strategy"]
    entry = entry_of(own["strategy"])
    return NoCommBaseline(
        case_id=case,
        label=cases[case]["label"],
        strategy=strategy,
        step_time_s=step_time_s,
        share=format.number_or_none(-math.expm1(difference)),
        low=-math.expm1(difference + width) if math.isfinite(width) else None,
        high=-math.expm1(difference - width) if math.isfinite(width) else None,
        bound=entry.local_forward and entry.splits == entry_of(strategy).splits,
    )
