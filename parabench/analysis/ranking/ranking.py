"""The sweet spot: which configurations are not distinguishable from the fastest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis.links import with_links
from parabench.analysis.numbers import case_of, case_table, levels, only_ranked, same_work
from parabench.analysis.ranking.answer import NOT_COMPARED, Answer, Candidate, Measured, NotCompared
from parabench.analysis.ranking.baseline import no_comm_baseline
from parabench.analysis.ranking.bucket_curves import bucket_curves, members
from parabench.analysis.ranking.by_axis import check_axes, places
from parabench.analysis.ranking.objectives import STEP, Objective, basis, require
from parabench.analysis.ranking.pareto import front, launch_ids
from parabench.analysis.ranking.race import race, seconds_at
from parabench.analysis.session import SessionData
from parabench.analysis.stats.block_model import SHARP_ENOUGH, Effects, fit, turn_weights
from parabench.analysis.text import format
from parabench.plan.case import DEFAULTS, LABELLED, Case
from parabench.store.frames import records
from parabench.store.record import FIRST_BLOCK, Status
from parabench.strategies import Rule, entry_of
from parabench.strategies.snippet import snippet

# pd.DataFrame of a case table by id.
Cases = Mapping[str, Mapping[str, Any]]

# Why a configuration is not compared, and why none is.
_UNCONNECTED = "no launch or repetition that counts connects it with the configurations that are compared"
_NONE_CONNECTED = "No launch or repetition that counts is common to two configurations, so they cannot be compared."

# What links are a reason for.
TIMED = ("step_time_s", "tokens_per_s")


def ranked(seen: SessionData, objective: Objective = STEP, by: Iterable[str] = ()) -> tuple[Answer, ...]:
    """The sweet spots of a session, one for each work, at least one.

    Raises UsageError for no launch with a number for the objective, or no such axis.
    """
    axes = check_axes(by)
    require(seen, objective)
    found = answers(seen.numbers, objective, axes, seen.cases, seen.session.raced)
    return with_links(found, seen.results, seen.session, seen.numbers) if objective.name in TIMED else found


def spots(seen: SessionData) -> tuple[Answer, ...]:
    """The same by step time, from what is known of a session; for `SessionData.once`."""
    found = answers(seen.numbers, cases=seen.cases, raced=seen.session.raced)
    return with_links(found, seen.results, seen.session, seen.numbers)


def answers(
    launches: pd.DataFrame,
    objective: Objective = STEP,
    by: tuple[str, ...] = (),
    cases: pd.DataFrame | None = None,
    raced: bool = False,
) -> tuple[Answer, ...]:
    """Return the same from `numbers.numbers`; `cases` is its case table, if known."""
    own = launches[launches["repetition"] >= FIRST_BLOCK]
    if not len(own):
        return (_nothing({}, own, objective, "No launch was recorded, so there is no fastest configuration."),)
    groups = same_work(own, objective.work)
    rows = records(case_table(launches) if cases is None else cases, ("case_id", *_SHOWN))
    table = {row["case_id"]: row for row in rows}
    works = [work for work, _ in groups]
    shares, seconds = _shares(groups), seconds_at(own) if raced else None
    return tuple(
        replace(
            _answer(work, group, table, objective, by, seconds),
            heading=_heading(work, works, share),
            unverified=_unverified(group),
        )
        for (work, group), share in zip(groups, shares, strict=True)
    )


def _rankable(cases: dict[str, Case]) -> dict[str, Case]:
    return {at: case for at, case in cases.items() if entry_of(case.strategy).ranked}


def _unverified(own: pd.DataFrame) -> tuple[str, ...]:
    good = only_ranked(own[own["counted"]])
    return tuple(dict.fromkeys(good[~good["verified"]]["label"]))


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
    work: dict[str, Any],
    own: pd.DataFrame,
    table: Cases,
    objective: Objective,
    by: tuple[str, ...],
    seconds: Mapping[int, float] | None,
) -> Answer:
    """Answer for one workload.

    `own` are its launches, `table` the rows of the case table by id. In a race `seconds` is the time at which each
    repetition ended. Configurations are compared if common launches or repetitions connect them; those outside the
    largest group that is connected are listed with their numbers alone.
    """
    every = own[own["timed"]] if objective.name in TIMED else own[own["counted"]]
    ranked = only_ranked(every)
    if not len(ranked) and len(every):
        labels = format.listed(dict.fromkeys(every["label"]), most=3)
        why = f"Only {labels} succeeded, which is a no-communication baseline and not ranked."
        return _nothing(work, own, objective, why)
    good = ranked[ranked[objective.column] > 0]
    if not len(good):
        return _nothing(work, own, objective, _no_number(own, ranked, objective))
    effects = fit(good, objective.column)
    order = [*effects.connected()]
    if 1 == len(order) < len(effects.cases):
        order = []
    configured = _configured(own)
    cases = {case: row for case, row in table.items() if case in configured}
    called, statuses = ({case: row[name] for case, row in cases.items()} for name in ("label", "status"))
    timed = only_ranked(own[own["timed"]])
    measured = _measured(objective, effects, good, timed, cases)
    not_compared = tuple(
        NotCompared(**vars(each), status=statuses[case], reason=_UNCONNECTED)
        for case, each in measured.items()
        if case not in order
    )
    ended = statuses | {each.case_id: NOT_COMPARED for each in not_compared}
    if not order:
        nothing = _nothing(work, good, objective, _NONE_CONNECTED)
        return replace(nothing, launches=len(good), blocks=effects.n_blocks, not_compared=not_compared)
    if not_compared:
        good = good[np.isin(good["case"], order)]
        effects = fit(good, objective.column)
    first = order[0]
    why_not = _why_not(effects)
    candidates = _candidates(order, measured, effects, cases, decided=not why_not)
    candidates[first] = replace(candidates[first], code=snippet(configured[first]))
    near = order if why_not else effects.indistinguishable(first)
    tied = tuple(candidates[case] for case in near if case != first)
    half_width, more = (None, None) if why_not else _sharpness(effects, first, near, good)
    alone = set() if why_not else _apart(first, order, good)
    if apart := [case for case in near if case in alone]:
        beside = [case for case in order if case not in alone]
        # Where it is the only one, the next one tells how well it is known to be.
        half_width = _half_width(effects, first, [case for case in beside if case in near][1:] or beside[1:2])
    return Answer(
        heading="",
        objective=objective.name,
        work=work,
        statistic=cases[first]["statistic"],
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
        front=front(good, cases) if not why_not and len(set(good["global_batch"])) == 1 else (),
        by=places(by, _rankable(configured), ended, effects, None if why_not else near) if by else (),
        unknown=tuple(called[case] for case in dict.fromkeys(ranked["case"]) if case not in measured),
        differing=tuple(name for name in DEFAULTS if len({_value(cases[case][name]) for case in order} - {None}) > 1),
        no_comm_baseline=no_comm_baseline(every, cases, first) if objective is STEP else None,
        same_training=next((candidates[case] for case in order if not candidates[case].other_training), None)
        if candidates[first].other_training
        else None,
        race=race(good, seconds) if objective is STEP and seconds is not None else (),
        apart=tuple(called[case] for case in apart),
        apart_half_width=_half_width(effects, first, apart) if apart else None,
        not_compared=not_compared,
    )


def slower_unranked(seen: SessionData, answers: Sequence[Answer]) -> dict[str, float]:
    """Return for each case that is not ranked how much slower it is than the best of its workload, as a fraction.

    It is the ratio in common launches and repetitions, NaN if none connects the two.
    """
    best = {tuple(answer.work.values()): answer.best for answer in answers}
    found: dict[str, float] = {}
    for work, own in same_work(seen.numbers[seen.numbers["timed"]]):
        first = best.get(tuple(work.values()))
        ranked = set(only_ranked(own)["case"])
        if first is None or ranked.issuperset(own["case"]):
            continue
        effects = fit(own)
        behind = zip(effects.cases, effects.behind(first.case_id).tolist(), strict=True)
        found |= {case: math.expm1(log) for case, log in behind if case not in ranked}
    return found


def _apart(first: str, cases: Sequence[str], good: pd.DataFrame) -> set[str]:
    """Those of `cases` that never shared a launch, where `first` did: their comparison has what launches differ by."""
    shared = set(np.asarray(good["case"])[np.asarray(good["in_turns"], dtype=bool)].tolist())
    return set(cases) - shared if first in shared else set()


def _half_width(effects: Effects, first: str, others: Sequence[str]) -> float | None:
    """The widest simultaneous half-width of the `others` against `first`; None where there is none."""
    widths = effects.behind_best(first)
    return format.number_or_none(math.expm1(max((widths[case] for case in others if case != first), default=math.nan)))


def _sharpness(effects: Effects, first: str, near: list[str], good: pd.DataFrame) -> tuple[float | None, int | None]:
    """The half-width that decides between `first` and the others `near` it, or all others where there are none, and how
    many more blocks like the last would make that sharp enough."""
    among = near if len(near) > 1 else effects.cases
    half_width = _half_width(effects, first, among)
    if len(near) == 1 or (half_width is not None and half_width <= SHARP_ENOUGH):
        return half_width, None
    # At least one: a missing launch can make the interval wide where the plan's blocks would have been enough.
    had, next_has = float(effects.n_blocks), 1.0
    if (weights := turn_weights(good)) is not None:
        # In a race launches of fewer cases have more turns of each.
        of_first = weights[np.asarray(good["case"]) == first]
        had, next_has = of_first.sum(), of_first[-1]
    return half_width, max(1, math.ceil((effects.blocks_for(math.log1p(SHARP_ENOUGH), among) - had) / next_has))


def _configured(own: pd.DataFrame) -> dict[str, Case]:
    """All cases of a launch table by id, in its order."""
    stored = dict(zip(own["case"], own["case_json"], strict=True))
    return {case: case_of(text) for case, text in stored.items()}


def _no_number(own: pd.DataFrame, ranked: pd.DataFrame, objective: Objective) -> str:
    if len(ranked):
        return f"No successful launch has a value for {objective.name}, so there is no best configuration."
    ended_well = int((own["status"] == Status.OK).sum())
    if ended_well:
        which = format.count(ended_well, "launch")
        return f"{which} succeeded, none with a known step time, so there is no fastest configuration."
    how = ", ".join(f"{n} {status}" for status, n in Counter(own["status"]).items())
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
        statistic=next(iter(own["statistic"])) if len(own) else format.UNKNOWN,
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


# What of a case table an answer is made of.
_SHOWN = (*DEFAULTS, "label", "statistic", "status", "step_time_s", "tokens_per_s", "staleness_mean", "staleness_max")


def _measured(
    objective: Objective, effects: Effects, good: pd.DataFrame, timed: pd.DataFrame, cases: Cases
) -> dict[str, Measured]:
    """Return the numbers of each case by id, by rising level.

    `good` are the launches that `effects` was fitted to, `timed` those whose step times are compared. `cases` are the
    rows of the workload's case table by id.
    """
    times = effects if objective is STEP else fit(timed)
    launches, costs = launch_ids(good), levels(good, objective.column)
    found = {}
    for case in sorted(costs, key=costs.__getitem__):
        row = cases[case]
        step_time_s = row["step_time_s"]
        margin, margin_s = (_margin(each, case) for each in (effects, times))
        value = objective.value(costs[case])
        found[case] = Measured(
            case_id=case,
            label=row["label"],
            strategy=row["strategy"],
            value=value,
            plus_minus=None if margin is None else margin * value,
            step_time_s=step_time_s,
            plus_minus_s=None if margin_s is None else margin_s * step_time_s,
            tokens_per_s=format.number_or_none(row["tokens_per_s"]),
            unit=format.unit_of(row["seq_len"]),
            launches=effects.n[case],
            launch_ids=launches[case],
        )
    return found


def _candidates(
    order: Sequence[str], measured: Mapping[str, Measured], effects: Effects, cases: Cases, *, decided: bool
) -> dict[str, Candidate]:
    """Return the place of each case by id, in that `order`, the best first."""
    best = order[0]
    behind = dict(zip(effects.cases, effects.behind(best).tolist(), strict=True))
    widths = effects.behind_best(best) if decided else {}
    found = {}
    for case in order:
        row, width = cases[case], widths.get(case, math.inf)
        ends = [math.expm1(behind[case] + side * width) if math.isfinite(width) else None for side in (-1, 1)]
        low, high = ends if case != best else (None, None)
        found[case] = Candidate(
            **vars(measured[case]),
            slower=math.expm1(behind[case]),
            slower_low=low,
            slower_high=high,
            other_training=entry_of(row["strategy"]).rule is Rule.APPLIED_ONCE,
            staleness_mean=format.number_or_none(row["staleness_mean"]),
            staleness_max=format.number_or_none(row["staleness_max"]),
        )
    return found


def _margin(effects: Effects, case: str) -> float | None:
    """The half-width of a case's number as a fraction of it; None where there is none."""
    margin = effects.own_half_width(case)
    return format.number_or_none(math.expm1(margin)) if math.isfinite(margin) else None


def _default(first: str, cases: Cases, candidates: dict[str, Candidate]) -> Candidate | None:
    """What PyTorch does when it is told nothing, at the world size and batch of the case `first`; None where it has no
    number."""
    usual = {name: DEFAULTS[name] for name in ("strategy", "algorithm", "bucket_mib", *LABELLED)}
    usual |= {name: cases[first][name] for name in ("world_size", "global_batch")}
    same = (case for case, row in cases.items() if all(_value(row[name]) == usual[name] for name in usual))
    return next((candidates[case] for case in same if case in candidates), None)


def _value(cell: Any) -> Any:
    """None where nothing is set: a column of numbers has NaN there."""
    return None if cell != cell else cell
