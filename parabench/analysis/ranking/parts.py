"""Make further tables of a workload: curves of bucket sizes, the Pareto front, the best by axis, and baselines.

Arguments named `cases` are configurations by id, and `rows` are the rows of a case table by id.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.answer import Row
from parabench.analysis.numbers import levels
from parabench.analysis.stats.contrasts import ROUNDING, SHARP_ENOUGH, Effects, fit
from parabench.plan.case import DEFAULTS, MEANS, Case, fields_of
from parabench.strategies import OPTIONAL, Rule, entry_of

# Two points are not a curve.
FEWEST_SIZES = 3
# The status in the table `by` of a configuration that nothing connects with the best.
NOT_COMPARED = "not compared"
# A baseline without communication must agree with the best in these fields.
SAME = ("world_size", "threads", "grad_accumulation", *fields_of(MEANS))


def curves(cases: Mapping[str, Case], labels: Mapping[str, str], effects: Effects, *, decided: bool) -> list[Row]:
    """Return the rows of the table `curves`: configurations that differ only in the bucket size, FEWEST_SIZES or more.

    A curve is flat if no size is distinguishable from its best, and the half-width is SHARP_ENOUGH or less.
    """
    found = []
    for ids in _groups({case: cases[case] for case in cases if case in effects.cases}):
        if len(ids) < FEWEST_SIZES:
            continue
        best = min(ids, key=effects.means.__getitem__)
        behind, widths = effects.behind(best)[ids], effects.best_half_widths(best)[ids]
        half_width, at_most, shape = None, None, "unclear"
        if decided:
            half_width = format.number_or_none(math.expm1(widths.max()))
            at_most = format.number_or_none(math.expm1((behind + widths).max()))
            if (behind > widths + ROUNDING).any():
                shape = "optimum"
            elif half_width is not None and half_width <= SHARP_ENOUGH:
                shape = "flat"
        row = {
            "name": _without_bucket(cases[best], labels[best]),
            "sizes": tuple(cases[case].bucket_cap for case in ids),
        }
        row |= {"case_ids": tuple(ids), "best_case_id": best, "shape": shape}
        found.append(row | {"half_width": half_width, "at_most": at_most})
    return found


def members(chosen: Sequence[str], cases: Mapping[str, Case], labels: Mapping[str, str]) -> list[Row]:
    """Return the rows of the table `members`: the `chosen` cases, with one row for the bucket sizes of a curve.

    Its name has ranges, as in 'ddp ring, 10 to 25 MiB, 2 ranks'. They contain no other size of `cases`, which are all
    of the workload.
    """
    found = []
    for ids in _groups(cases):
        own = [case for case in ids if case in chosen]
        if not own:
            continue
        name = labels[own[0]]
        if len(own) > 1:
            head, _, ranks = _without_bucket(cases[own[0]], name).rpartition(", ")
            sizes = _sizes([cases[case].bucket_cap for case in own], [cases[case].bucket_cap for case in ids])
            name = f"{head}, {sizes}, {ranks}"
        found.append({"name": name, "case_ids": tuple(sorted(own, key=chosen.index))})
    return sorted(found, key=lambda row: chosen.index(row["case_ids"][0]))


def _groups(cases: Mapping[str, Case]) -> list[list[str]]:
    """Group ids of cases that differ only in the bucket size, PyTorch's default last. Lists of caps are not grouped."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for case_id, case in cases.items():
        others = (value for name, value in case.to_dict().items() if name != "bucket_mib")
        groups.setdefault((*others, case.bucket_caps), []).append(case_id)
    caps = {case_id: case.bucket_cap for case_id, case in cases.items()}
    return [sorted(ids, key=lambda each: (caps[each] is None, caps[each] or 0.0)) for ids in groups.values()]


def _without_bucket(case: Case, label: str) -> str:
    """Return the label without the bucket size. A suffix after the label of the case is kept."""
    bare = Case(**case.to_dict() | {"bucket_mib": DEFAULTS["bucket_mib"]}).label
    return bare + label.removeprefix(case.label)


def _sizes(own: Collection[float | None], tried: Sequence[float | None]) -> str:
    """Return bucket sizes as text, with ranges of neighbors among those `tried`: '1 and 10 to 25 MiB and default'."""
    runs = itertools.groupby((size for size in tried if size is not None), own.__contains__)
    numbers = [[f"{size:g}" for size in run] for inside, run in runs if inside]
    texts = [" to ".join(dict.fromkeys((run[0], run[-1]))) for run in numbers]
    known = [f"{format.joined(texts)} MiB"] if texts else []
    return " and ".join([*known, *(["default"] if None in own else [])])


