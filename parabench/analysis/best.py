"""The sweet spot: which configurations cannot be told apart from the fastest."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pandas as pd

from parabench.analysis import words
from parabench.analysis.answer import SHARP_ENOUGH, Answer, Candidate
from parabench.analysis.effects import Effects, fit
from parabench.analysis.frames import case_table, counted, launch_table, same_work
from parabench.analysis.headroom import headroom
from parabench.analysis.session import select_session
from parabench.case import DEFAULTS, NAMED
from parabench.family import Rule, entry_of
from parabench.record import FIRST_BLOCK
from parabench.store import Results

CONFIDENCE = 0.95


def sweet_spots(results: Results, session: str | int | None = None) -> tuple[Answer, ...]:
    """The sweet spots of a session (default: the newest), one for each work, at least one.

    Raises UsageError for no such session.
    """
    return answers(launch_table(results, select_session(results, session)))


def answers(launches: pd.DataFrame) -> tuple[Answer, ...]:
    """The same from a launch table."""
    own = launches[launches["block"] >= FIRST_BLOCK]
    if own.empty:
        return (_nothing({}, own, "No launch was recorded, so there is no fastest configuration."),)
    groups = same_work(own)
    works = [work for work, _ in groups]
    shares = _shares(groups)
    return tuple(
        replace(_answer(work, group), heading=_heading(work, works, share), unverified=_unverified(group))
        for (work, group), share in zip(groups, shares, strict=True)
    )


def _ranked(good: pd.DataFrame) -> pd.DataFrame:
    """Without what is no answer, such as training that exchanges nothing."""
    return good[good["strategy"].map(lambda strategy: entry_of(str(strategy)).ranked).astype(bool)]


def _unverified(own: pd.DataFrame) -> tuple[str, ...]:
    good = _ranked(counted(own))
    return tuple(dict.fromkeys(good.loc[~good["verified"].astype(bool), "label"]))


def _shares(groups: list[tuple[dict[str, Any], pd.DataFrame]]) -> list[str]:
    """What to add to the headings of works that one world size did and another did not, as in weak scaling:
    '4 ranks, 8 each'."""
    sizes = [set(group["world_size"]) for _, group in groups]
    said = []
    for (work, _), own in zip(groups, sizes, strict=True):
        n = max(own)
        alone = len(own) == 1 and len(set().union(*sizes)) > 1
        said.append(f"{words.count(n, 'rank')}, {work['global_batch'] / n:g} each" if alone else "")
    return said


def _heading(work: dict[str, Any], works: list[dict[str, Any]], share: str) -> str:
    """What sets this work apart: 'gpt-nano, global batch 16'; in weak scaling 'global batch 16 (2 ranks, 8 each)'."""
    speaking = ("model", "data", "dtype", "device")  # their values need no name before them
    said = ", ".join(
        str(value) if name in speaking else f"{name.replace('_', ' ')} {value or 'of bytes'}"
        for name, value in work.items()
        if len({str(other[name]) for other in works}) > 1
    )
    return f"{said} ({share})" if said and share else said


def _answer(work: dict[str, Any], own: pd.DataFrame) -> Answer:
    every = counted(own)
    good = _ranked(every)
    if good.empty and len(every):
        labels = words.listed(dict.fromkeys(every["label"]), most=3)
        return _nothing(work, own, f"Only {labels} ended well, which is headroom and no answer.")
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
    fields = cases.loc[order, list(DEFAULTS)].astype(str)
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
        differing=tuple(name for name in DEFAULTS if fields[name].nunique() > 1),
        headroom=headroom(every, cases, first, CONFIDENCE),
        same_training=next((candidates[case] for case in order if not candidates[case].other_training), None)
        if candidates[first].other_training
        else None,
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
        strategy=str(row["strategy"]),
        latency_s=latency,
        plus_minus_s=words.number_or_none(latency * math.expm1(margin)) if math.isfinite(margin) else None,
        tokens_per_s=float(row["global_batch"]) * float(row["seq_len"]) / latency,
        unit=words.unit_of(int(row["seq_len"])),
        slower=math.expm1(effects.means[case] - effects.means[first]),
        launches=effects.n[case],
        other_training=entry_of(str(row["strategy"])).rule is Rule.APPLIED_ONCE,
        staleness_mean=words.number_or_none(row["staleness_mean"]),
        staleness_max=words.number_or_none(row["staleness_max"]),
    )


def _default(best_one: Candidate, cases: pd.DataFrame, candidates: dict[str, Candidate]) -> Candidate | None:
    world_size = cases.loc[best_one.case_id, "world_size"]
    usual = {"strategy": "ddp", "algorithm": "native", "bucket_mib": None, **{name: DEFAULTS[name] for name in NAMED}}
    is_usual = pd.Series(cases["world_size"] == world_size)
    for name, value in usual.items():
        is_usual &= cases[name].isna() if value is None else cases[name] == value
    return next((candidates[str(case)] for case in cases.index[is_usual] if case in candidates), None)


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
