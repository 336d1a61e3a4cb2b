"""Compare two or more sessions: their configurations, and one table of all ratios to the first session."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import pandas as pd

from parabench.analysis.answer import Columns, table
from parabench.analysis.compare.between import ALLOWANCE, BetweenSessions, alike
from parabench.analysis.compare.cases import ALPHA, TOLERANCE, ByCase, Outcome, Pair, Row, contrast, step_times
from parabench.analysis.compare.sides import interleaved
from parabench.analysis.environment.diff import differences
from parabench.analysis.numbers import WORK, by_case, unique_labels
from parabench.analysis.session import SessionData
from parabench.plan.case import Case
from parabench.store.record import GB

# Two configurations that differ only in these fields have the same workload.
MACHINES_OWN = ("device", "backend")
SHARED_WORK = tuple(name for name in WORK if name not in MACHINES_OWN)
_MACHINES = ("devices", "driver", "cpu", "cores")
STEP = "step_time"
# Throughput relative to energy and memory, with names for sentences. Throughput is in tokens, or in samples for models
# without sequences. Joules are of all devices in the measured steps, peak memory is of the rank with the highest one.
GIVES = {"per_joule": "per joule", "per_gb": "/s per GB of peak memory"}
# The columns of `Comparison.ratios`: a row per configuration, quantity and side `at`, which is the candidate. `both`:
# this side and the first launched the configuration. The columns from `outcome` on belong to step times.
RATIOS: Columns = {
    "row": int, "at": int, "both": bool, "quantity": str, "case_id": str, "label": str, "base": float | None,
    "candidate": float | None, "ratio": float | None, "low": float | None, "high": float | None, "upper": float | None,
    "p_slower": float | None, "session_sd": float | None, "base_launches": tuple[int, ...],
    "candidate_launches": tuple[int, ...], "note": str, "outcome": Outcome | None, "launches_needed": int | None,
    "exempt": bool, "fails_more": bool,
}  # fmt: skip
# The numbers of a configuration on a side, from `numbers.case_table`.
NUMBERS = (
    "step_time_s", "low_s", "high_s", "spread", "p90_s", "tokens_per_s", "peak_memory_bytes", "n_ok", "n_launches",
)  # fmt: skip


@dataclass(frozen=True)
class Known:
    """A number of the launches of a side by configuration, and why others have none."""

    by_case: ByCase
    why: dict[str, str]


@dataclass(frozen=True)
class Comparison:
    """Sessions, all compared with the first. All tables are indexed by configuration, from 0."""

    sides: tuple[SessionData, ...]
    ids: pd.DataFrame  # the id of each configuration on each side (a column), also if it was not launched there
    measured: pd.DataFrame  # whether each side launched it
    cases: pd.DataFrame  # its fields, `case_id` and `label` on the first side that launched it
    ratios: pd.DataFrame  # with the columns RATIOS
    known: Sequence[Mapping[str, Known]]  # the quantities of each side
    # For each side but the first:
    between: tuple[BetweenSessions | None, ...]
    alike: tuple[list[SessionData], ...]  # `between.alike`

    @property
    def first(self) -> SessionData:
        """The session that the others are compared with."""
        return self.sides[0]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(side.role for side in self.sides)

    @cached_property
    def paired(self) -> tuple[bool, ...]:
        return tuple(interleaved(self.first, side) for side in self.sides)

    @cached_property
    def other_hardware(self) -> tuple[bool, ...]:
        return tuple(
            any(each.name in _MACHINES and each.matters for each in differences(self.first, side))
            for side in self.sides
        )

    @cached_property
    def timed(self) -> pd.DataFrame:
        """Whether a configuration has a step time on each side."""
        return pd.DataFrame({at: self.ids[at].isin(list(side.by_case)) for at, side in enumerate(self.sides)})

    @cached_property
    def numbers(self) -> pd.DataFrame:
        """NUMBERS, `device`, `status` and `error` of each configuration `row` and side `at`; NaN if not launched."""
        return pd.concat(
            [
                side.cases_by_id[[*NUMBERS, "device", "status", "error"]]
                .astype(dict.fromkeys(NUMBERS, float) | {"error": object})
                .reindex(self.ids[at])
                .set_axis(self.ids.index)
                .assign(row=self.ids.index, at=at)
                for at, side in enumerate(self.sides)
            ]
        )

    def of(self, quantity: str, at: int | None = None) -> pd.DataFrame:
        """Return the ratios of configurations that both sides launched, of one side or of all."""
        chosen = (self.ratios["quantity"] == quantity) & self.ratios["both"]
        return self.ratios[chosen if at is None else chosen & (self.ratios["at"] == at)]

    def id(self, row: int, at: int) -> str:
        """Return the id of a configuration on a side."""
        return str(self.ids.at[row, at])

    def common(self, at: int) -> list[Pair]:
        """Return the ids, on the first side and on the side `at`, of the configurations that both launched."""
        own = self.ids[self.measured[0] & self.measured[at]]
        return list(zip(own[0], own[at], strict=True))

    def lost(self, well: int, other: int) -> pd.Series[bool]:
        """Return whether a configuration has a step time on the side `well`, and was launched on `other` without."""
        return self.timed[well] & self.measured[other] & ~self.timed[other]

    def why_missing(self, row: int, at: int) -> str:
        """Return why a side did not launch a configuration; empty if it did."""
        return "" if self.measured.at[row, at] else self.sides[at].why_missing(self.id(row, at))


def compare_sessions(
    sides: Sequence[SessionData],
    *,
    by_id: bool = False,
    tolerance: float = TOLERANCE,
    alpha: float = ALPHA,
    allowance: float = ALLOWANCE,
) -> Comparison:
    """Compare sessions with the first. Configurations match if they have the same workload on any machine, or `by_id`.

    `tolerance`, `alpha` and `allowance` are passed to `cases.step_times`.
    """
    ids, measured = _matched(sides, by_id)
    firsts = measured.to_numpy().argmax(axis=1).tolist()
    found = [(sides[at], str(ids.at[row, at])) for row, at in enumerate(firsts)]
    labels = unique_labels({id_: side.case(id_) for side, id_ in found})
    fields = [side.cases_by_id.loc[id_].to_dict() for side, id_ in found]
    cases = pd.DataFrame(fields, columns=[*Case().to_dict(), "statistic"]).assign(
        case_id=[id_ for _, id_ in found], label=[labels[id_] for _, id_ in found]
    )
    known = [_known(side) for side in sides]
    between: list[BetweenSessions | None] = []
    same: list[list[SessionData]] = []
    rows: list[Row] = []
    for at, side in enumerate(sides[1:], 1):
        paired = interleaved(sides[0], side)
        others = [] if paired else alike(sides[0], side)
        same.append(others)
        places = ids.index[measured[0] | measured[at]]
        pairs = list(zip(ids[0][places], ids[at][places], strict=True))
        steps, entered = step_times(pairs, sides[0], side, tolerance, alpha, allowance, others)
        between.append(entered)
        of_side = {STEP: steps}
        for name in GIVES:
            of_side[name] = _given(pairs, (sides[0].role, side.role), (known[0][name], known[at][name]), paired)
        for i, row in enumerate(places.tolist()):
            both = bool(measured.at[row, 0] and measured.at[row, at])
            named = {"case_id": pairs[i][bool(measured.at[row, at])], "label": cases.at[row, "label"]}
            key = {"row": row, "at": at, "both": both} | named
            rows += [_NO_OUTCOME | own[i] | key | {"quantity": name} for name, own in of_side.items()]
    ratios = table(RATIOS, rows).astype({"row": int, "at": int, "both": bool})
    return Comparison(tuple(sides), ids, measured, cases, ratios, known, tuple(between), tuple(same))


_NO_OUTCOME = {"outcome": None, "launches_needed": None, "exempt": False, "fails_more": False}


def _matched(sides: Sequence[SessionData], by_id: bool) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return `ids` and `measured` of a comparison.

    If a side measured a workload on two kinds of device, its configurations are matched by id.
    """

    def key(id_: str, case: Case) -> str:
        return id_ if by_id else json.dumps({k: v for k, v in case.to_dict().items() if k not in MACHINES_OWN})

    works = [{str(id_): key(str(id_), side.case(str(id_))) for id_ in side.cases_by_id.index} for side in sides]
    twice = {work for own in works for work, count in Counter(own.values()).items() if count > 1}
    launched = [{id_ if work in twice else work: id_ for id_, work in own.items()} for own in works]
    planned = [{key(id_, case): id_ for id_, case in side.planned.items()} for side in sides]
    rows = []
    for work in dict.fromkeys(chain.from_iterable(launched)):
        first = next(own[work] for own in launched if work in own)
        rows.append([own.get(work) or plan.get(work, first) for own, plan in zip(launched, planned, strict=True)])
    ids = pd.DataFrame(rows, columns=range(len(sides)), dtype=object)
    measured = {at: ids[at].isin(list(side.cases_by_id.index)) for at, side in enumerate(sides)}
    return ids, pd.DataFrame(measured, index=ids.index)


