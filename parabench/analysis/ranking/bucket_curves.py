"""Bucket curves: configurations that differ only in the bucket size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from parabench.analysis import format
from parabench.analysis.stats.contrasts import SHARP_ENOUGH, Effects
from parabench.plan.case import DEFAULTS, Case

# Two points are not a curve.
FEWEST_SIZES = 3


class CurveShape(StrEnum):
    """The result for a bucket curve."""

    OPTIMUM = "optimum"  # some size is distinguishable from the best
    FLAT = "flat"  # none is, and a difference worth having would have been detected
    UNCLEAR = "unclear"  # none is, but the blocks were too few to detect such a difference


@dataclass(frozen=True)
class Curve:
    """Cases that differ only in their bucket size.

    `sizes` are MiB in rising order, `None` (PyTorch's default) last; `case_ids` are in the same order.
    """

    name: str
    sizes: tuple[float | None, ...]
    case_ids: tuple[str, ...]
    best_case_id: str
    shape: CurveShape
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
    for ids in _along(case for case in cases.items() if case[0] in effects.means):
        if len(ids) < FEWEST_SIZES:
            continue
        best = min(ids, key=effects.means.__getitem__)
        others = [case for case in ids if case != best]
        behind, widths = effects.behind(best)[others], effects.best_half_widths(best)[others]
        half_width = format.number_or_none(math.expm1(widths.max())) if decided else None
        shape = CurveShape.UNCLEAR
        if decided and not set(effects.indistinguishable(best)).issuperset(ids):
            shape = CurveShape.OPTIMUM
        elif half_width is not None and half_width <= SHARP_ENOUGH:
            shape = CurveShape.FLAT
        found.append(
            Curve(
                name=_without_bucket(cases[best], labels[best]),
                sizes=tuple(cases[case].bucket_cap for case in ids),
                case_ids=tuple(ids),
                best_case_id=best,
                shape=shape,
                half_width=half_width,
                at_most=format.number_or_none(math.expm1((behind + widths).max())) if decided else None,
            )
        )
    return tuple(found)


def curve_notes(curves: Iterable[Curve], blocks: int, of: str) -> list[str]:
    """Describe flat and unclear curves; those of the same sizes share a sentence. `of` names the objective."""
    found = []
    groups: dict[tuple[CurveShape, tuple[float | None, ...]], list[Curve]] = {}
    for curve in curves:
        if curve.half_width is not None and curve.shape is not CurveShape.OPTIMUM:
            groups.setdefault((curve.shape, curve.sizes), []).append(curve)
    for (shape, sizes), group in sorted(groups.items(), key=lambda each: each[0][0] is CurveShape.UNCLEAR):
        names = format.listed((curve.name for curve in group), most=3)
        within = format.within(max(curve.half_width or 0.0 for curve in group))
        count = format.count(blocks, "block")
        if shape is CurveShape.UNCLEAR:
            found.append(f"{names}: {count} are too few to resolve an effect of the bucket size{of} ({within}).")
            continue
        numbers = [size for size in sizes if size is not None]
        default = " and at PyTorch's default" if None in sizes else ""
        span = f"from {numbers[0]:g} to {numbers[-1]:g} MiB{default}"
        at_most = max(curve.at_most or 0.0 for curve in group)
        behind = f"; no size is more than {format.percent(at_most)} behind" if at_most > format.EXACT else ""
        found.append(
            f"{names}: the bucket size makes no significant difference{of} {span} ({count}, {within}{behind})."
        )
    return found


def members(chosen: Sequence[str], cases: Mapping[str, Case], labels: Mapping[str, str]) -> tuple[Members, ...]:
    """Return the `chosen` cases by name, those of one curve together: 'ddp ring, 10 to 25 MiB, 2 ranks'.

    A range contains every size that was tried: `cases` are all of the workload, also those that failed.
    """
    found = []
    for ids in _along(cases.items()):
        own = [case for case in ids if case in chosen]
        if not own:
            continue
        name = labels[own[0]]
        if len(own) > 1:
            head, _, ranks = _without_bucket(cases[own[0]], name).rpartition(", ")
            tried = [cases[case].bucket_cap for case in ids]
            name = f"{head}, {_sizes([cases[case].bucket_cap for case in own], tried)}, {ranks}"
        found.append((min(map(chosen.index, own)), Members(name, tuple(sorted(own, key=chosen.index)))))
    return tuple(each for _, each in sorted(found, key=lambda one: one[0]))


def _along(cases: Iterable[tuple[str, Case]]) -> list[list[str]]:
    """Group ids of cases that differ only in the bucket size, PyTorch's default last. A list of caps is not a size, so
    it has its own group."""
    groups: dict[tuple[object, ...], list[tuple[str, Case]]] = {}
    for at, case in cases:
        others = (value for name, value in case.to_dict().items() if name != "bucket_mib")
        key = (*others, case.bucket_caps)
        groups.setdefault(key, []).append((at, case))

    def size(pair: tuple[str, Case]) -> float:
        return math.inf if pair[1].bucket_cap is None else pair[1].bucket_cap

    return [[at for at, _ in sorted(group, key=size)] for group in groups.values()]


def _without_bucket(case: Case, label: str) -> str:
    """Return the label without the bucket size, with anything that it has beyond the label of its case."""
    bare = Case(**case.to_dict() | {"bucket_mib": DEFAULTS["bucket_mib"]}).label
    return bare + label.removeprefix(case.label)


def _sizes(own: Collection[float | None], tried: Sequence[float | None]) -> str:
    """Return the sizes with runs of neighbors among those `tried`: '1 and 10 to 25 MiB and default'."""
    runs = [
        list(run)
        for inside, run in itertools.groupby((size for size in tried if size is not None), own.__contains__)
        if inside
    ]
    texts = [f"{run[0]:g}" if len(run) == 1 else f"{run[0]:g} to {run[-1]:g}" for run in runs]
    numbers = [f"{format.joined(texts)} MiB"] if texts else []
    return " and ".join([*numbers, *(["default"] if None in own else [])])
