"""Rank configurations: find those that may be the fastest, and how much slower the others are.

`stats.contrasts.fit` compares the launches of each workload, and `ranked` makes the rows of TABLES from its result.
`sentences` and the report read them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.answer import Columns, Row
from parabench.analysis.numbers import case_of, case_table, levels, only_ranked, same_work, work_text
from parabench.analysis.ranking import parts
from parabench.analysis.ranking.objectives import STEP, TIMED, Objective, basis
from parabench.analysis.ranking.race import Rows, race
from parabench.analysis.stats.contrasts import SHARP_ENOUGH, TOO_WIDE, Effects, fit, turn_weights
from parabench.plan.case import DEFAULTS, LABELED
from parabench.store.record import FIRST_REPETITION
from parabench.store.results import known_records
from parabench.strategies import Rule, entry_of
from parabench.strategies.snippet import snippet

# The tables of the answer; a column `workload` is common to all. docs/site/keys.toml describes every column.
_CASE: Columns = {"workload": str, "case_id": str, "label": str, "strategy": str}
TABLES: dict[str, Columns] = {
    "workloads": {
        "workload": str, "work": str, "best": str | None, "winner": str | None, "default": str | None,
        "same_training": str | None, "objective": str, "statistic": str, "basis": str, "repetitions": int,
        "launches": int, "half_width": float | None, "more_repetitions": int | None, "decided": bool,
        "why_not": str | None, "unverified": tuple[str, ...], "unknown": tuple[str, ...], "differing": tuple[str, ...],
        "links": str, "apart": tuple[str, ...], "apart_half_width": float | None,
    },
    "candidates": {
        "workload": str, "place": Literal["best", "tied", "slower", "not_compared"], **_CASE, "value": float,
        "plus_minus": float | None, "step_time_s": float, "plus_minus_s": float | None, "tokens_per_s": float | None,
        "unit": str, "launches": int, "launch_ids": tuple[int, ...], "status": str, "slower": float | None,
        "slower_low": float | None, "slower_high": float | None, "code": str | None, "other_training": bool,
        "staleness_mean": float | None, "staleness_max": float | None, "reason": str | None,
    },
    "members": {"workload": str, "name": str, "case_ids": tuple[str, ...]},
    "curves": {
        "workload": str, "name": str, "sizes": tuple[float | None, ...], "case_ids": tuple[str, ...],
        "best_case_id": str, "shape": Literal["optimum", "flat", "unclear"], "half_width": float | None,
        "at_most": float | None,
    },
    "front": {
        **_CASE, "step_time_s": float, "peak_memory_bytes": float, "slower": float, "less_memory": float,
        "launch_ids": tuple[int, ...],
    },
    "by": {
        "workload": str, "axes": tuple[str, ...], "names": tuple[str, ...], "case_id": str | None,
        "distinguishable": bool | None, "configurations": int, "status": str,
    },
    "no_comm_baselines": {
        **_CASE, "step_time_s": float, "share": float | None, "low": float | None, "high": float | None, "bound": bool,
    },
    "race": {
        "workload": str, "repetition": int, "seconds": float, "racing": tuple[str, ...], "half_width": float | None,
    },
    "eliminated": {"workload": str, "repetition": int, "case_id": str, "slower": float, "at_least": float},
}  # fmt: skip

# Rows of a case table by id.
Cases = Mapping[str, Row]

# The reason if nothing connects a configuration with the best.
NO_RATIO = "no launch or repetition that counts connects it with the configurations that are compared"
# The columns of a case table that an answer needs.
_SHOWN = (*DEFAULTS, "label", "statistic", "status", "step_time_s", "tokens_per_s", "staleness_mean", "staleness_max")
_NO_ANSWER: Row = dict.fromkeys(TABLES["workloads"]) | {
    "workload": "", "work": "", "statistic": format.UNKNOWN, "basis": format.UNKNOWN, "repetitions": 0, "launches": 0,
    "decided": False, "unverified": (), "unknown": (), "differing": (), "links": "", "apart": (),
}  # fmt: skip


def ranked(
    launches: pd.DataFrame,
    objective: Objective = STEP,
    by: Sequence[str] = (),
    cases: pd.DataFrame | None = None,
    raced: bool = False,
) -> list[Rows]:
    """Return the rows of all tables for each workload; without launches, for one workload without an answer.

    Args:
        launches: A table like `numbers.numbers`.
        objective: The number to rank by.
        by: Axes for the table `by`, which has the best configuration for each of their values.
        cases: `case_table(launches)`, if it was computed before.
        raced: Whether the session used racing.
    """
    launches = launches[launches["repetition"] >= FIRST_REPETITION]
    if not len(launches):
        why = "No launch was recorded, so the fastest configuration is unknown."
        return [_rows(_NO_ANSWER | {"objective": objective.name, "why_not": why})]
    groups = same_work(launches, objective.work)
    table = case_table(launches) if cases is None else cases
    rows = {row["case_id"]: row for row in known_records(table, ("case_id", *_SHOWN))}
    seconds = launches.groupby("repetition")["wall_s"].sum().cumsum() if raced and objective is STEP else None
    found = []
    for (work, group), heading in zip(groups, _headings(groups), strict=True):
        own = _ranking(group, rows, objective, by, seconds)
        own["workloads"][0]["work"] = work_text(work)
        for table_rows in own.values():
            for row in table_rows:
                row["workload"] = heading
        found.append(own)
    return found


def _rows(workload: Row, **more: list[Row]) -> Rows:
    """Return the rows of one workload by table, empty tables included."""
    return {name: [] for name in TABLES} | {"workloads": [workload]} | more


def _headings(groups: Sequence[tuple[dict[str, Any], pd.DataFrame]]) -> list[str]:
    """Return a heading for each workload, with the values that differ between workloads.

    For example 'gpt-nano, global batch 16'; in weak scaling 'global batch 16 (2 ranks, 8 each)'.
    """
    plain = ("model", "data", "precision", "device")  # their values need no name before them
    varying = [name for name in groups[0][0] if len({str(work[name]) for work, _ in groups}) > 1]
    sizes = [set(group["world_size"]) for _, group in groups]
    found = []
    for (work, _), own in zip(groups, sizes, strict=True):
        text = ", ".join(
            str(work[name]) if name in plain else f"{name.replace('_', ' ')} {work[name] or 'of bytes'}"
            for name in varying
        )
        if text and "global_batch" in work and len(own) == 1 and len(set().union(*sizes)) > 1:
            n = max(own)
            text += f" ({format.count(n, 'rank')}, {work['global_batch'] / n:g} each)"
        found.append(text)
    return found


def _ranking(
    launches: pd.DataFrame,
    table: Cases,
    objective: Objective,
    by: Sequence[str],
    seconds: pd.Series[float] | None,
) -> Rows:
    """Return the rows of one workload.

    Configurations are compared if common launches or repetitions connect them. Those outside the largest connected
    group are listed without a ratio.

    Args:
        launches: The launches of the workload.
        table: The rows of the case table by id.
        objective: The number to rank by.
        by: Axes for the table `by`.
        seconds: In a race, the end times of the repetitions: seconds of all launches until then.
    """
    counted = launches[launches["timed" if objective.name in TIMED else "counted"]]
    every = only_ranked(counted)
    good = every[every[objective.column] > 0]
    finished = only_ranked(launches[launches["counted"]])
    workload = _NO_ANSWER | {
        "objective": objective.name,
        "statistic": launches["statistic"].iloc[0],
        "basis": basis(objective, good if len(good) else launches),
        "unverified": tuple(dict.fromkeys(finished[~finished["verified"]]["label"])),
    }
    if not len(good):
        return _rows(workload | {"why_not": _no_number(launches, counted, every, objective)})
    effects = fit(good, objective.column)
    measured, order = effects.cases, effects.connected()
    configured = dict(zip(launches["case"], map(case_of, launches["case_json"]), strict=True))
    cases = {case: row for case, row in table.items() if case in configured}
    numbers = _numbers(objective, good, launches, cases, effects)
    if len(order) == 1 < len(measured):
        why = "No launch or repetition that counts is common to two configurations, so they cannot be compared."
        workload |= {"launches": len(good), "repetitions": effects.n_blocks, "why_not": why}
        return _rows(workload, candidates=known_records(numbers))
    if len(order) < len(measured):
        good = good[good["case"].isin(order)]
        effects = fit(good, objective.column)
    why_not, best = _why_not(effects), order[0]
    decided = why_not is None
    near = effects.indistinguishable(best) if decided else list(order)
    compared = known_records(_compared(numbers.loc[list(order)], effects, best, near, decided=decided))
    compared[0]["code"] = snippet(configured[best])
    apart = known_records(numbers.drop(index=list(order)))
    labels = {case: row["label"] for case, row in cases.items()}
    # PyTorch's default at the world size and batch of the best.
    usual = {name: DEFAULTS[name] for name in ("strategy", "algorithm", "bucket_mib", *LABELED)}
    usual |= {name: cases[best][name] for name in ("world_size", "global_batch")}
    equivalent = [row["case_id"] for row in compared if not row["other_training"]]
    workload |= {
        "best": best,
        "default": next((case for case in order if all(cases[case][name] == usual[name] for name in usual)), None),
        "same_training": equivalent[0] if equivalent and equivalent[0] != best else None,
        "repetitions": effects.n_blocks,
        "launches": len(good),
        "decided": decided,
        "why_not": why_not,
        "unknown": tuple(labels[case] for case in dict.fromkeys(every["case"]) if case not in measured),
        "differing": tuple(name for name in DEFAULTS if len({cases[case][name] for case in order} - {None}) > 1),
    }
    found = _rows(
        workload,
        candidates=[*compared, *apart],
        curves=parts.curves(configured, labels, effects, decided=decided),
        by=parts.best_by(by, configured, cases, measured, order, near if decided else None) if by else [],
        no_comm_baselines=parts.no_comm_baselines(counted, cases, best) if objective is STEP else [],
        **(race(good, seconds) if seconds is not None else {}),
    )
    if decided:
        workload |= _resolution(effects, good, order, near, labels)
        named = len(near) == 1 or (len(near) < len(order) and not too_wide(workload))
        workload["winner"] = best if named and not apart else None
        found["members"] = parts.members(near, configured, labels)
        if good["global_batch"].nunique() == 1:
            found["front"] = parts.front(good, cases)
    return found


def too_wide(workload: Row) -> bool:
    """Return whether the difference between the tied configurations of a workload may be TOO_WIDE or more."""
    half_width = workload["half_width"]
    return half_width is None or bool(half_width >= TOO_WIDE)


def _compared(
    numbers: pd.DataFrame, effects: Effects, best: str, near: Collection[str], *, decided: bool
) -> pd.DataFrame:
    """Return the table of `_numbers` with the place of each case, and its ratio to the best.

    `near` are the cases that are not distinguishable from the best.
    """
    behind, widths = effects.behind(best), effects.best_half_widths(best)
    known = np.isfinite(widths) & (widths.index != best) & decided
    return numbers.assign(
        place=["best" if case == best else "tied" if case in near else "slower" for case in numbers.index],
        slower=np.expm1(behind),
        slower_low=np.expm1((behind - widths).where(known)),
        slower_high=np.expm1((behind + widths).where(known)),
        reason=None,
    )


def _resolution(
    effects: Effects, launches: pd.DataFrame, order: Sequence[str], near: Sequence[str], labels: Mapping[str, str]
) -> Row:
    """Return cells of `workloads`: the precision of the comparison with the best, and the repetitions it needs.

    If the best shared launches, configurations that shared none (`apart`) do not count for `half_width`, because
    differences between launches make their comparison imprecise.
    """
    first, widths = order[0], effects.best_half_widths(order[0])
    shared = set(launches[launches["in_turns"]]["case"])
    apart = [case for case in near if first in shared and case not in shared]
    among = near if len(near) > 1 else order
    half_width = _widest(widths, among)
    unclear = len(near) > 1 and (half_width is None or half_width > SHARP_ENOUGH)
    if apart:  # if no other is tied, use the half-width of the next one
        others = [case for case in order[1:] if case in shared]
        half_width = _widest(widths, [case for case in others if case in near] or others[:1])
    return {
        "half_width": half_width,
        "more_repetitions": _more_repetitions(effects, first, among, launches) if unclear else None,
        "apart": tuple(labels[case] for case in apart),
        "apart_half_width": _widest(widths, apart) if apart else None,
    }


def _no_number(launches: pd.DataFrame, every: pd.DataFrame, ranked: pd.DataFrame, objective: Objective) -> str:
    """Return why a workload has no number. `every` are the launches that count, `ranked` those to rank."""
    if len(ranked):
        return f"No successful launch has a value for {objective.name}, so the best configuration is unknown."
    if len(every):
        labels = format.listed(dict.fromkeys(every["label"]), most=3)
        return f"Only {labels} succeeded, which is a no-communication baseline and not ranked."
    how = ", ".join(f"{n} {status}" for status, n in Counter(launches["status"]).items())
    return f"No launch has a known step time, so the fastest configuration is unknown ({how})."


def _why_not(effects: Effects) -> str | None:
    """Return the reason why differences cannot be tested; None if they can."""
    if len(effects.cases) == 1:
        return "Only one configuration has a result, so nothing can be ranked."
    if effects.n_blocks < 2:
        return "One repetition cannot be tested against noise; two or more can."
    if effects.df < 1:
        return "Too few launches succeeded to test differences against noise."
    return None


def _numbers(
    objective: Objective, good: pd.DataFrame, launches: pd.DataFrame, cases: Cases, effects: Effects
) -> pd.DataFrame:
    """Return the table `candidates` by case, the best mean first, before any comparison. Unknown numbers are NaN."""
    times = effects if objective is STEP else fit(only_ranked(launches[launches["timed"]]))
    costs, ids = pd.Series(levels(good, objective.column)).sort_values(kind="stable"), good.groupby("case")["launch_id"]
    table = pd.DataFrame([cases[case] for case in costs.index], costs.index)
    value = 1 / costs if objective.inverse else costs
    return table.assign(
        place="not_compared",
        case_id=costs.index,
        value=value,
        plus_minus=_half_widths(effects, value),
        plus_minus_s=_half_widths(times, table["step_time_s"]),
        unit=table["seq_len"].map(format.unit_of),
        launches=ids.size(),
        launch_ids=ids.agg(tuple),
        **dict.fromkeys(("slower", "slower_low", "slower_high"), np.nan),
        code=None,
        other_training=[entry_of(name).rule is Rule.APPLIED_ONCE for name in table["strategy"]],
        reason=NO_RATIO,
    )[[name for name in TABLES["candidates"] if name != "workload"]]


def _half_widths(effects: Effects, means: pd.Series[float]) -> pd.Series[float]:
    """Return the 95% half-widths of these means of configurations, NaN if unknown."""
    logs = effects.own_half_widths().reindex(means.index)
    return means * np.expm1(logs.where(np.isfinite(logs)))


def _widest(widths: pd.Series[float], cases: Sequence[str]) -> float | None:
    """Return the widest half-width of these cases as a fraction; `None` if one is unknown, or without cases."""
    return format.number_or_none(math.expm1(widths[list(cases)].max()))


def _more_repetitions(effects: Effects, first: str, among: Sequence[str], good: pd.DataFrame) -> int:
    """Return the number of repetitions like the last that must be added to resolve SHARP_ENOUGH.

    The comparison is of the best, `first`, with the cases `among`.
    """
    had, next_has = float(effects.n_blocks), 1.0
    if (weights := turn_weights(good)) is not None:
        # In a race, launches of fewer cases have more turns of each.
        of_first = weights[np.asarray(good["case"]) == first]
        had, next_has = of_first.sum(), of_first[-1]
    # At least one: after a missing launch the interval can be wide, although the planned repetitions were enough.
    return max(1, math.ceil((effects.blocks_for(math.log1p(SHARP_ENOUGH), among) - had) / next_has))