def _known(side: SessionData) -> dict[str, Known]:
    """Return the quantities of a side."""
    own = side.counted
    failed = side.cases_by_id["status"][~side.cases_by_id.index.isin(list(side.by_case))]
    failures = {str(case): f"its launches ended {how}" for case, how in failed.items()}

    def per_launch(value: pd.Series[float], reason: str | pd.Series[str]) -> Known:
        found = own.assign(value=value, reason=reason)
        unknown = found[found["value"].isna() & (found["reason"] != "")].drop_duplicates("case")
        why = dict(zip(unknown["case"], unknown["reason"], strict=True)) | failures
        return Known(by_case(found[found["value"] > 0], "value"), why)

    per_gb = own["tokens_per_s"] / (own["peak_memory_bytes"] / GB)
    return {
        STEP: Known(side.by_case, {}),
        "per_joule": per_launch(1 / own["token_j"], own["joules_reason"]),
        "per_gb": per_launch(per_gb, "peak memory was not recorded"),
    }


def _given(pairs: Sequence[Pair], names: tuple[str, str], known: tuple[Known, Known], paired: bool) -> list[Row]:
    """Return the rows of a quantity of `GIVES`."""
    base, other = known
    rows = contrast(pairs, base.by_case, other.by_case, paired)
    for pair, row in zip(pairs, rows, strict=True):
        if row["ratio"] is None:
            why = [side.why.get(id_, "") for side, id_ in zip(known, pair, strict=True)]
            texts = [f"on {name}, {text}" for name, text in zip(names, why, strict=True) if text]
            row["note"] = " and ".join(texts) if why[0] != why[1] else why[0]
    return rows
