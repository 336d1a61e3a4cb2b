"""Which cases of several sides are the same work: all fields agree but `device` and `backend`, the machine's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from parabench.analysis.gate.sides import Side
from parabench.case import Case

# What may differ between two cases that are the same work on two machines.
MACHINES_OWN = ("device", "backend")


class Partners:
    """The cases of some sides, matched.

    `rows` has a tuple for each work that a side did: its case's id on every side, None where it has none. Where a side
    did one work in several cases, on two kinds of device, each of them has only the same case for a partner.
    """

    def __init__(self, sides: Sequence[Side]) -> None:
        self.sides = tuple(sides)
        self.works = tuple(_works(side) for side in sides)
        self._cases: list[dict[str, list[str]]] = []
        for works in self.works:
            by_work: dict[str, list[str]] = {}
            for case, work in works.items():
                by_work.setdefault(work, []).append(case)
            self._cases.append(by_work)
        self.rows = tuple(self._rows())

    def _rows(self) -> Iterator[tuple[str | None, ...]]:
        for work in dict.fromkeys(work for works in self.works for work in works.values()):
            here = [cases.get(work, []) for cases in self._cases]
            if max(map(len, here)) == 1:
                yield tuple(cases[0] if cases else None for cases in here)
            else:
                for case in dict.fromkeys(case for cases in here for case in cases):
                    yield tuple(case if case in cases else None for cases in here)

    def why_alone(self, at: int, case: str, other: int) -> str:
        """Why a case of the side `at` has no partner on the side `other`."""
        work = self.works[at][case]
        if work in self._cases[other]:
            return "several cases are this work on one of the sides; measure one device and backend a session"
        return _why_missing(self.sides[other], work)


def _works(side: Side) -> dict[str, str]:
    """What each case of a side computes, as a text that is equal where the work is."""
    stored = side.results.launch.drop_duplicates("case_id").set_index("case_id")["case_json"].to_dict()
    return {str(case): _work(json.loads(stored[case])) for case in side.cases.index}


def _work(fields: Mapping[str, Any]) -> str:
    every = Case.from_dict(dict(fields)).to_dict()
    return json.dumps({name: value for name, value in every.items() if name not in MACHINES_OWN}, sort_keys=True)


def _why_missing(side: Side, work: str) -> str:
    for entry in side.session.plan.get("skipped") or []:
        if _work(entry["case"]) == work:
            return f"skipped in {side.session.name}: {entry['reason']}"
    return f"not measured in {side.session.name}"
