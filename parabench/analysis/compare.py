"""Did it get slower? Two sessions, case by case, with the false alarms of many cases held in check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis import words
from parabench.analysis.frames import case_table, counted, launch_table
from parabench.analysis.session import Session, select_session
from parabench.analysis.welch import holm, welch
from parabench.case import Case
from parabench.errors import UsageError
from parabench.record import FIRST_BLOCK, Status
from parabench.store import Results

# Below two launches a side there is no spread to judge a difference against.
FEWEST_LAUNCHES = 2
FAILURES = (Status.WRONG, Status.OOM, Status.CRASHED, Status.HUNG, Status.FAILED)


class Outcome(StrEnum):
    """What became of one case. The first two fail a gate."""

    SLOWER = "slower"
    BROKE = "broke"
    FASTER = "faster"
    SAME = "same"
    UNCLEAR = "unclear"
    NOT_JUDGED = "cannot be judged"
    NOT_OK = "not ok"
    FIXED = "fixed"
    ONLY_BASE = "only in base"
    ONLY_NEW = "only in new"


REGRESSIONS = (Outcome.SLOWER, Outcome.BROKE)


@dataclass(frozen=True)
class Row:
    """One case. `ratio` is new / base, `low` to `high` its 95 % interval; `p_slower` is adjusted by Holm."""

    case_id: str
    label: str
    outcome: Outcome
    base_s: float | None
    new_s: float | None
    ratio: float | None
    low: float | None
    high: float | None
    p_slower: float | None
    base_launches: int
    new_launches: int
    note: str

    def line(self) -> str:
        """The row as one line of text."""
        if self.ratio is None:
            return f"{self.outcome}: {self.label}: {self.note}"
        change = f"{words.milliseconds(self.base_s)} -> {words.milliseconds(self.new_s)}"
        change += f", {_signed(self.ratio - 1)}"
        if self.low is not None and self.high is not None:
            change += f" (95 %: {_signed(self.low - 1)} to {_signed(self.high - 1)})"
        return f"{self.outcome}: {self.label}: {change}{'; ' + self.note if self.note else ''}"


@dataclass(frozen=True)
class Comparison:
    """All cases of both sides, regressions first; `warnings` say what else differs between the two."""

    base: str
    new: str
    tolerance: float
    alpha: float
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]

    @property
    def regressed(self) -> bool:
        """Whether a gate should fail."""
        return any(row.outcome in REGRESSIONS for row in self.rows)

    @property
    def judged(self) -> int:
        """How many cases could be tested at all."""
        return sum(row.p_slower is not None for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it: unknown is null."""
        return asdict(self) | {"regressed": self.regressed, "sentence": self.sentence()}

    def sentence(self) -> str:
        """The verdict as a person would say it."""
        counts = {outcome: sum(row.outcome == outcome for row in self.rows) for outcome in Outcome}
        judged = self.judged
        said = []
        if counts[Outcome.SLOWER]:
            slowest = max(row.ratio or 0 for row in self.rows if row.outcome == Outcome.SLOWER)
            said.append(
                f"{words.count(counts[Outcome.SLOWER], 'case')} of {judged} judged got slower, "
                f"the most by {words.percent(slowest - 1)}"
            )
        if counts[Outcome.BROKE]:
            said.append(f"{words.count(counts[Outcome.BROKE], 'case')} that worked no longer ends well")
        verdict = f"Regression: {' and '.join(said)}." if said else f"No regression found in {judged} judged cases."
        if not judged and not said:
            verdict = "Nothing could be judged."
        rest = [
            f"{counts[outcome]} {outcome}"
            for outcome in Outcome
            if outcome not in (*REGRESSIONS, Outcome.SAME) and counts[outcome]
        ]
        return verdict + (f" Also: {', '.join(rest)}." if rest else "")

    def lines(self) -> list[str]:
        """The whole comparison as lines of text."""
        return [
            self.sentence(),
            *(f"warning: {warning}" for warning in self.warnings),
            *(row.line() for row in self.rows),
        ]


def compare(
    base: Results,
    new: Results,
    tolerance: float = 0.02,
    alpha: float = 0.01,
    *,
    base_session: str | int | None = None,
    new_session: str | int | None = None,
) -> Comparison:
    """Compare the cases of two sessions (default: each store's newest) by their ids.

    A case regressed when its launches are slower in a one-sided Welch t-test on log numbers, adjusted over
    cases by Holm, at level `alpha`, and slower by more than `tolerance` (a fraction); or when it ended well
    before and now does not. Every case of either side has a row. Raises UsageError for no such session, and when
    the sides have no case in common: a gate that judges nothing must not pass.
    """
    sides = select_session(base, base_session), select_session(new, new_session)
    for side, option in zip(sides, ("--base-session", "--new-session"), strict=True):
        side.require("training", f"use {option} to name one that did")
    tables = launch_table(base, sides[0]), launch_table(new, sides[1])
    cases = [case_table(table).set_index("case_id") for table in tables]
    if cases[0].index.intersection(cases[1].index).empty:
        raise UsageError(
            f"no case is in both {base.path} and {new.path}; measure the same suite with the same --set on both sides"
        )
    rows = [_row(case, cases, tables, sides) for case in dict.fromkeys([*cases[0].index, *cases[1].index])]
    judged = [row for row in rows if row["p"] is not None]
    slower = holm([row["p"] for row in judged])
    faster = holm([1 - row["p"] for row in judged])
    for row, p_slower, p_faster in zip(judged, slower, faster, strict=True):
        row["p_slower"] = p_slower
        if row["outcome"] is None:
            row["outcome"], row["note"] = _outcome(row, p_slower, p_faster, tolerance, alpha)
    finished = [Row(**{name: value for name, value in row.items() if name != "p"}) for row in rows]
    order = list(Outcome)
    return Comparison(
        base=_name(sides[0]),
        new=_name(sides[1]),
        tolerance=tolerance,
        alpha=alpha,
        rows=tuple(sorted(finished, key=lambda row: (order.index(row.outcome), -(row.ratio or 0)))),
        warnings=tuple(differences(*sides)),
    )