def front(good: pd.DataFrame, rows: Mapping[str, Row]) -> list[Row]:
    """Return the rows of the table `front`, fastest first, from launches of one workload that count.

    A configuration beats another if it is significantly better in one number and not significantly worse in the other.
    The front is empty if no difference is significant.
    """
    known = good[good["peak_memory_bytes"] > 0]
    if not len(known):
        return []
    time, memory = fit(known), fit(known, "peak_memory_bytes")
    if time.df < 1:
        return []
    smaller = memory.less()
    better = time.less() | smaller
    beats, unlike = better & ~better.T, smaller | smaller.T
    chosen: list[int] = []
    for at in time.cases.get_indexer(pd.Index(time.connected())).tolist():
        if not beats[:, at].any() and unlike[chosen, at].all():
            chosen.append(at)  # if two are alike in both numbers, the faster represents both
    kept = time.cases[chosen].tolist()
    slower, larger = (np.expm1(each.behind(kept[0])) for each in (time, memory))
    launches, peaks = known.groupby("case")["launch_id"].agg(tuple), levels(known, "peak_memory_bytes")
    return [
        {
            "case_id": case,
            **{name: rows[case][name] for name in ("label", "strategy", "step_time_s")},
            "peak_memory_bytes": peaks[case],
            "slower": float(slower[case]),
            "less_memory": 0.0 - float(larger[case]),  # not -0.0
            "launch_ids": launches[case],
        }
        for case in kept
    ]


def best_by(
    axes: Sequence[str],
    cases: Mapping[str, Case],
    rows: Mapping[str, Row],
    measured: Collection[str],
    order: Sequence[str],
    near: Collection[str] | None,
) -> list[Row]:
    """Return the rows of the table `by`: the best case for each value of `axes`; values without a number are last.

    `measured` cases have a number, `order` those that are compared, and `near` those that may be the best.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for case, configuration in cases.items():
        if entry_of(configuration.strategy).ranked:
            groups.setdefault(tuple(_name(configuration, axis) for axis in axes), []).append(case)
    found = []
    for names, ids in groups.items():
        compared = [case for case in order if case in ids]
        first = compared[0] if compared else None
        lost = [case for case in ids if case in measured and case not in order]
        statuses = dict.fromkeys(NOT_COMPARED if case in lost else rows[case]["status"] for case in ids)
        found.append(
            {
                "axes": tuple(axes),
                "names": names,
                "case_id": first,
                "distinguishable": None if near is None or first in (None, order[0]) else first not in near,
                "configurations": len(compared),
                "status": ", ".join(statuses),
            }
        )
    return sorted(found, key=lambda row: order.index(row["case_id"]) if row["case_id"] else len(order))


def _name(case: Case, axis: str) -> str:
    """Return the value of an axis as text."""
    value = case.cells()[axis]
    if axis in OPTIONAL and axis not in entry_of(case.strategy).axes and getattr(case, axis) == DEFAULTS[axis]:
        return "–"  # the strategy has no such axis
    if type(value) is bool:
        return "on" if value else "off"
    if value is None:
        return "default" if axis == "bucket_mib" else "none"
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


def no_comm_baselines(launches: pd.DataFrame, rows: Mapping[str, Row], best: str) -> list[Row]:
    """Return the rows of the table `no_comm_baselines`, one or none, from the launches that count.

    The case `best` is compared with the fastest case without communication that has the same world size and options.
    """
    own = rows[best]
    found = [
        (row["step_time_s"], case)
        for case, row in rows.items()
        if entry_of(row["strategy"]).rule is Rule.FIRST_LOSS
        and row["world_size"] > 1
        and all(row[name] == own[name] for name in SAME)
        and row["step_time_s"] is not None
    ]
    if not found:
        return []
    _, case = min(found)
    effects = fit(launches[launches["case"].isin((case, best))])
    log, width = effects.behind(best)[case], effects.half_widths(case)[best]
    known = math.isfinite(width)
    entry, other = entry_of(own["strategy"]), entry_of(rows[case]["strategy"])
    row = {
        **{name: rows[case][name] for name in ("case_id", "label", "strategy", "step_time_s")},
        "share": format.number_or_none(-math.expm1(log)),
        "low": -math.expm1(log + width) if known else None,
        "high": -math.expm1(log - width) if known else None,
        "bound": entry.local_forward and entry.splits == other.splits,
    }
    return [row]
