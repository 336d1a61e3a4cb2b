"""A gate, or a comparison of two machines, as GitHub's Markdown.

Labels, errors and settings come from a database, so all text is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.answer import Answer
from parabench.analysis.compare import gate, machines
from parabench.analysis.compare.cases import Outcome
from parabench.analysis.compare.gate import Verdict
from parabench.report.views.gate import COLUMNS, gate_rows
from parabench.store.results import records

# The most rows of a table. GitHub rejects comments of more than 65,536 characters.
MOST_ROWS = 100
# The longest text of a cell, and the longest sentence.
CELL, SENTENCE = 300, 2000
# Names and numbers, which GitHub looks for after Markdown is done, are broken by a space without width.
_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "`": "&#96;", "\\": "&#92;"}
    | {mark: f"\\{mark}" for mark in "*_[]~$!"}
    | {mark: f"{mark}&#8203;" for mark in "@#"}
)


def text(value: object, most: int = CELL) -> str:
    """Return `value` in one line of `most` characters that GitHub shows unchanged, also in a table."""
    line = format.one_line(value)
    shown = (line if len(line) <= most else f"{line[: most - 1]}…").translate(_ESCAPES)
    # GitHub makes links of addresses.
    return re.sub(r"\b(www)\.", r"\1&#46;", shown.replace("://", "&#58;//"), flags=re.IGNORECASE)


def code(value: str) -> str:
    """Return a block of code, also if the text contains fences."""
    longest = max((len(run) for run in re.findall("`+", value)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{value}\n{fence}\n\n"


def rows_of(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, summary: str = "", texts: Sequence[int] = (0,)
) -> str:
    """Return a table with the first MOST_ROWS rows, or an empty text without rows.

    A `summary` folds it. The columns at the places in `texts` are words, the others are right-aligned.
    """
    every = [[text(cell) for cell in row] for row in rows]
    if not every:
        return ""
    marks = ["---" if i in texts else "---:" for i in range(len(head))]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in (head, marks, *every[:MOST_ROWS]))
    if len(every) > MOST_ROWS:
        table += f"\n{len(every) - MOST_ROWS:,} more rows are left out.\n"
    return f"<details>\n<summary>{summary}</summary>\n\n{table}\n</details>\n\n" if summary else f"{table}\n"


_MARK = {Verdict.REGRESSION: "✗", Verdict.NO_REGRESSION: "✓", Verdict.INCONCLUSIVE: "?"}
# Launches have a separate table.
_COLUMNS = COLUMNS[:-1]


def render(of: Answer) -> str:
    """Return the Markdown text of a gate or of two machines."""
    body, again = (_gate(of), gate.command(of)) if "verdict" in of.tables else (_machines(of), machines.command(of))
    warnings = [f"- {text(f'{each.message} {each.advice}', SENTENCE)}\n" for each in of.warnings]
    sides = [
        f"- {each['side']}: {text(each['session'])}, {each['valid']} of {format.count(each['launches'], 'launch')} "
        f"succeeded: {text(each['command'])}\n"
        for each in records(of.tables["sides"])
    ]
    if warnings:
        warnings = ["**Warnings**\n\n", *warnings, "\n"]
    return "".join([*body, *warnings, *sides, f"\nTo see it again:\n\n{code(again)}"])


def _gate(of: Answer) -> list[str]:
    verdict, rows = gate.the_verdict(of), records(gate_rows(of))
    same = [row for row in rows if row["outcome"] == Outcome.SAME]
    different = [row for row in rows if row["outcome"] != Outcome.SAME]
    head = [column.title for column in _COLUMNS]
    ids = [(row["label"], *(gate.ids(row[f"{side}_launches"]) for side in ("base", "candidate"))) for row in rows]
    no_slowdown = f"without slowdowns above {gate.tolerated(verdict['tolerance'])}"
    return [
        f"## {_MARK[verdict['verdict']]} {verdict['verdict'].capitalize()}\n\n",
        f"{text(' '.join(of.sentences), SENTENCE)}\n\n",
        rows_of(head, map(_cells, different), texts=(0, 1)),
        rows_of(head, map(_cells, same), summary=f"{format.count(len(same), 'case')} {no_slowdown}", texts=(0, 1)),
        _differing("Other differences", of.tables["differences"]),
        _words(("case", "base", "candidate"), ids, "Launches that the numbers are made of, by id"),
    ]


def _cells(row: dict[Any, Any]) -> list[str]:
    label = f"{row['label']}: {row['note']}" if row["note"] else row["label"]
    return [label, *(column.text(row) for column in _COLUMNS[1:])]


def _machines(of: Answer) -> list[str]:
    head, *rows = machines.cells(of)
    others = [*machines.without_ratio(of)]
    base, candidate = of.tables["sides"]["hardware"]
    differences = of.tables["differences"]
    return [
        f"## {text(candidate)} against {text(base)}\n\n",
        f"{text(' '.join(of.sentences), SENTENCE)}\n\n",
        rows_of(head, rows),
        "Ratios are candidate / base. Less is better for step times, and more for tokens per joule and tokens/s per "
        "GB of peak memory.\n\n",
        _words(("case", "why"), others, f"{format.count(len(others), 'case')} without a ratio"),
        *(
            _differing(f"{kind.capitalize()} that differs", differences[differences["kind"] == kind])
            for kind in ("hardware", "software")
        ),
    ]


def _differing(title: str, differences: pd.DataFrame) -> str:
    values = differences[["name", "base", "candidate"]].to_numpy().tolist()
    return _words(("", "base", "candidate"), values, f"{title} ({len(differences)})")


def _words(head: Sequence[str], rows: Iterable[Sequence[str]], summary: str) -> str:
    """Return a folded table of words."""
    return rows_of(head, rows, summary=summary, texts=range(len(head)))
