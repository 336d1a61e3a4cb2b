"""Cases that differ in nothing but the bucket size: what their curve shows, and how several are named at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from parabench.analysis.stats.block_model import SHARP_ENOUGH, Effects
from parabench.analysis.text import format
from parabench.plan.case import DEFAULTS, Case

# Two points are no curve.
FEWEST_SIZES = 3


class CurveShape(StrEnum):
    """What a bucket curve shows."""

    OPTIMUM = "optimum"  # some size is distinguishable from the best
    FLAT = "flat"  # none can, and a difference worth having would have been seen
    UNCLEAR = "unclear"  # none can, but the blocks were too few to see such a difference


@dataclass(frozen=True)
class Curve:
    """Cases that differ only in their bucket size. `sizes` are MiB, rising, None (PyTorch's default) last; `case_ids`
    in the same order.

    `half_width` is the widest simultaneous 95 % half-width against the curve's own best, as a fraction; `at_most` how
    much worse than it any of the sizes can be, by the upper ends of those intervals. None where nothing is decided.
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
    """Configurations of the set under one name: neighbouring bucket sizes are said as a range."""

    name: str
    case_ids: tuple[str, ...]


def bucket_curves(
    cases: Mapping[str, Case], labels: Mapping[str, str], effects: Effects, *, decided: bool
) -> tuple[Curve, ...]:
    """The curves of three sizes and more, in the order of `cases`; those that `effects` does not compare are in none.

    A curve is flat when none of its sizes is distinguishable from its best with a half-width of SHARP_ENOUGH or less.
    """
    found = []
    for ids in _along(case for case in cases.items() if case[0] in effects.means):
        if len(ids) < FEWEST_SIZES:
            continue
        best = min(ids, key=effects.means.__getitem__)
        behind = dict(zip(effects.cases, effects.behind(best).tolist(), strict=True))
        others = [case for case in ids if case != best]
        # As the set of the best is found, which the curve is part of.
        width_of = effects.behind_best(best)
        widths = {case: width_of[case] for case in others} if decided else {}
        half_width = format.number_or_none(math.expm1(max(widths.values()))) if widths else None
        upper = max((behind[case] + width for case, width in widths.items()), default=None)
        near = set(effects.indistinguishable(best)) if decided else set(ids)
        shape = CurveShape.UNCLEAR
        if not near.issuperset(ids):
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
                at_most=None if upper is None else format.number_or_none(math.expm1(upper)),
            )
        )
    return tuple(found)


def members(chosen: Sequence[str], cases: Mapping[str, Case], labels: Mapping[str, str]) -> tuple[Members, ...]:
    """The `chosen` cases by name, those of one curve together: 'ddp ring, 10 to 25 MiB, 2 ranks'.

    A range holds every size of it that was tried: `cases` are all of the work, also those that failed.
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
    """Ids of cases that differ only in the bucket, by rising size, PyTorch's default last. A list of caps is no
    size, so it is by itself."""
    groups: dict[tuple[object, ...], list[tuple[str, Case]]] = {}
    for at, case in cases:
        others = (value for name, value in case.to_dict().items() if name != "bucket_mib")
        key = (*others, case.bucket_caps)
        groups.setdefault(key, []).append((at, case))
    return [[at for at, _ in sorted(group, key=lambda one: _size(one[1].bucket_cap))] for group in groups.values()]


def _size(bucket_cap: float | None) -> float:
    return math.inf if bucket_cap is None else bucket_cap


def _without_bucket(case: Case, label: str) -> str:
    """The label with no bucket in it; what a label has beyond its case's own stays."""
    bare = Case(**case.to_dict() | {"bucket_mib": DEFAULTS["bucket_mib"]}).label
    return bare + label.removeprefix(case.label)


def _sizes(own: Collection[float | None], tried: Sequence[float | None]) -> str:
    """'1 and 10 to 25 MiB and default': runs of sizes that were tried next to each other."""
    runs = [
        list(run)
        for inside, run in itertools.groupby((size for size in tried if size is not None), own.__contains__)
        if inside
    ]
    said = [f"{run[0]:g}" if len(run) == 1 else f"{run[0]:g} to {run[-1]:g}" for run in runs]
    numbers = [f"{format.joined(said)} MiB"] if said else []
    return " and ".join([*numbers, *(["default"] if None in own else [])])
