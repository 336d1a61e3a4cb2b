"""Sessions beside each other: which cases of theirs are the same work, and each side's ratios to the first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from parabench.analysis.compare.ratios import (
    Known,
    Pair,
    Ratio,
    Ratios,
    ratios,
    step_times,
    tokens_per_gb,
    tokens_per_joule,
)
from parabench.analysis.compare.rule import Outcome, judge_cases
from parabench.analysis.compare.sides import interleaved
from parabench.analysis.environment.diff import differences
from parabench.analysis.numbers import WORK, unique_labels
from parabench.analysis.session import Origin, SessionData
from parabench.plan.case import Case

# What may differ between two cases that are the same work on two machines.
MACHINES_OWN = ("device", "backend")
# A work's case on every side, None where a side has none.
Row = tuple[str | None, ...]
# What is known of each side's launches, a `Known` a side.
NUMBERS = {"step_time": step_times, "per_joule": tokens_per_joule, "per_gb": tokens_per_gb}
# What the sides of a comparison have in common where they did the same work.
SHARED_WORK = tuple(name for name in WORK if name not in MACHINES_OWN)


# What makes two machines of two sides.
_MACHINES = ("devices", "driver", "cpu", "cores")


def two_machines(first: SessionData, other: SessionData) -> bool:
    """Whether a side ran on other hardware than the first."""
    return any(each.name in _MACHINES and each.matters for each in differences(first, other))


class Matches:
    """The cases of some sides, matched: `cases` are those of each, by id.

    `rows` has a tuple for each work that a side did: its case's id on every side, None where it has none. Where a side
    did one work in several cases, on two kinds of device, each of them has only the same case for a partner.
    """

    def __init__(self, sides: Sequence[SessionData]) -> None:
        self.sides = tuple(sides)
        self.cases = tuple(_cases(side) for side in sides)
        self._works = tuple({at: _work(case) for at, case in cases.items()} for cases in self.cases)
        self._of_work: list[dict[str, list[str]]] = []
        for works in self._works:
            by_work: dict[str, list[str]] = {}
            for case, work in works.items():
                by_work.setdefault(work, []).append(case)
            self._of_work.append(by_work)
        self.rows = tuple(self._rows())

    def _rows(self) -> Iterator[tuple[str | None, ...]]:
        for work in dict.fromkeys(work for works in self._works for work in works.values()):
            here = [cases.get(work, []) for cases in self._of_work]
            if max(map(len, here)) == 1:
                yield tuple(cases[0] if cases else None for cases in here)
            else:
                for case in dict.fromkeys(case for cases in here for case in cases):
                    yield tuple(case if case in cases else None for cases in here)

    def why_alone(self, at: int, case: str, other: int) -> str:
        """Why a case of the side `at` has no partner on the side `other`."""
        work = self._works[at][case]
        if work in self._of_work[other]:
            return "several cases are this work on one of the sides; measure one device and backend a session"
        return self.sides[other].why_missing(self._planned[other].get(work, case))

    @cached_property
    def _planned(self) -> list[dict[str, str]]:
        """Of each side, the id under which its plan has a work."""
        return [{_work(case): at for at, case in side.planned.items()} for side in self.sides]


def _cases(side: SessionData) -> dict[str, Case]:
    return {str(case): side.case(case) for case in side.cases_by_id.index}


def _work(case: Case) -> str:
    """What a case computes, as a text that is equal where the work is."""
    return json.dumps({name: value for name, value in case.to_dict().items() if name not in MACHINES_OWN})


@dataclass(frozen=True)
class Against:
    """A side against the first. Ratios are its number over the first's, by the ids of their cases: of a step's seconds
    (less is better), of tokens per joule, and of tokens/s per GB of peak memory (more is better).

    `paired`: both took turns in one run, and were compared block by block. `outcomes` are what became of each pair by
    the gate's rule, as `parabench compare` judges the same two sessions; `machines`: they ran on two, and intervals are
    of the launches alone, as those of `compare --across-hardware`; `overall.Means` adds what sessions differ.
    """

    side: SessionData
    paired: bool
    machines: bool
    outcomes: dict[Pair, Outcome]
    step_time: Ratios
    per_joule: Ratios
    per_gb: Ratios


@dataclass(frozen=True)
class Several:
    """Two or more sides. `rows` are the works that any of them did: the id of its case on each side, None where it has
    none. `known` are the numbers of the launches of each side, by the names of `NUMBERS`. `launches_alone`: intervals
    hold nothing of what sessions differ, and no case is judged, as two machines are compared."""

    sides: tuple[SessionData, ...]
    origins: tuple[Origin, ...]
    matches: Matches
    known: dict[str, tuple[Known, ...]]
    against: tuple[Against, ...]
    launches_alone: bool = False

    @property
    def first(self) -> SessionData:
        """What the others are held against."""
        return self.sides[0]

    @property
    def rows(self) -> tuple[Row, ...]:
        """As `Matches.rows`."""
        return self.matches.rows

    @cached_property
    def cases(self) -> pd.DataFrame:
        """A row for each of `rows`, in their order: the fields of its case, as the first side that has it calls them,
        `case_id`, and a `label` that no other row has."""
        taken = [next((at, case) for at, case in enumerate(row) if case is not None) for row in self.rows]
        tables = [side.cases_by_id.to_dict("index") for side in self.sides]
        fields: list[dict[Any, Any]] = [tables[at][case] for at, case in taken]
        labels = unique_labels({case: self.matches.cases[at][case] for at, case in taken})
        return pd.DataFrame(fields, columns=[*Case().to_dict(), "statistic"]).assign(
            case_id=[case for _, case in taken], label=[labels[case] for _, case in taken]
        )

    def pair(self, row: Row, at: int) -> Pair | None:
        """The case ids of the first side and the side `at`, where both have the row."""
        first, other = row[0], row[at]
        return None if first is None or other is None else (first, other)

    def ratio(self, row: Row, at: int, name: str = "step_time") -> Ratio | None:
        """The ratio of a row (step_time, per_joule, per_gb) on the side `at`, from 1; None where one side lacks it."""
        pair = self.pair(row, at)
        return None if pair is None else self.ratios_of(at, name).of[pair]

    def ratios_of(self, at: int, name: str = "step_time") -> Ratios:
        """All ratios of the side `at`, from 1."""
        found: Ratios = getattr(self.against[at - 1], name)
        return found

    def change(self, row: Row, at: int) -> Outcome | None:
        """What became of a row on the side `at`, from 1; None where one side lacks it, or no case is judged."""
        pair = self.pair(row, at)
        return None if pair is None else self.against[at - 1].outcomes.get(pair)


def several(sides: Sequence[SessionData], launches_alone: bool = False) -> Several:
    """Put the sides beside each other, the first as the one that the others are held against."""
    matches = Matches(sides)
    known = {name: tuple(number(side) for side in sides) for name, number in NUMBERS.items()}
    return Several(
        tuple(sides),
        tuple(side.origin for side in sides),
        matches,
        known,
        tuple(_against(at, sides, matches, known, launches_alone) for at in range(1, len(sides))),
        launches_alone,
    )


def _against(
    at: int,
    sides: Sequence[SessionData],
    matches: Matches,
    known: Mapping[str, Sequence[Known]],
    launches_alone: bool,
) -> Against:
    both = ((row[0], row[at]) for row in matches.rows)
    pairs = [(first, other) for first, other in both if first is not None and other is not None]
    first, side = sides[0], sides[at]
    paired = interleaved(first, side) and not launches_alone
    machines = launches_alone or two_machines(first, side)
    judged = None if launches_alone else judge_cases({pair: pair for pair in pairs}, first, side)
    outcomes = {pair: end.outcome for pair, end in judged.ends.items() if end.outcome is not None} if judged else {}
    tests = {"step_time": judged.tests} if judged and not machines else {}
    names = first.role, side.role
    found = {
        name: ratios(pairs, each[0], each[at], paired=paired, names=names, tests=tests.get(name))
        for name, each in known.items()
    }
    return Against(side, paired, machines, outcomes, **found)
