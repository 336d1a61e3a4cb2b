"""Rules that warn about rows of a table, and warnings by their code. docs/reference/warnings.md explains the codes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.session import Session
from parabench.store.record import Finding
from parabench.store.results import Results, records


@dataclass(frozen=True)
class Rule:
    """A warning for each row of a table that meets `when`, or for each row if `when` is None.

    `format.filled` fills the texts with the columns of the row. With `worst`, one warning lists the labels of all rows,
    with the numbers of the row with the largest value of that column.
    """

    code: str
    when: Callable[[Mapping[str, Any]], bool] | None
    message: str
    advice: str
    worst: str = ""

    def findings(self, table: pd.DataFrame) -> Iterator[Finding]:
        """Yield the warnings about a table, or about its configurations if it has a column `case_id`."""
        rows = [row for row in records(table) if self.when is None or self.when(row)]
        if self.worst and rows:
            labels = format.listed(dict.fromkeys(row["label"] for row in rows), most=3)
            rows = [max(rows, key=itemgetter(self.worst)) | {"label": labels, "case_id": None}]
        for row in rows:
            texts = format.filled(self.message, row), format.filled(self.advice, row)
            yield Finding(self.code, *texts, row.get("case_id"))


@dataclass(frozen=True)
class FindingGroup:
    """Warnings with the same code and advice. Each message starts with the label of its configuration."""

    code: str
    advice: str
    messages: tuple[str, ...]


def all_findings(results: Results, session: Session, computed: Iterable[Finding]) -> list[Finding]:
    """Return stored and computed warnings without duplicates."""
    table = results.of([session.id]).finding
    rows = records(table)
    stored = [Finding(row["code"], row["message"], row["advice"], row["case_id"]) for row in rows]
    return list(dict.fromkeys([*stored, *computed]))


def finding_groups(
    results: Results, session: Session, computed: Iterable[Finding], labels: Mapping[str, str]
) -> list[FindingGroup]:
    """Return stored and computed warnings, grouped by code and advice. `labels` maps case ids to labels."""
    return grouped(all_findings(results, session, computed), labels)


def grouped(findings: Iterable[Finding], labels: Mapping[str, str]) -> list[FindingGroup]:
    """Return warnings, grouped by code and advice. `labels` maps case ids to labels."""
    groups: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        label = labels.get(finding.case_id or "", "")
        text = finding.message if label in finding.message else f"{label}: {finding.message}"
        groups.setdefault((finding.code, finding.advice), []).append(text)
    return [FindingGroup(code, advice, tuple(messages)) for (code, advice), messages in groups.items()]
