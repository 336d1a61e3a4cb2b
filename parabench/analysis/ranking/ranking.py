"""The sweet spot: which configurations cannot be told apart from the fastest."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pandas as pd

from parabench.analysis.ranking.answer import Answer, Candidate
from parabench.analysis.ranking.baseline import no_comm_baseline
from parabench.analysis.ranking.bucket_curves import bucket_curves, members
from parabench.analysis.ranking.by_axis import check_axes, places
from parabench.analysis.ranking.objectives import STEP, Objective, basis, numbered, with_costs
from parabench.analysis.ranking.pareto import front
from parabench.analysis.session import SessionData
from parabench.analysis.stats.block_model import SHARP_ENOUGH, Effects, fit
from parabench.analysis.tables import case_table, same_work, valid_launches
from parabench.analysis.text import format
from parabench.analysis.text.links import with_links
from parabench.plan.case import DEFAULTS, LABELLED, Case
from parabench.store.record import FIRST_BLOCK, Status
from parabench.strategies import Rule, entry_of
from parabench.strategies.snippet import snippet

# What links are a reason for.
TIMED = ("step_time_s", "tokens_per_s")


def ranked(seen: SessionData, objective: Objective = STEP, by: Iterable[str] = ()) -> tuple[Answer, ...]:
    """The sweet spots of a session, one for each work, at least one.

    Raises UsageError for no launch with a number for the objective, or no such axis.
    """
    axes = check_axes(by)
    found = answers(numbered(seen, objective), objective, axes, seen.cases)
    return with_links(found, seen.results, seen.session, seen.launches) if objective.name in TIMED else found


def spots(seen: SessionData) -> tuple[Answer, ...]:
    """The same by step time, from what is known of a session; for `SessionData.once`."""
    return with_links(answers(seen.launches, cases=seen.cases), seen.results, seen.session, seen.launches)


def answers(
    launches: pd.DataFrame, objective: Objective = STEP, by: tuple[str, ...] = (), cases: pd.DataFrame | None = None
) -> tuple[Answer, ...]:
    """The same from a launch table; for joules it needs `objectives.numbered`. `cases` is its case table, if known."""
    launches = launches if objective.column in launches else with_costs(launches)
    own = launches[launches["block"] >= FIRST_BLOCK]
    if own.empty:
        return (_nothing({}, own, objective, "No launch was recorded, so there is no fastest configuration."),)
    groups = same_work(own, objective.work)
    table = (case_table(launches) if cases is None else cases).set_index("case_id")
    works = [work for work, _ in groups]
    shares = _shares(groups)
    return tuple(
        replace(
            _answer(work, group, table, objective, by),
            heading=_heading(work, works, share),
            unverified=_unverified(group),
        )
        for (work, group), share in zip(groups, shares, strict=True)
    )


def _ranked(good: pd.DataFrame) -> pd.DataFrame:
    """Without what is no answer, such as training that exchanges nothing."""
    return good[good["strategy"].map(lambda strategy: entry_of(str(strategy)).ranked).astype(bool)]


def _rankable(cases: dict[str, Case]) -> dict[str, Case]:
    return {at: case for at, case in cases.items() if entry_of(case.strategy).ranked}


def _unverified(own: pd.DataFrame) -> tuple[str, ...]:
    good = _ranked(valid_launches(own))
    return tuple(dict.fromkeys(good.loc[~good["verified"].astype(bool), "label"]))


def _shares(groups: list[tuple[dict[str, Any], pd.DataFrame]]) -> list[str]:
    """What to add to the headings of works that one world size did and another did not, as in weak scaling:
    '4 ranks, 8 each'."""
    sizes = [set(group["world_size"]) for _, group in groups]
    said = []
    for (work, _), own in zip(groups, sizes, strict=True):
        n = max(own)
        alone = len(own) == 1 and len(set().union(*sizes)) > 1
        whole = alone and "global_batch" in work  # where throughput is asked for, one work has several
        said.append(f"{format.count(n, 'rank')}, {work['global_batch'] / n:g} each" if whole else "")
    return said


def _heading(work: dict[str, Any], works: list[dict[str, Any]], share: str) -> str:
    """What sets this work apart: 'gpt-nano, global batch 16'; in weak scaling 'global batch 16 (2 ranks, 8 each)'."""
    speaking = ("model", "data", "precision", "device")  # their values need no name before them
    said = ", ".join(
        str(value) if name in speaking else f"{name.replace('_', ' ')} {value or 'of bytes'}"
        for name, value in work.items()
        if len({str(other[name]) for other in works}) > 1
    )
    return f"{said} ({share})" if said and share else said


def _answer(
    work: dict[str, Any], own: pd.DataFrame, table: pd.DataFrame, objective: Objective, by: tuple[str, ...]
) -> Answer:
    """Of one work: `own` are its launches, `table` the case table of all."""
    every = valid_launches(own)
    ranked = _ranked(every)
    if ranked.empty and len(every):
        labels = format.listed(dict.fromkeys(every["label"]), most=3)
        why = f"Only {labels} succeeded, which is a no-communication baseline and not ranked."
        return _nothing(work, own, objective, why)
    good = ranked[ranked[objective.column] > 0]
    if good.empty:
        return _nothing(work, own, objective, _no_number(own, ranked, objective))
    effects = fit(good, objective.column)
    cases = table[table.index.isin(own["case_id"])]
    configured = _configured(own)
    called = {str(case): str(label) for case, label in cases["label"].items()}
    order = sorted(effects.cases, key=lambda case: effects.means[case])
    first = order[0]
    candidates = _candidates(order, objective, effects, good, cases)
    candidates[first] = replace(candidates[first], code=snippet(configured[first]))
    why_not = _why_not(effects)
    fields = cases.loc[order, list(DEFAULTS)].astype(str)
    near = order if why_not else effects.indistinguishable(first)
    tied = tuple(candidates[case] for case in near if case != first)
    half_width, more = (None, None) if why_not else _sharpness(effects, first, near)
    return Answer(
        heading="",
        objective=objective.name,
        work=work,
        statistic=str(own["statistic"].iloc[0]),
        basis=basis(objective, good),
        blocks=effects.n_blocks,
        launches=len(good),
        best=candidates[first],
        tied=tied,
        slower=tuple(candidates[case] for case in order if case not in near),
        default=_default(first, cases, candidates),
        half_width=half_width,
        more_blocks=more,
        decided=not why_not,
        why_not=why_not,
        members=members(near, configured, called) if not why_not else (),
        curves=bucket_curves(configured, called, effects, decided=not why_not),
        front=front(good, cases) if not why_not and good["global_batch"].nunique() == 1 else (),
        by=places(by, _rankable(configured), dict(cases["status"]), effects, None if why_not else near) if by else (),
        unknown=tuple(dict.fromkeys(ranked.loc[~ranked["case_id"].isin(order), "label"])),
        differing=tuple(name for name in DEFAULTS if fields[name].nunique() > 1),
        no_comm_baseline=no_comm_baseline(every, cases, first) if objective is STEP else None,
        same_training=next((candidates[case] for case in order if not candidates[case].other_training), None)
        if candidates[first].other_training
        else None,
    )


def _sharpness(effects: Effects, first: str, near: list[str]) -> tuple[float | None, int | None]:
    """The half-width that decides between `first` and the others `near` it, or all others where there are none, and how
    many more blocks would make that sharp enough."""
    among = near if len(near) > 1 else effects.cases
    widest = max(effects.half_width(case, first) for case in among if case != first)
    half_width = format.number_or_none(math.expm1(widest))
    if len(near) == 1 or (half_width is not None and half_width <= SHARP_ENOUGH):
        return half_width, None
    # At least one: a missing launch can make the interval wide where the plan's blocks would have been enough.
    return half_width, max(1, effects.blocks_for(math.log1p(SHARP_ENOUGH), among) - effects.n_blocks)


def _configured(own: pd.DataFrame) -> dict[str, Case]:
    """All cases of a launch table by id, in its order."""
    stored = own.drop_duplicates("case_id")
    return {
        str(case): Case.from_dict(json.loads(text))
        for case, text in zip(stored["case_id"], stored["case_json"], strict=True)
    }


def _no_number(own: pd.DataFrame, ranked: pd.DataFrame, objective: Objective) -> str:
    if len(ranked):
        return f"No successful launch has a value for {objective.name}, so there is no best configuration."
    ended_well = int((own["status"] == Status.OK).sum())
    if ended_well:
        which = format.count(ended_well, "launch")
        return f"{which} succeeded, none with a known step time, so there is no fastest configuration."
    counts = own["status"].value_counts(sort=False)
    how = ", ".join(f"{n} {status}" for status, n in counts.items())
    return f"No launch succeeded with a step time, so there is no fastest configuration ({how})."


def _why_not(effects: Effects) -> str | None:
    if len(effects.cases) == 1:
        return "Only one configuration has a result, so there is nothing to rank."
    if effects.n_blocks < 2:
        return "One block cannot be tested against noise: run at least 2 blocks, better 3 or more."
    if effects.df < 1:
        return "Too few launches succeeded to test differences against noise: run more blocks."
    return None


def _nothing(work: dict[str, Any], own: pd.DataFrame, objective: Objective, why: str) -> Answer:
    return Answer(
        heading="",
        objective=objective.name,
        work=work,
        statistic=str(own["statistic"].iloc[0]) if len(own) else format.UNKNOWN,
        basis=basis(objective, own) if len(own) else format.UNKNOWN,
        blocks=0,
        launches=0,
        best=None,
        tied=(),
        slower=(),
        default=None,
        half_width=None,
        more_blocks=None,
        decided=False,
        why_not=why,
    )


_SHOWN = ("label", "strategy", "global_batch", "seq_len", "staleness_mean", "staleness_max")


def _candidates(
    order: list[str],
    objective: Objective,
    effects: Effects,
    good: pd.DataFrame,
    cases: pd.DataFrame,
) -> dict[str, Candidate]:
    """Each case's place by id, in that `order`, the best first.

    `good` are the launches that `effects` was fitted to, `cases` the work's case table by id.
    """
    times = effects if objective is STEP else fit(good)
    seconds = cases["step_time_s"].astype(float).to_dict()
    launches = {str(case): tuple(map(int, ids)) for case, ids in good.groupby("case_id")["launch_id"]}
    rows = cases.loc[order, list(_SHOWN)].to_dict("records")
    found = {}
    for case, row in zip(order, rows, strict=True):
        tokens, step_time_s = float(row["global_batch"]) * float(row["seq_len"]), seconds[case]
        # What a step takes is the case's one step time, whatever the launches are ranked by.
        cost = {"launch_step_s": step_time_s, "token_s": step_time_s / tokens}.get(
            objective.column, math.exp(effects.means[case])
        )
        margin, margin_s = (_margin(each, case) for each in (effects, times))
        value = objective.value(cost)
        found[case] = Candidate(
            case_id=case,
            label=str(row["label"]),
            strategy=str(row["strategy"]),
            value=value,
            plus_minus=None if margin is None else margin * value,
            step_time_s=step_time_s,
            plus_minus_s=None if margin_s is None else margin_s * step_time_s,
            tokens_per_s=tokens / step_time_s,
            unit=format.unit_of(int(row["seq_len"])),
            slower=math.expm1(effects.means[case] - effects.means[order[0]]),
            launches=effects.n[case],
            launch_ids=launches[case],
            other_training=entry_of(str(row["strategy"])).rule is Rule.APPLIED_ONCE,
            staleness_mean=format.number_or_none(row["staleness_mean"]),
            staleness_max=format.number_or_none(row["staleness_max"]),
        )
    return found


def _margin(effects: Effects, case: str) -> float | None:
    """The half-width of a case's number as a fraction of it; None where there is none."""
    margin = effects.own_half_width(case)
    return format.number_or_none(math.expm1(margin)) if math.isfinite(margin) else None


def _default(first: str, cases: pd.DataFrame, candidates: dict[str, Candidate]) -> Candidate | None:
    """What PyTorch does when it is told nothing, at the world size and batch of the case `first`; None where it has no
    number."""
    alike = ("world_size", "global_batch")
    usual = {name: DEFAULTS[name] for name in ("strategy", "algorithm", "bucket_mib", *LABELLED)}
    is_usual = (cases[list(alike)] == cases.loc[first, list(alike)]).all(axis="columns")
    for name, value in usual.items():
        is_usual &= cases[name].isna() if value is None else cases[name] == value
    return next((candidates[str(case)] for case in cases.index[is_usual] if case in candidates), None)
