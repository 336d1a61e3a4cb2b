"""Two or more sessions side by side: which of their configurations do the same work, and how they compare."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from parabench.analysis.compare.between import alike
from parabench.analysis.compare.cases import (
    CaseResult,
    Known,
    Ratio,
    compare_cases,
    ratios,
    step_times,
    tokens_per_gb,
    tokens_per_joule,
)
from parabench.analysis.compare.sides import interleaved
from parabench.analysis.environment.diff import differences
from parabench.analysis.numbers import WORK, unique_labels
from parabench.analysis.session import Origin, SessionData
from parabench.plan.case import Case

# Two configurations that differ only in these fields do the same work.
MACHINES_OWN = ("device", "backend")
SHARED_WORK = tuple(name for name in WORK if name not in MACHINES_OWN)
NUMBERS = {"step_time": step_times, "per_joule": tokens_per_joule, "per_gb": tokens_per_gb}
_MACHINES = ("devices", "driver", "cpu", "cores")


@dataclass(frozen=True)
class Row:
    """One configuration. `cases` holds its id on every side, None if a side does not have it, and `missing` why not.

    The others hold one entry for each side but the first, relative to the first: the step time by the gate's rule,
    tokens per joule, and tokens/s per GB of peak memory. An entry is None if one of the two sides does not have the
    configuration.
    """

    label: str
    cases: tuple[str | None, ...]
    missing: tuple[str, ...]
    step_time: tuple[CaseResult | None, ...]
    per_joule: tuple[Ratio | None, ...]
    per_gb: tuple[Ratio | None, ...]

    def ratio(self, name: str, at: int) -> CaseResult | Ratio | None:
        """Return an entry of `step_time`, `per_joule` or `per_gb` of the side `at`, from 1."""
        found: CaseResult | Ratio | None = getattr(self, name)[at - 1]
        return found


class Several:
    """Sessions; all are compared with the first.

    `known` holds the numbers of the launches of each side, by the names of `NUMBERS`. `paired` tells for each side
    whether it was interleaved with the first, and `other_hardware` whether it ran on other hardware.
    """

    def __init__(self, sides: Sequence[SessionData]) -> None:
        self.sides = tuple(sides)
        self.first = self.sides[0]
        self.names = tuple(side.role for side in sides)
        self.known: dict[str, tuple[Known, ...]] = {
            name: tuple(number(side) for side in sides) for name, number in NUMBERS.items()
        }
        self.paired = tuple(interleaved(self.first, side) for side in sides)
        self.other_hardware = tuple(
            any(each.name in _MACHINES and each.matters for each in differences(self.first, side)) for side in sides
        )
        self._cases = tuple({str(id_): side.case(str(id_)) for id_ in side.cases_by_id.index} for side in sides)
        self._works = tuple({id_: _work(case) for id_, case in cases.items()} for cases in self._cases)
        self._alike: dict[tuple[int, int], list[SessionData]] = {}
        self.rows = tuple(self._rows())

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Where the numbers of each side are stored."""
        return tuple(side.origin for side in self.sides)

    def _matched(self) -> Iterator[tuple[str | None, ...]]:
        """Yield the ids of each configuration on all sides.

        If a side did one work in several configurations, on two kinds of device, each is matched by its id.
        """
        for work in dict.fromkeys(work for works in self._works for work in works.values()):
            here = [[id_ for id_, own in works.items() if own == work] for works in self._works]
            if max(map(len, here)) == 1:
                yield tuple(ids[0] if ids else None for ids in here)
            else:
                for each in dict.fromkeys(id_ for ids in here for id_ in ids):
                    yield tuple(each if each in ids else None for ids in here)

    def _rows(self) -> Iterator[Row]:
        matched = list(self._matched())
        labels = unique_labels({id_: self._cases[at][id_] for at, id_ in map(_first, matched)})
        found: dict[str, list[dict[Any, Any]]] = {name: [] for name in NUMBERS}
        for at in range(1, len(self.sides)):
            both = [(ids[0], ids[at]) for ids in matched]
            pairs = [(old, new) for old, new in both if old is not None and new is not None]
            found["step_time"].append(compare_cases(pairs, self.first, self.sides[at])[0])
            for name in ("per_joule", "per_gb"):
                known, names = self.known[name], (self.names[0], self.names[at])
                found[name].append(ratios(pairs, known[0], known[at], self.paired[at], names))
        for ids in matched:
            own = {
                name: tuple(results.get((ids[0], id_)) for results, id_ in zip(each, ids[1:], strict=True))
                for name, each in found.items()
            }
            missing = tuple("" if id_ is not None else self._why_missing(ids, at) for at, id_ in enumerate(ids))
            yield Row(labels[_first(ids)[1]], ids, missing, **own)

    @cached_property
    def cases(self) -> pd.DataFrame:
        """One row for each of `rows`: the fields of its configuration on the first side that has it, and `case_id`."""
        tables = [side.cases_by_id.to_dict("index") for side in self.sides]
        taken = [_first(row.cases) for row in self.rows]
        fields: list[dict[Any, Any]] = [tables[at][id_] for at, id_ in taken]
        return pd.DataFrame(fields, columns=[*Case().to_dict(), "statistic"]).assign(
            case_id=[id_ for _, id_ in taken], label=[row.label for row in self.rows]
        )

    def common(self, at: int) -> list[tuple[str, str]]:
        """Return the ids, on the first side and on the side `at`, of the configurations that both have."""
        both = ((row.cases[0], row.cases[at]) for row in self.rows)
        return [(old, new) for old, new in both if old is not None and new is not None]

    def lost(self, rows: Iterable[Row], well: int, other: int) -> list[Row]:
        """Return the rows that succeeded on the side `well`, and were launched but failed on the side `other`."""
        there, here = (self.known["step_time"][at].by_case for at in (well, other))
        return [
            row
            for row in rows
            if row.cases[well] in there and row.cases[other] is not None and row.cases[other] not in here
        ]

    def _why_missing(self, ids: Sequence[str | None], at: int) -> str:
        side, id_ = _first(ids)
        work = self._works[side][id_]
        if work in self._works[at].values():
            return "several cases are this work on one of the sides; measure one device and backend a session"
        return self.sides[at].why_missing(self._planned[at].get(work, id_))

    @cached_property
    def _planned(self) -> list[dict[str, str]]:
        """The id under which the plan of each side has a work."""
        return [{_work(case): own for own, case in side.planned.items()} for side in self.sides]

    def alike(self, base: int, other: int) -> list[SessionData]:
        """Return the sessions whose variation belongs to the error between two sides (`between.alike`)."""
        if (base, other) not in self._alike:
            self._alike[base, other] = list(alike(self.sides[base], self.sides[other]))
        return self._alike[base, other]


def _first(ids: Sequence[str | None]) -> tuple[int, str]:
    """Return the first side that has a configuration, and its id there."""
    return next((at, id_) for at, id_ in enumerate(ids) if id_ is not None)


def _work(case: Case) -> str:
    """Return what a configuration computes as text, which is equal on all machines."""
    return json.dumps({name: value for name, value in case.to_dict().items() if name not in MACHINES_OWN})
