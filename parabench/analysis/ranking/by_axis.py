"""The best configuration for each value of an axis, or of several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parabench.analysis.stats.block_model import Effects
from parabench.errors import UsageError, did_you_mean
from parabench.plan.case import DEFAULTS, Case
from parabench.strategies import OPTIONAL, entry_of


@dataclass(frozen=True)
class Place:
    """The best of the configurations with these `values`, its `case_id`; None where none of them is compared.

    `names` are the values as they are said ('default', or '–' where the strategy has no such axis). `distinguishable`
    from the best of all; None where that is itself, or nothing is decided. `configurations` counts those with a number,
    `status` how the launches of all of them ended."""

    values: dict[str, Any]
    names: tuple[str, ...]
    case_id: str | None
    distinguishable: bool | None
    configurations: int
    status: str


def check_axes(names: Iterable[str]) -> tuple[str, ...]:
    """The axes, each once. Raises UsageError for one that a case does not have, with those that read alike."""
    names = tuple(dict.fromkeys(names))
    for name in names:
        if name not in DEFAULTS:
            hint = did_you_mean(name, DEFAULTS, most=3, cutoff=0.5)
            raise UsageError(f"--by {name!r} is not an axis; {hint}use one of {', '.join(DEFAULTS)}")
    return names


def places(
    axes: Sequence[str],
    cases: Mapping[str, Case],
    statuses: Mapping[str, str],
    effects: Effects,
    near: Iterable[str] | None,
) -> tuple[Place, ...]:
    """A place for each value of `axes` among `cases`, the best first, those without a number last.

    `near` are the cases that are not distinguishable from the best of all; None where nothing is decided.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for at, case in cases.items():
        groups.setdefault(tuple(_name(case, axis) for axis in axes), []).append(at)
    place = {case: at for at, case in enumerate(effects.connected())}
    alike = None if near is None else set(near)
    found = []
    for names, ids in groups.items():
        measured = [at for at in ids if at in place]
        own = min(measured, key=place.__getitem__, default=None)
        ended = ", ".join(dict.fromkeys(statuses[at] for at in ids))
        apart = None if own is None or place[own] == 0 or alike is None else own not in alike
        values = {axis: getattr(cases[ids[0]], axis) if _has(cases[ids[0]], axis) else None for axis in axes}
        found.append(Place(values, names, own, apart, len(measured), ended))
    return tuple(sorted(found, key=lambda each: len(place) if each.case_id is None else place[each.case_id]))


def _name(case: Case, axis: str) -> str:
    value = case.cells()[axis]
    if not _has(case, axis):
        return "–"
    if type(value) is bool:
        return "on" if value else "off"
    if value is None:
        return "default" if axis == "bucket_mib" else "none"
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


def _has(case: Case, axis: str) -> bool:
    """Whether the strategy has the axis at all; elsewhere its value would mean nothing."""
    return axis not in OPTIONAL or axis in entry_of(case.strategy).axes or getattr(case, axis) != DEFAULTS[axis]
