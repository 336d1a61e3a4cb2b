"""Two or more sessions side by side: configurations with the same workload, and their ratios to the first session."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from parabench.analysis.compare.between import alike
from parabench.analysis.compare.cases import CaseResult, compare_cases, too_few
from parabench.analysis.compare.sides import interleaved
from parabench.analysis.environment.diff import differences
from parabench.analysis.numbers import WORK, by_case, of_pair, unique_labels
from parabench.analysis.session import SessionData
from parabench.analysis.stats.contrasts import factor, judge, logs_of
from parabench.plan.case import Case
from parabench.store.record import GB

# Two configurations that differ only in these fields have the same workload.
MACHINES_OWN = ("device", "backend")
SHARED_WORK = tuple(name for name in WORK if name not in MACHINES_OWN)
_MACHINES = ("devices", "driver", "cpu", "cores")
Pair = tuple[str, str]


@dataclass(frozen=True)
class Ratio:
    """A number of a configuration on two sides, and candidate / base with its 95% interval from the launches alone.

    `base` and `candidate` are geometric means over launches. `reason` is why a number or the interval is unknown.
    """

    base: float | None
    candidate: float | None
    ratio: float | None
    low: float | None
    high: float | None
    reason: str


@dataclass(frozen=True)
class Known:
    """A number of the launches of a side by configuration (`numbers.by_case`), and why others have none."""

    by_case: Mapping[str, pd.Series[float]]
    why: Mapping[str, str]

    @classmethod
    def of(cls, side: SessionData, value: pd.Series[float], reason: str | pd.Series[str]) -> Known:
        """Take `value` of the launches that count; `reason` is why it is unknown."""
        good = side.counted.assign(value=value, reason=reason)
        unknown = good[good["value"].isna() & (good["reason"] != "")].drop_duplicates("case").set_index("case")
        failed = side.cases_by_id["status"][~side.cases_by_id.index.isin(list(side.by_case))]
        why = unknown["reason"].to_dict() | {case: f"its launches ended {how}" for case, how in failed.items()}
        return cls(by_case(good[good["value"] > 0], "value"), {str(case): text for case, text in why.items()})


def _known(side: SessionData) -> dict[str, Known]:
    """Return the numbers that are compared: seconds, and what a configuration gives per joule and per GB.

    Throughput is in tokens, or in samples for models without sequences. Joules are of all devices in the measured
    steps, peak memory is of the largest rank.
    """
    counted = side.counted
    per_gb = counted["tokens_per_s"] / (counted["peak_memory_bytes"] / GB)
    return {
        "step_time": Known(side.by_case, {}),
        "per_joule": Known.of(side, 1 / counted["token_j"], counted["joules_reason"]),
        "per_gb": Known.of(side, per_gb, "peak memory was not recorded"),
    }


def ratios(
    pairs: Sequence[Pair], base: Known, candidate: Known, paired: bool, names: tuple[str, str]
) -> dict[Pair, Ratio]:
    """Return the ratio of a number of each configuration; `names` are the names of the sides."""
    launches = {pair: of_pair(pair, base.by_case, candidate.by_case, paired) for pair in pairs}
    logs = {pair: (logs_of(own[0]), logs_of(own[1])) for pair, own in launches.items()}
    tests = judge(logs, paired=paired)
    found: dict[Pair, Ratio] = {}
    for pair, own in logs.items():
        first, other = (math.exp(side.mean()) if len(side) else None for side in own)
        test = tests.get(pair)
        if first is None or other is None:
            why = {name: side.why.get(id_) for name, side, id_ in zip(names, (base, candidate), pair, strict=True)}
            said = [f"on {name}, {text}" for name, text in why.items() if text]
            reason = " and ".join(said) if len(set(why.values())) > 1 else why[names[0]] or ""
            found[pair] = Ratio(first, other, None, None, None, reason)
        elif test is None:
            found[pair] = Ratio(first, other, other / first, None, None, too_few(launches[pair]))
        else:
            found[pair] = Ratio(first, other, other / first, factor(test.low), factor(test.high), "")
    return found


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

    `known` holds each number of the launches of all sides. `paired` tells for each side whether it was interleaved with
    the first, and `other_hardware` whether it ran on other hardware.
    """

    def __init__(self, sides: Sequence[SessionData]) -> None:
        self.sides = tuple(sides)
        self.first = self.sides[0]
        self.names = tuple(side.role for side in sides)
        self.origins = tuple(side.origin for side in sides)
        known = [_known(side) for side in sides]
        self.known = {name: tuple(each[name] for each in known) for name in known[0]}
        self.paired = tuple(interleaved(self.first, side) for side in sides)
        self.other_hardware = tuple(
            any(each.name in _MACHINES and each.matters for each in differences(self.first, side)) for side in sides
        )
        self._cases = [{str(id_): side.case(str(id_)) for id_ in side.cases_by_id.index} for side in sides]
        self._works = [{id_: _work(case) for id_, case in cases.items()} for cases in self._cases]
        # The id under which the plan of each side has a configuration.
        self._planned = [{_work(case): id_ for id_, case in side.planned.items()} for side in sides]
        self._alike: dict[tuple[int, int], list[SessionData]] = {}
        self.rows = tuple(self._rows())

    def _matched(self) -> Iterator[tuple[str | None, ...]]:
        """Yield the ids of each configuration on all sides.

        If a side measured a workload on two kinds of device, its configurations are matched by id.
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
        found: dict[str, list[dict[Any, Any]]] = {name: [] for name in self.known}
        for at in range(1, len(self.sides)):
            pairs = _common(matched, at)
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

    def common(self, at: int) -> list[Pair]:
        """Return the ids, on the first side and on the side `at`, of the configurations that both have."""
        return _common([row.cases for row in self.rows], at)

    def lost(self, rows: Iterable[Row], well: int, other: int) -> list[Row]:
        """Return the rows with a step time on the side `well` that were launched on the side `other` and have none."""
        there, here = (self.sides[at].by_case for at in (well, other))
        return [
            row
            for row in rows
            if row.cases[well] in there and row.cases[other] is not None and row.cases[other] not in here
        ]

    def _why_missing(self, ids: Sequence[str | None], at: int) -> str:
        side, id_ = _first(ids)
        own = self._planned[at].get(self._works[side][id_], id_)
        return self.sides[at].why_missing(id_ if own in self._cases[at] else own)

    def alike(self, base: int, other: int) -> list[SessionData]:
        """Return the sessions whose variation belongs to the error between two sides (`between.alike`)."""
        if (base, other) not in self._alike:
            self._alike[base, other] = list(alike(self.sides[base], self.sides[other]))
        return self._alike[base, other]


def _common(matched: Iterable[Sequence[str | None]], at: int) -> list[Pair]:
    both = ((ids[0], ids[at]) for ids in matched)
    return [(old, new) for old, new in both if old is not None and new is not None]


def _first(ids: Sequence[str | None]) -> tuple[int, str]:
    """Return the first side that has a configuration, and its id there."""
    return next((at, id_) for at, id_ in enumerate(ids) if id_ is not None)


def _work(case: Case) -> str:
    """Return the workload and strategy of a configuration as text, which is equal on all machines."""
    return json.dumps({name: value for name, value in case.to_dict().items() if name not in MACHINES_OWN})
