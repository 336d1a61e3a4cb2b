"""A gate, or a comparison of two machines, as GitHub's Markdown, no longer than GitHub takes.

Labels, errors and settings come from a database, so all text is escaped.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.answer import Answer
from parabench.analysis.compare import gate, machines
from parabench.analysis.compare.cases import Outcome
from parabench.analysis.compare.gate import Verdict
from parabench.report.views.gate import COLUMNS, gate_rows
from parabench.store.results import records

# The maximum number of characters in a comment; GitHub rejects longer ones with this number.
LIMIT = 65_536
# The longest text of a cell.
CELL = 300
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


@dataclass(frozen=True)
class Rows:
    """A table of escaped cells whose last rows may be left out.

    A `summary` folds it. The columns at the places in `texts` are words, the others are right-aligned.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    summary: str = ""
    texts: Sequence[int] = (0,)

    def first(self, most: int) -> str:
        """Return the table with its first rows, and a note about the others; empty without rows."""
        if not self.rows:
            return ""
        marks = ("---" if i in self.texts else "---:" for i in range(len(self.head)))
        table = "".join(map(_line, (self.head, marks, *self.rows[:most])))
        if missing := len(self.rows) - most:
            table += f"\n{missing:,} more rows are left out: GitHub takes {LIMIT:,} characters.\n"
        return (
            f"<details>\n<summary>{self.summary}</summary>\n\n{table}\n</details>\n\n" if self.summary else f"{table}\n"
        )


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def fitted(parts: Sequence[str | Rows]) -> str:
    """Join the parts, with as many rows of the tables as LIMIT characters hold, the first tables first."""
    shown = [part if isinstance(part, str) else part.first(0) for part in parts]
    left = LIMIT - sum(map(len, shown))
    for place, part in enumerate(parts):
        if isinstance(part, Rows) and part.rows:
            ends = list(accumulate(len(_line(row)) for row in part.rows))
            fit = bisect_right(ends, left)
            # A shorter row of a later table must not appear if a longer one was left out.
            left = left - ends[-1] if fit == len(ends) else 0
            shown[place] = part.first(fit)
    return "".join(shown)


# Longer sentences than this are labels of a hostile length.
SENTENCE = 2000
_MARK = {Verdict.REGRESSION: "✗", Verdict.NO_REGRESSION: "✓", Verdict.INCONCLUSIVE: "?"}
# Launches have a separate table.
_COLUMNS = COLUMNS[:-1]


def render(of: Answer) -> str:
    """Return the Markdown text of a gate or of two machines, of at most LIMIT characters."""
    body, again = (_gate(of), gate.command(of)) if "verdict" in of.tables else (_machines(of), machines.command(of))
    warnings = [f"- {text(f'{each.message} {each.advice}', SENTENCE)}\n" for each in of.warnings]
    sides = [
        f"- {each['side']}: {text(each['session'])}, {each['valid']} of {format.count(each['launches'], 'launch')} "
        f"succeeded: {text(each['command'])}\n"
        for each in records(of.tables["sides"])
    ]
    return fitted(
        [
            *body,
            *(["**Warnings**\n\n", *warnings, "\n"] if warnings else []),
            *sides,
            f"\nTo see it again:\n\n{code(again)}",
        ]
    )


def _gate(of: Answer) -> list[str | Rows]:
    head, verdict = [column.title for column in _COLUMNS], gate.the_verdict(of)
    rows = records(gate_rows(of))
    same = [_cells(row) for row in rows if row["outcome"] == Outcome.SAME]
    ids = ((row["label"], *(gate.ids(row[f"{side}_launches"]) for side in ("base", "candidate"))) for row in rows)
    return [
        f"## {_MARK[verdict['verdict']]} {verdict['verdict'].capitalize()}\n\n",
        f"{text(' '.join(of.sentences), SENTENCE)}\n\n",
        Rows(head, [_cells(row) for row in rows if row["outcome"] != Outcome.SAME], texts=(0, 1)),
        Rows(
            head,
            same,
            f"{format.count(len(same), 'case')} without slowdowns above {gate.tolerated(verdict['tolerance'])}",
            (0, 1),
        ),
        _differing("Other differences", of.tables["differences"]),
        _words(("case", "base", "candidate"), ids, "Launches that the numbers are made of, by id"),
    ]


def _cells(row: dict[Any, Any]) -> list[str]:
    label, outcome, *numbers = (text(column.cell(row)) for column in _COLUMNS)
    note = f": {text(row['note'])}" if row["note"] else ""
    return [label + note, f"**{outcome}**" if row["bad"] else outcome, *numbers]


def _machines(of: Answer) -> list[str | Rows]:
    head, *rows = machines.cells(of)
    others = [*machines.without_ratio(of)]
    base, candidate = of.tables["sides"]["hardware"]
    differences = of.tables["differences"]
    return [
        f"## {text(candidate)} against {text(base)}\n\n",
        f"{text(' '.join(of.sentences), SENTENCE)}\n\n",
        Rows(head, [list(map(text, row)) for row in rows]),
        "Ratios are candidate / base: of a step's time, where less is better; of tokens per joule and of tokens/s "
        "per GB of peak memory, where more is better.\n\n",
        _words(("case", "why"), others, f"{format.count(len(others), 'case')} without a ratio"),
        *(
            _differing(f"{kind.capitalize()} that differs", differences[differences["kind"] == kind])
            for kind in ("hardware", "software")
        ),
    ]


def _differing(title: str, differences: pd.DataFrame) -> Rows:
    values = differences[["name", "base", "candidate"]].to_numpy().tolist()
    return _words(("", "base", "candidate"), values, f"{title} ({len(differences)})")


def _words(head: Sequence[str], rows: Iterable[Sequence[str]], summary: str) -> Rows:
    """Return a folded table of words."""
    return Rows(head, [list(map(text, row)) for row in rows], summary, range(len(head)))
