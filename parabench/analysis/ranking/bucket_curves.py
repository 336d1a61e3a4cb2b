"""Bucket curves: configurations that differ only in the bucket size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from parabench.analysis import format
from parabench.analysis.stats.contrasts import ROUNDING, SHARP_ENOUGH, Effects
from parabench.plan.case import DEFAULTS, Case

# Two points are not a curve.
FEWEST_SIZES = 3


@dataclass(frozen=True)
class Curve:
    """Cases that differ only in their bucket size, in MiB; `None`, PyTorch's default, is last.

    `shape` is optimum if a size is distinguishable from the best, flat if no relevant difference exists, and unclear if
    the blocks are too few to exclude one.
    """

    name: str
    sizes: tuple[float | None, ...]
    case_ids: tuple[str, ...]
    best_case_id: str
    shape: Literal["optimum", "flat", "unclear"]
    half_width: float | None
    at_most: float | None


@dataclass(frozen=True)
class Members:
    """Configurations of the set under one name; neighboring bucket sizes are a range."""

    name: str
    case_ids: tuple[str, ...]


def bucket_curves(
    cases: Mapping[str, Case], labels: Mapping[str, str], effects: Effects, *, decided: bool
) -> tuple[Curve, ...]:
    """Return the curves of FEWEST_SIZES sizes and more that `effects` compares, in the order of `cases`.

    A curve is flat if no size is distinguishable from its best, and the half-width is SHARP_ENOUGH or less.
    """
    found = []
    for ids in _along({case: cases[case] for case in cases if case in effects.cases}):
        if len(ids) < FEWEST_SIZES:
            continue
        best = min(ids, key=effects.means.__getitem__)
        behind, widths = effects.behind(best)[ids], effects.best_half_widths(best)[ids]
        half_width, at_most = None, None
        shape: Literal["optimum", "flat", "unclear"] = "unclear"
        if decided:
            half_width, at_most = (format.number_or_none(math.expm1(each.max())) for each in (widths, behind + widths))
            if (behind > widths + ROUNDING).any():
                shape = "optimum"
            elif half_width is not None and half_width <= SHARP_ENOUGH:
                shape = "flat"
        sizes, name = tuple(cases[case].bucket_cap for case in ids), _without_bucket(cases[best], labels[best])
        found.append(Curve(name, sizes, tuple(ids), best, shape, half_width, at_most))
    return tuple(found)


def curve_notes(curves: Iterable[Curve], blocks: int, of: str) -> list[str]:
    """Describe flat and unclear curves, in one sentence for equal sizes. `of` names the objective."""
    groups: dict[tuple[bool, tuple[float | None, ...]], list[Curve]] = {}
    for curve in curves:
        if curve.half_width is not None and curve.shape != "optimum":
            groups.setdefault((curve.shape == "unclear", curve.sizes), []).append(curve)
    found = []
    for (unclear, sizes), group in sorted(groups.items(), key=lambda each: each[0][0]):
        names = format.listed((curve.name for curve in group), most=3)
        within = format.within(max(curve.half_width or 0.0 for curve in group))
        count = format.count(blocks, "block")
        if unclear:
            found.append(f"{names}: {count} are too few to resolve an effect of the bucket size{of} ({within}).")
            continue
        numbers = [size for size in sizes if size is not None]
        span = f"from {numbers[0]:g} to {numbers[-1]:g} MiB" + " and at PyTorch's default" * (None in sizes)
        at_most = max(curve.at_most or 0.0 for curve in group)
        behind = f"; no size is more than {format.percent(at_most)} behind" if at_most > format.EXACT else ""
        found.append(
            f"{names}: the bucket size makes no significant difference{of} {span} ({count}, {within}{behind})."
        )
    return found


def members(chosen: Sequence[str], cases: Mapping[str, Case], labels: Mapping[str, str]) -> tuple[Members, ...]:
    """Return the `chosen` cases by name; sizes of one curve share a name: 'ddp ring, 10 to 25 MiB, 2 ranks'.

    A range contains every size that was tried: `cases` are all of the workload, also those that failed.
    """
    found = []
    for ids in _along(cases):
        own = [case for case in ids if case in chosen]
        if len(own) == 1:
            found.append(Members(labels[own[0]], (own[0],)))
        elif own:
            head, _, ranks = _without_bucket(cases[own[0]], labels[own[0]]).rpartition(", ")
            sizes = _sizes([cases[case].bucket_cap for case in own], [cases[case].bucket_cap for case in ids])
            found.append(Members(f"{head}, {sizes}, {ranks}", tuple(sorted(own, key=chosen.index))))
    return tuple(sorted(found, key=lambda each: chosen.index(each.case_ids[0])))


def _along(cases: Mapping[str, Case]) -> list[list[str]]:
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
