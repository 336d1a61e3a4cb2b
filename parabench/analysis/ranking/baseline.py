"""What communication could cost at most: the fastest's step against one with no exchange at all."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from parabench.analysis.stats.block_model import fit
from parabench.plan.case import MEANS, fields_of
from parabench.strategies import Rule, entry_of

# Of the cases without exchange, only one that computes in the same way says anything about the fastest.
SAME = ("world_size", "threads", "grad_accumulation", *fields_of(MEANS))


@dataclass(frozen=True)
class NoCommBaseline:
    """A step of `label`, whose ranks exchange nothing, against the fastest's.

    `share` is what the fastest's step takes longer, as a fraction of that step; `low` to `high` its 95 % interval, None
    where too few launches give none. `bound`: the rest of the step is the same arithmetic, so that `share` is what
    communication costs at most. Not so where layers or the optimizer's work are split too.
    """

    case_id: str
    label: str
    strategy: str
    step_time_s: float
    share: float
    low: float | None
    high: float | None
    bound: bool


def no_comm_baseline(launches: pd.DataFrame, cases: pd.DataFrame, best: str) -> NoCommBaseline | None:
    """Against the case `best`; None where none without exchange was measured at its world size and options.

    `launches` are those that count, of one work; `cases` the same work's table, indexed by case id.
    """
    own = cases.loc[best]
    silent = [entry_of(str(strategy)).rule is Rule.FIRST_LOSS for strategy in cases["strategy"]]
    alike = (cases[list(SAME)] == own[list(SAME)]).all(axis="columns") & (cases["world_size"] > 1)
    found = cases[pd.Series(silent, index=cases.index) & alike & cases["step_time_s"].notna()]
    if found.empty:
        return None
    case = str(found["step_time_s"].astype(float).idxmin())
    effects = fit(launches[launches["case_id"].isin((case, best))])
    difference = effects.means[case] - effects.means[best]
    width = effects.half_width(case, best)
    strategy = str(cases.loc[case, "strategy"])
    entry = entry_of(str(own["strategy"]))
    return NoCommBaseline(
        case_id=case,
        label=str(cases.loc[case, "label"]),
        strategy=strategy,
        step_time_s=cases["step_time_s"].astype(float).to_dict()[case],
        share=-math.expm1(difference),
        low=-math.expm1(difference + width) if math.isfinite(width) else None,
        high=-math.expm1(difference - width) if math.isfinite(width) else None,
        bound=entry.local_forward and entry.splits == entry_of(strategy).splits,
    )
