"""An answer with sections that show its tables and figures, as lines for the terminal, Markdown, and an HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from parabench.analysis import format
from parabench.analysis.answer import Answer
from parabench.report.page import answer_page
from parabench.report.spec import Section, Table
from parabench.report.views import markdown

# Rows of a table on a terminal.
_MOST_LINES = 20


@dataclass(frozen=True)
class AnswerView:
    """An answer and what to show with it.

    Args:
        question: The heading of the page.
        heading: The heading of the Markdown text.
        argv: The command that repeats it.
        headlines: The number of sentences in large letters.
        tone: The color of the answer: "good", "bad", "open" or none.
        kicker: The line above the question.
    """

    question: str
    heading: str
    answer: Answer
    sections: Sequence[Section]
    argv: Sequence[str]
    headlines: int = 1
    tone: str = ""
    kicker: str = "parabench compare"

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
        parts = [f"## {markdown.text(self.heading)}\n\n"]
        parts.append(f"{markdown.text(' '.join(self.answer.sentences), markdown.SENTENCE)}\n\n")
        if self.answer.warnings:
            warnings = (f"{each.message} {each.advice}" for each in self.answer.warnings)
            parts.append("**Warnings**\n\n")
            parts += [f"- {markdown.text(each, markdown.SENTENCE)}\n" for each in warnings]
            parts.append("\n")
        parts += map(markdown.table, self.tables)
        return "".join([*parts, f"To see it again:\n\n{markdown.code(shlex.join(self.argv))}"])

    def html(self) -> str:
        """Return the page as text."""
        return answer_page(
            self.answer,
            list(self.sections),
            title=self.heading,
            kicker=self.kicker,
            question=self.question,
            command=shlex.join(self.argv),
            again="Compare again",
            headlines=self.headlines,
            tone=self.tone,
        )
