"""What the report's tables and lists hold, as plain rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from parabench.analysis.environment.machine_facts import MACHINE
from parabench.analysis.ranking.answer import Answer
from parabench.analysis.session import Session
from parabench.analysis.tables import counted
from parabench.analysis.text import format
from parabench.analysis.warnings.codes import CODES
from parabench.plan.case import Case
from parabench.plan.collective_case import CollectiveCase
from parabench.store.record import Finding, Status
from parabench.store.results import Results
from parabench.strategies import Rule, entry_of

# How a strategy that may not be ranked is marked.
NO_ANSWER = "headroom, no answer"
# And one that may be the fastest, as others may.
NOT_APART = "not told apart"


def case_rows(cases: pd.DataFrame, answers: Iterable[Answer]) -> list[dict[str, Any]]:
    """The case table's rows, each with its `place` in the answers ('fastest', 'not told apart' or nothing), and
    its `mark` where it is no answer, or another training."""
    place = {}
    for answer in answers:
        if answer.best is not None and answer.decided:
            place[answer.best.case_id] = NOT_APART if answer.winner is None else "fastest"
            place.update({candidate.case_id: NOT_APART for candidate in answer.equals})
    return [
        {str(k): v for k, v in row.items()} | {"place": place.get(row["case_id"], ""), "mark": _mark(row)}
        for row in cases.to_dict("records")
    ]


def _mark(row: Mapping[Any, Any]) -> str:
    entry = entry_of(str(row["strategy"]))
    if not entry.ranked:
        return NO_ANSWER
    if entry.rule is not Rule.APPLIED_ONCE:
        return ""
    mean, most = row["staleness_mean"], row["staleness_max"]
    known = format.known(mean) and format.known(most)
    return "another training: stale gradients" + (f", {format.staleness(mean, most)}" if known else "")


def skipped_rows(session: Session) -> list[tuple[str, str]]:
    """(labels, reason) of the cases that were not launched, those of one reason together."""
    kind = CollectiveCase if session.kind == "collectives" else Case
    reasons: dict[str, list[str]] = {}
    for entry in session.plan.get("skipped") or []:
        reasons.setdefault(str(entry["reason"]), []).append(kind.from_dict(entry["case"]).label)
    return [(format.listed(labels), reason) for reason, labels in reasons.items()]


@dataclass(frozen=True)
class FindingGroup:
    """Findings of one code and advice: what each says, beginning with the label of its case."""

    code: str
    advice: str
    messages: tuple[str, ...]

    @property
    def about(self) -> str:
        """What findings of this code doubt; empty for a code that this version does not know, from a newer store."""
        return CODES.get(self.code, "")


def finding_groups(
    results: Results, session: Session, computed: Iterable[Finding], labels: Mapping[str, str]
) -> list[FindingGroup]:
    """Stored and computed findings, those of one code together; equal ones once. `labels` are by case id."""
    stored = results.finding[results.finding["session_id"] == session.id]
    found = [
        Finding(
            code=str(row["code"]),
            message=str(row["message"]),
            advice=str(row["advice"]),
            case_id=row["case_id"] if isinstance(row["case_id"], str) else None,
        )
        for row in stored.to_dict("records")
    ]
    every = dict.fromkeys([*found, *computed])
    groups: dict[tuple[str, str], list[str]] = {}
    for finding in every:
        label = labels.get(finding.case_id or "", "")
        said = finding.message if label in finding.message else f"{label}: {finding.message}"
        groups.setdefault((finding.code, finding.advice), []).append(said)
    return [FindingGroup(code, advice, tuple(messages)) for (code, advice), messages in groups.items()]


def trust(session: Session, own: pd.DataFrame) -> dict[str, int]:
    """How much stands behind the answers: launches, good ones, those that ended well without a
    number (`numberless`), cases, blocks, steps of a launch, and how many cases were skipped."""
    good = counted(own)
    return {
        "launches": len(own),
        "good": len(good),
        "numberless": int((own["status"] == Status.OK).sum()) - len(good),
        "skipped": len(session.plan.get("skipped") or []),
        "cases": int(own["case_id"].nunique()),
        "blocks": int(good["block"].nunique()),
        "steps": int(good["n_steps"].median()) if len(good) else 0,
    }


def environment_rows(session: Session) -> list[tuple[str, str]]:
    """(name, value) of what is known about the run, its protocol and its software; of the machine its section tells."""
    rows = [
        ("suite", session.suite),
        ("seed", str(session.seed)),
        ("parabench", session.version),
        ("started", when(session.started_utc)),
        ("finished", when(session.finished_utc) if session.finished_utc else "not finished"),
    ]
    known = {name: value for name, value in session.environment.items() if name not in MACHINE}
    git, unknown = known.pop("git", None), known.pop("unknown_versions", None) or {}
    if git is not None:
        rows.append(("commit", commit(git)))
    groups = [
        session.plan.get("protocol") or {},
        *(known.pop(name, None) or {} for name in ("versions", "env")),
    ]
    rows += [(str(name), _said(value)) for group in groups for name, value in group.items() if value is not None]
    for reason in dict.fromkeys(unknown.values()):
        names = ", ".join(name for name, why in unknown.items() if why == reason)
        rows.append((names, f"{format.UNKNOWN}: {reason}"))
    return rows + [(name, _said(value)) for name, value in known.items()]


def commit(git: Mapping[str, Any]) -> str:
    """The commit of the project under test: '3f2a90c1b5d7, with changes that are not committed'."""
    if git.get("commit") is None:
        return f"{format.UNKNOWN}: {(git.get('reasons') or {}).get('commit')}"
    state = {True: ", with changes that are not committed", False: "", None: ", perhaps with changes"}
    return str(git["commit"])[:12] + state[git.get("dirty")]


def bucket_sizes(facts: object) -> str:
    """The buckets that a launch really used: '3, largest 25.0 MiB'; empty when they were not recorded."""
    sizes = json.loads(facts).get("bucket_bytes") if isinstance(facts, str) else None
    if not isinstance(sizes, list) or not sizes:
        return ""
    return f"{len(sizes)}, largest {format.mebibytes(max(sizes))}"


def when(utc: str) -> str:
    """'2026-01-31 14:05 UTC' from ISO 8601."""
    return f"{utc[:10]} {utc[11:16]} UTC" if len(utc) > 16 and utc[10] == "T" else utc


def _said(value: object) -> str:
    if value is None:
        return format.UNKNOWN
    return value if isinstance(value, str) else json.dumps(value)
