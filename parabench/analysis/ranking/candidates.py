"""Each configuration's numbers and place, and which of them is PyTorch's default."""

from __future__ import annotations

import math

import pandas as pd

from parabench.analysis.ranking.answer import Candidate
from parabench.analysis.ranking.objectives import STEP, Objective
from parabench.analysis.stats.block_model import Effects, fit
from parabench.analysis.text import format
from parabench.plan.case import DEFAULTS, LABELLED
from parabench.strategies import Rule, entry_of

_SHOWN = ("label", "strategy", "global_batch", "seq_len", "staleness_mean", "staleness_max")


def candidates_of(
    order: list[str],
    objective: Objective,
    effects: Effects,
    good: pd.DataFrame,
    cases: pd.DataFrame,
    confidence: float,
) -> dict[str, Candidate]:
    """Each case's place by id, in that `order`, the best first.

    `good` are the launches that `effects` was fitted to, `cases` the work's case table by id.
    """
    times = effects if objective is STEP else fit(good)
    seconds = cases["latency_s"].astype(float).to_dict()
    launches = {str(case): tuple(map(int, ids)) for case, ids in good.groupby("case_id")["launch_id"]}
    rows = cases.loc[order, list(_SHOWN)].to_dict("records")
    found = {}
    for case, row in zip(order, rows, strict=True):
        tokens, latency = float(row["global_batch"]) * float(row["seq_len"]), seconds[case]
        # What a step takes is the case's one step time, whatever the launches are ranked by.
        cost = {"number_s": latency, "token_s": latency / tokens}.get(objective.column, math.exp(effects.means[case]))
        margin, margin_s = (_margin(each, case, confidence) for each in (effects, times))
        value = objective.value(cost)
        found[case] = Candidate(
            case_id=case,
            label=str(row["label"]),
            strategy=str(row["strategy"]),
            value=value,
            plus_minus=None if margin is None else margin * value,
            latency_s=latency,
            plus_minus_s=None if margin_s is None else margin_s * latency,
            tokens_per_s=tokens / latency,
            unit=format.unit_of(int(row["seq_len"])),
            slower=math.expm1(effects.means[case] - effects.means[order[0]]),
            launches=effects.n[case],
            launch_ids=launches[case],
            other_training=entry_of(str(row["strategy"])).rule is Rule.APPLIED_ONCE,
            staleness_mean=format.number_or_none(row["staleness_mean"]),
            staleness_max=format.number_or_none(row["staleness_max"]),
        )
    return found


def _margin(effects: Effects, case: str, confidence: float) -> float | None:
    """The half-width of a case's number as a fraction of it; None where there is none."""
    margin = effects.own_half_width(case, confidence)
    return format.number_or_none(math.expm1(margin)) if math.isfinite(margin) else None


def default_of(first: str, cases: pd.DataFrame, candidates: dict[str, Candidate]) -> Candidate | None:
    """What PyTorch does when it is told nothing, at the world size and batch of the case `first`; None where it has no
    number."""
    alike = ("world_size", "global_batch")
    usual = {name: DEFAULTS[name] for name in ("strategy", "algorithm", "bucket_mib", *LABELLED)}
    is_usual = (cases[list(alike)] == cases.loc[first, list(alike)]).all(axis="columns")
    for name, value in usual.items():
        is_usual &= cases[name].isna() if value is None else cases[name] == value
    return next((candidates[str(case)] for case in cases.index[is_usual] if case in candidates), None)