def _row(
    case: str,
    cases: list[pd.DataFrame],
    tables: tuple[pd.DataFrame, pd.DataFrame],
    sides: tuple[Session, Session],
) -> dict[str, Any]:
    there = [table.loc[case] if case in table.index else None for table in cases]
    statuses = [table.loc[(table["case_id"] == case) & (table["block"] >= FIRST_BLOCK), "status"] for table in tables]
    good = [counted(table[table["case_id"] == case])["number_s"].to_numpy(dtype=float) for table in tables]
    row: dict[str, Any] = {
        "case_id": case,
        "label": str(next(side["label"] for side in there if side is not None)),
        "outcome": None,
        "base_s": _log_mean(good[0]),
        "new_s": _log_mean(good[1]),
        "ratio": None,
        "low": None,
        "high": None,
        "p_slower": None,
        "base_launches": len(good[0]),
        "new_launches": len(good[1]),
        "note": "",
        "p": None,
    }
    if there[0] is None or there[1] is None:
        missing = sides[0] if there[0] is None else sides[1]
        row["outcome"] = Outcome.ONLY_NEW if there[0] is None else Outcome.ONLY_BASE
        row["note"] = _skipped(missing, case)
        return row
    if row["base_s"] and row["new_s"]:
        row["ratio"] = row["new_s"] / row["base_s"]
    if min(len(side) for side in good) >= FEWEST_LAUNCHES:
        row["low"], row["high"], row["p"] = welch(*(np.log(side) for side in good))
    failed = [status[status.isin(FAILURES)] for status in statuses]
    if len(failed[1]) and (not len(failed[0]) or (len(good[0]) and not len(good[1]))):
        row["outcome"] = Outcome.BROKE
        row["note"] = f"was {there[0]['status']}, is {there[1]['status']}{_error(there[1]['error'])}"
    elif not len(good[1]):
        row["outcome"] = Outcome.NOT_OK
        row["note"] = f"base {there[0]['status']}, new {there[1]['status']}{_error(there[1]['error'])}"
    elif not len(good[0]):
        row["outcome"], row["note"] = Outcome.FIXED, f"was {there[0]['status']}, is {there[1]['status']}"
    elif row["p"] is None:
        row["outcome"] = Outcome.NOT_JUDGED
        row["note"] = (
            f"{words.count(len(good[0]), 'good launch')} against {len(good[1])}; {FEWEST_LAUNCHES} a side are needed"
        )
    return row


def _outcome(
    row: dict[str, Any], p_slower: float, p_faster: float, tolerance: float, alpha: float
) -> tuple[Outcome, str]:
    if row["ratio"] > 1 + tolerance:
        if p_slower <= alpha:
            return Outcome.SLOWER, ""
        return Outcome.UNCLEAR, "beyond the tolerance, but not beyond the noise; more launches would tell"
    if row["ratio"] < 1 / (1 + tolerance) and p_faster <= alpha:
        return Outcome.FASTER, ""
    return Outcome.SAME, ""


def differences(base: Session, new: Session) -> Iterable[str]:
    """What else differs between two sessions and could explain a difference, one line each."""
    pairs: dict[str, tuple[Any, Any]] = {
        "parabench": (base.version, new.version),
        "host": (base.environment.get("host"), new.environment.get("host")),
    }
    for name in ("cpu", "cores", "python", "os"):
        pairs[name] = base.environment.get(name), new.environment.get(name)
    pairs["GPUs"] = _gpus(base), _gpus(new)
    versions = [side.environment.get("versions") or {} for side in (base, new)]
    for name in sorted({*versions[0], *versions[1]}):
        pairs[name] = versions[0].get(name), versions[1].get(name)
    protocols = [side.plan.get("protocol") or {} for side in (base, new)]
    for name in ("warmup", "steps", "launches"):
        pairs[f"protocol {name}"] = protocols[0].get(name), protocols[1].get(name)
    # What older records do not have is no difference.
    for name, group, key in (("GPU driver", "driver", "version"), ("commit", "git", "commit")):
        values = [(side.environment.get(group) or {}).get(key) for side in (base, new)]
        if None not in values:
            pairs[name] = values[0], values[1]
    for name, (before, after) in pairs.items():
        if before != after:
            yield f"{name} differs: {_said(before)} in base, {_said(after)} in new"


def _gpus(session: Session) -> str:
    return ", ".join(str(gpu.get("name")) for gpu in session.environment.get("gpus") or []) or "none"


def _said(value: Any) -> str:
    return words.UNKNOWN if value is None else str(value)


def _skipped(session: Session, case: str) -> str:
    for entry in session.plan.get("skipped") or []:
        if Case.from_dict(entry["case"]).id == case:
            return f"skipped in {_name(session)}: {entry['reason']}"
    return f"not measured in {_name(session)}"


def _name(session: Session) -> str:
    return session.label or f"session {session.id}"


def _error(error: object) -> str:
    return f": {error}" if isinstance(error, str) and error else ""


def _log_mean(numbers: np.ndarray) -> float | None:
    return float(np.exp(np.log(numbers).mean())) if len(numbers) else None


def _signed(fraction: float) -> str:
    return ("+" if fraction >= 0 else "−") + words.percent(abs(fraction))
