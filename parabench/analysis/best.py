"""The sweet spot: which configurations cannot be told apart from the fastest."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pandas as pd

from parabench.analysis import words
from parabench.analysis.answer import SHARP_ENOUGH, Answer, Candidate
from parabench.analysis.effects import Effects, fit
from parabench.analysis.frames import case_table, launch_table, ranked, same_work
from parabench.analysis.session import select_session
from parabench.record import REFERENCE_BLOCK
from parabench.store import Results

CONFIDENCE = 0.95


def sweet_spots(results: Results, session: str | int | None = None) -> tuple[Answer, ...]:
    """The sweet spots of a session (default: the newest), one for each work, at least one.

    Raises UsageError for no such session.
    """
    return answers(launch_table(results, select_session(results, session)))


def answers(launches: pd.DataFrame) -> tuple[Answer, ...]:
    """The same from a launch table."""
    own = launches[launches["block"] != REFERENCE_BLOCK]
    if own.empty:
        return (_nothing({}, own, "No launch was recorded, so there is no fastest configuration."),)
    groups = same_work(own)
    works = [work for work, _ in groups]
    return tuple(
        replace(_answer(work, group), heading=_heading(work, works), unverified=_unverified(group))
        for work, group in groups
    )


def _unverified(own: pd.DataFrame) -> tuple[str, ...]:
    good = ranked(own)
    return tuple(dict.fromkeys(good.loc[~good["verified"].astype(bool), "label"]))


def _heading(work: dict[str, Any], works: list[dict[str, Any]]) -> str:
    """What sets this work apart: 'gpt-nano, global batch 16'."""
    speaking = ("model", "data", "dtype", "device")  # their values need no name before them
    return ", ".join(
        str(value) if name in speaking else f"{name.replace('_', ' ')} {value}"
        for name, value in work.items()
        if len({str(other[name]) for other in works}) > 1
    )


def _answer(work: dict[str, Any], own: pd.DataFrame) -> Answer:
    good = ranked(own)
    if good.empty:
        counts = own["status"].value_counts(sort=False)
        how = ", ".join(f"{n} {status}" for status, n in counts.items())
        return _nothing(
            work, own, f"No launch ended well with a latency, so there is no fastest configuration ({how})."
        )
    effects = fit(good)
    cases = case_table(own).set_index("case_id")
    order = sorted(effects.cases, key=lambda case: effects.means[case])
    first = order[0]
    candidates = {case: _candidate(case, first, effects, cases) for case in order}
    why_not = _why_not(effects)
    near = order if why_not else effects.indistinguishable(first, CONFIDENCE)
    equals = tuple(candidates[case] for case in near if case != first)
    slower = tuple(candidates[case] for case in order if case not in near)
    half_width, more = None, None
    if not why_not:
        widths = [effects.half_width(case, first, CONFIDENCE) for case in (near if equals else order) if case != first]
        widest = max(widths)
        half_width = words.number_or_none(math.expm1(widest))
        if equals and (half_width is None or half_width > SHARP_ENOUGH):
            # At least one: a missing launch can make the interval wide where the plan's blocks would have
            # been enough.
            more = max(1, effects.blocks_for(math.log1p(SHARP_ENOUGH), CONFIDENCE) - effects.n_blocks)
    return Answer(
        heading="",
        work=work,
        statistic=str(own["statistic"].iloc[0]),
        blocks=effects.n_blocks,
        launches=len(good),
        best=candidates[first],
        equals=equals,
        slower=slower,
        default=_default(candidates[first], cases, candidates),
        half_width=half_width,
        more_blocks=more,
        decided=not why_not,
        why_not=why_not,
    )


def _why_not(effects: Effects) -> str | None:
    if len(effects.cases) == 1:
        return "Only one configuration has a result, so there is nothing to rank."
    if effects.n_blocks < 2:
        return "One block cannot tell a difference from noise: run at least 2 blocks, better 3 or more."
    if effects.df < 1:
        return "Too few launches ended well to tell a difference from noise: run more blocks."
    return None


def _candidate(case: str, first: str, effects: Effects, cases: pd.DataFrame) -> Candidate:
    row: dict[Any, Any] = cases.loc[case].to_dict()
    latency = math.exp(effects.means[case])
    margin = effects.own_half_width(case, CONFIDENCE)
    return Candidate(
        case_id=case,
        label=str(row["label"]),
        latency_s=latency,
        plus_minus_s=words.number_or_none(latency * math.expm1(margin)) if math.isfinite(margin) else None,
        tokens_per_s=float(row["global_batch"]) * float(row["seq_len"]) / latency,
        slower=math.expm1(effects.means[case] - effects.means[first]),
        launches=effects.n[case],
    )


def _default(best_one: Candidate, cases: pd.DataFrame, candidates: dict[str, Candidate]) -> Candidate | None:
    world_size = cases.loc[best_one.case_id, "world_size"]
    default = cases[
        (cases["strategy"] == "ddp")
        & (cases["algorithm"] == "native")
        & cases["bucket_mib"].isna()
        & (cases["world_size"] == world_size)
    ]
    return next((candidates[str(case)] for case in default.index if case in candidates), None)


def _nothing(work: dict[str, Any], own: pd.DataFrame, why: str) -> Answer:
    return Answer(
        heading="",
        work=work,
        statistic=str(own["statistic"].iloc[0]) if len(own) else words.UNKNOWN,
        blocks=0,
        launches=0,
        best=None,
        equals=(),
        slower=(),
        default=None,
        half_width=None,
        more_blocks=None,
        decided=False,
        why_not=why,
    )
