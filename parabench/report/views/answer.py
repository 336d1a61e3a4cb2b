"""Show an answer with its tables and figures on the terminal, in Markdown, and as an HTML page.

Labels, errors and settings come from a database, so all text is escaped.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parabench.analysis import format
from parabench.analysis.answer import Answer
from parabench.analysis.warnings import grouped
from parabench.report.page import fill
from parabench.report.spec import Section, Table

# The most rows of a table on a terminal, and in Markdown: GitHub rejects comments of more than 65,536 characters.
_MOST_LINES, _MOST_ROWS = 20, 100
# The longest text of a Markdown cell, and the longest sentence.
_CELL, _SENTENCE = 300, 2000
# Names and numbers, which GitHub looks for after Markdown is done, are broken by a space without width.
_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "`": "&#96;", "\\": "&#92;"}
    | {mark: f"\\{mark}" for mark in "*_[]~$!"}
    | {mark: f"{mark}&#8203;" for mark in "@#"}
)
# Commands and options in sentences, such as `parabench ab`.
_CODE = re.compile("(`[a-z0-9 .=-]+`)")


@dataclass(frozen=True)
class AnswerView:
    """An answer with the sections that show its tables and figures.

    Args:
        question: The heading of the page.
        heading: The title of the page, and the heading of the Markdown text.
        sections: The page has those with content.
        argv: The command that computes the answer.
        kicker: The line above the question: the command or suite, the session and its time.
        headlines: The number of sentences in large letters. The default is all.
        tone: The color of the answer: "good", "bad", "open" or none.
        trust: Sentences about the launches behind the answer.
        labels: The label of each configuration by its id, for warnings.
    """

    question: str
    heading: str
    answer: Answer
    sections: Sequence[Section]
    argv: Sequence[str] = ()
    kicker: str = "parabench compare"
    headlines: int | None = None
    tone: str = ""
    trust: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def tables(self) -> list[Table]:
        return [table for section in self.sections for table in section.tables]

    def lines(self) -> list[str]:
        """Return the sentences, the warnings and the open tables for a terminal."""
        found = [*format.in_lines(self.answer.sentences), *format.warnings(self.answer.warnings)]
        for table in self.tables:
            if not table.closed:
                found += ["", *format.aligned([table.head, *table.rows[:_MOST_LINES]], table.texts)]
                if len(table.rows) > _MOST_LINES:
                    found.append(f"{len(table.rows) - _MOST_LINES} more rows: see --html, --markdown or --json.")
        return found

    def markdown(self) -> str:
        """Return GitHub's Markdown. Closed tables are folded."""
        parts = [f"## {_escaped(self.heading)}\n\n{_escaped(' '.join(self.answer.sentences), _SENTENCE)}\n\n"]
        if self.answer.warnings:
            warnings = (f"{each.message} {each.advice}" for each in self.answer.warnings)
            parts += ["**Warnings**\n\n", *(f"- {_escaped(each, _SENTENCE)}\n" for each in warnings), "\n"]
        parts += map(_table, self.tables)
        command = shlex.join(self.argv)
        # The longest run of backticks in the command must not end the block of code.
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", command)), default=0))
        return "".join([*parts, f"To see it again:\n\n{fence}\n{command}\n{fence}\n\n"])

    def html(self) -> str:
        """Return the HTML of the page."""
        shown = [each for each in self.sections if each.panels or each.tables or each.pairs or each.empty]
        return fill(
            "page.html",
            shown,
            title=self.heading,
            kicker=self.kicker,
            question=self.question,
            sentences=self.answer.sentences,
            trust=self.trust,
            findings=grouped(self.answer.warnings, self.labels),
            command=shlex.join(self.argv),
            headlines=len(self.answer.sentences) if self.headlines is None else self.headlines,
            tone=self.tone,
        )


def _escaped(value: str, most: int = _CELL) -> str:
    """Return `value` in one line of `most` characters that GitHub shows unchanged, also in a table."""
    line = format.one_line(value)
    parts = _CODE.split(line if len(line) <= most else f"{line[: most - 1]}…")
    shown = "".join(part if at % 2 else part.translate(_ESCAPES) for at, part in enumerate(parts))
    # GitHub makes links of addresses.
    return re.sub(r"\b(www)\.", r"\1&#46;", shown.replace("://", "&#58;//"), flags=re.IGNORECASE)


def _table(of: Table) -> str:
    """Return the Markdown of a table's first rows. A closed table is folded below its title."""
    marks = ["---" if at < of.texts else "---:" for at in range(len(of.head))]
    lines = [f"| {' | '.join(map(_escaped, row))} |\n" for row in (of.head, *of.rows[:_MOST_ROWS])]
    lines.insert(1, f"| {' | '.join(marks)} |\n")
    if len(of.rows) > _MOST_ROWS:
        lines.append(f"\n{len(of.rows) - _MOST_ROWS:,} more rows are left out.\n")
    body = "".join(lines)
    if not of.closed:
        return f"{body}\n"
    return f"<details>\n<summary>{_escaped(of.title)}</summary>\n\n{body}\n</details>\n\n"
