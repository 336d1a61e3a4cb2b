"""Bucket sizes: configurations that differ only in the bucket size, and their names in the set of the fastest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

from parabench.analysis import format
from parabench.analysis.ranking.tables import Row
from parabench.analysis.stats.contrasts import ROUNDING, SHARP_ENOUGH, Effects
from parabench.plan.case import DEFAULTS, Case

# Two points are not a curve.
FEWEST_SIZES = 3


def curves(cases: Mapping[str, Case], labels: Mapping[str, str], effects: Effects, *, decided: bool) -> list[Row]:
    """Return the rows of the table `curves`: FEWEST_SIZES sizes and more that `effects` compares.

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
        found.append(
            {
                "name": _without_bucket(cases[best], labels[best]),
                "sizes": tuple(cases[case].bucket_cap for case in ids),
                "case_ids": tuple(ids),
                "best_case_id": best,
                "shape": shape,
                "half_width": half_width,
                "at_most": at_most,
            }
        )
    return found


def curve_notes(curves: Sequence[Row], repetitions: int, objective: str) -> list[str]:
    """Return a sentence about the flat curves and one about the unclear curves. `objective` is ' to memory' or so."""
    texts = {
        "flat": "{names}: the bucket size makes no significant difference{objective} ({evidence}).",
        "unclear": "{names}: too few repetitions to resolve an effect of the bucket size{objective} ({evidence}).",
    }
    found = []
    for shape, text in texts.items():
        own = [curve for curve in curves if curve["shape"] == shape and curve["half_width"] is not None]
        if own:
            evidence = (
                f"{format.count(repetitions, 'repetition')}, {format.within(max(each['half_width'] for each in own))}"
            )
            at_most = max(each["at_most"] for each in own)
            if shape == "flat" and at_most > format.EXACT:
                evidence += f"; no size is more than {format.percent(at_most)} behind"
            names = format.listed((each["name"] for each in own), most=3)
            found.append(text.format(names=names, objective=objective, evidence=evidence))
    return found


def members(chosen: Sequence[str], cases: Mapping[str, Case], labels: Mapping[str, str]) -> list[Row]:
    """Return the `chosen` cases by name; sizes of one curve share a name: 'ddp ring, 10 to 25 MiB, 2 ranks'.

    A range contains every size that was tried: `cases` are all of the workload, also those that failed.
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
    """Return the label without the bucket size, with anything that it has beyond the label of its case."""
    bare = Case(**case.to_dict() | {"bucket_mib": DEFAULTS["bucket_mib"]}).label
    return bare + label.removeprefix(case.label)


def _sizes(own: Collection[float | None], tried: Sequence[float | None]) -> str:
    """Return the sizes with runs of neighbors among those `tried`: '1 and 10 to 25 MiB and default'."""
    runs = itertools.groupby((size for size in tried if size is not None), own.__contains__)
    numbers = [[f"{size:g}" for size in run] for inside, run in runs if inside]
    texts = [" to ".join(dict.fromkeys((run[0], run[-1]))) for run in numbers]
    known = [f"{format.joined(texts)} MiB"] if texts else []
    return " and ".join([*known, *(["default"] if None in own else [])])
