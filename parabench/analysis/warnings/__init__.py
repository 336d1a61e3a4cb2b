"""Warnings: rules that create them from the rows of a table, and functions that collect and group them.

docs/reference/warnings.md explains the codes.
"""

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
    """A rule that warns about each row of a table that meets `when`. If `when` is None, it warns about each row.

    `message` and `advice` are templates for `format.filled`, which takes the columns of the row. If `worst` names a
    column, there is one warning for all rows. It lists their labels, with the numbers of the row with the largest value
    in that column.
    """

    code: str
    when: Callable[[Mapping[str, Any]], bool] | None
    message: str
    advice: str
    worst: str = ""

    def findings(self, table: pd.DataFrame) -> Iterator[Finding]:
        """Yield the warnings about the rows of a table. A column `case_id` assigns them to configurations."""
        rows = [row for row in records(table) if self.when is None or self.when(row)]
        if self.worst and rows:
            labels = format.listed(dict.fromkeys(row["label"] for row in rows), most=3)
            rows = [max(rows, key=itemgetter(self.worst)) | {"label": labels, "case_id": None}]
        for row in rows:
            texts = format.filled(self.message, row), format.filled(self.advice, row)
            yield Finding(self.code, *texts, row.get("case_id"))


def all_findings(results: Results, session: Session, computed: Iterable[Finding]) -> list[Finding]:
    """Return the stored warnings of a session and the `computed` ones, without duplicates."""
    rows = records(results.of([session.id]).finding)
    stored = [Finding(row["code"], row["message"], row["advice"], row["case_id"]) for row in rows]
    return list(dict.fromkeys([*stored, *computed]))


def grouped(findings: Iterable[Finding], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return {"code", "advice", "messages"} for the warnings that share a code and an advice.

    Each message has the label of its configuration, from `labels`: {case id: label}.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        label = labels.get(finding.case_id or "", "")
        text = finding.message if label in finding.message else f"{label}: {finding.message}"
        groups.setdefault((finding.code, finding.advice), []).append(text)
    return [{"code": code, "advice": advice, "messages": messages} for (code, advice), messages in groups.items()]
