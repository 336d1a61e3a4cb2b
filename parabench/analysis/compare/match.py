"""Which cases of several sides are the same work: all fields agree but `device` and `backend`, the machine's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property

from parabench.analysis.session import SessionData
from parabench.plan.case import Case

# What may differ between two cases that are the same work on two machines.
MACHINES_OWN = ("device", "backend")


class Partners:
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
        side = self.sides[other]
        if work in self._skipped[other]:
            return f"skipped in {side.session.name}: {self._skipped[other][work]}"
        planned = work in self._planned[other]
        return (
            f"planned in {side.session.name}, but not launched" if planned else f"not measured in {side.session.name}"
        )

    @cached_property
    def _planned(self) -> list[set[str]]:
        plans = [side.session.plan.get("cases") or [] for side in self.sides]
        return [{_work(Case.from_dict(fields)) for fields in plan} for plan in plans]

    @cached_property
    def _skipped(self) -> list[dict[str, str]]:
        plans = [side.session.plan.get("skipped") or [] for side in self.sides]
        return [{_work(Case.from_dict(entry["case"])): str(entry["reason"]) for entry in plan} for plan in plans]


def _cases(side: SessionData) -> dict[str, Case]:
    stored = side.results.launch.drop_duplicates("case_id").set_index("case_id")["case_json"].to_dict()
    return {str(case): Case.from_dict(json.loads(stored[case])) for case in side.cases_by_id.index}


def _work(case: Case) -> str:
    """What a case computes, as a text that is equal where the work is."""
    return json.dumps({name: value for name, value in case.to_dict().items() if name not in MACHINES_OWN})
