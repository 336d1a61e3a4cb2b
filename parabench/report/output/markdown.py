"""GitHub's Markdown from text that nobody vouches for, no longer than GitHub takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parabench.analysis.environment.diff import Difference
from parabench.analysis.session import Origin
from parabench.analysis.text import format
from parabench.store.record import Finding

# The characters of a comment's body at most, as GitHub says itself when one is longer.
LIMIT = 65_536
# Characters of the source of one cell.
CELL = 300
# What a note on rows that were left out may take.
_NOTE = 200
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "`": "&#96;", "\\": "&#92;"}
# A backslash takes any punctuation's meaning away; behind an @ or a # a space of no width does, for GitHub looks for
# names and numbers after Markdown is done.
_MARKS = {mark: f"\\{mark}" for mark in "*_[]~$!"} | {mark: f"{mark}&#8203;" for mark in "@#"}


def text(value: object, most: int = CELL) -> str:
    """`value` in one line that shows as it is, also in a table; cut where its source is longer than `most`."""
    line = " ".join(str(value).split())
    parts: list[str] = []
    length = 0
    for at, character in enumerate(line):
        part = _ENTITIES.get(character) or _MARKS.get(character) or character
        if character == ":" and line[at + 1 : at + 3] == "//":
            part = "&#58;"  # else GitHub makes a link of it
        elif not character.isprintable():
            part = "\ufffd"
        length += len(part)
        if length > most - 1:
            return "".join(parts) + "…"
        parts.append(part)
    return re.sub(r"\b(www)\.", r"\1&#46;", "".join(parts), flags=re.IGNORECASE)


def code(value: str) -> str:
    """A block of code, whatever the text holds."""
    longest = max((len(run) for run in re.findall("`+", value)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{value}\n{fence}\n\n"


@dataclass(frozen=True)
class Rows:
    """A table whose rows may be cut: `head` are its columns, cells are escaped; `thing` is what a row is about.

    `summary` hides it behind a line to click on. The first column is words, the others are right-aligned but for those
    of `texts`.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    thing: str
    summary: str = ""
    texts: Sequence[int] = ()

    def begin(self) -> str:
        lines = [f"<details>\n<summary>{self.summary}</summary>\n\n"] if self.summary else []
        marks = ("---" if i == 0 or i in self.texts else "---:" for i in range(len(self.head)))
        return "".join([*lines, _line(self.head), _line(marks)])

    def end(self) -> str:
        return "\n</details>\n\n" if self.summary else "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def fitted(parts: Sequence[str | Rows], limit: int = LIMIT) -> str:
    """The parts in a row, and of the tables as many rows as `limit` characters hold, the first tables first."""
    tables = [part for part in parts if isinstance(part, Rows) and part.rows]
    left = limit - sum(len(part) for part in parts if isinstance(part, str))
    left -= sum(len(table.begin()) + len(table.end()) + _NOTE for table in tables)
    said = []
    for part in parts:
        if isinstance(part, str):
            said.append(part)
        elif part.rows:
            lines: list[str] = []
            for row in part.rows:
                line = _line(row)
                if len(line) > left:
                    break
                left -= len(line)
                lines.append(line)
            if len(lines) < len(part.rows):
                left = 0  # a shorter row of a later table must not stand where a longer one was left out
            missing = len(part.rows) - len(lines)
            note = f"\n{missing:,} more {part.thing} left out: GitHub takes {limit:,} characters.\n" if missing else ""
            said.append(part.begin() + "".join(lines) + note + part.end())
    return "".join(said)


# Longer sentences than this are labels of a hostile length.
SENTENCE = 2000


def differing(title: str, differences: tuple[Difference, ...]) -> Rows:
    """What is not the same on both sides, as a table to unfold."""
    return Rows(
        ("", "base", "candidate"),
        [(text(each.name), text(each.base), text(each.candidate)) for each in differences],
        "differences are",
        f"{title} ({len(differences)})",
        (1, 2),
    )


def findings(doubts: tuple[Finding, ...]) -> list[str]:
    """Doubts, one a line."""
    said = [f"- {text(f'{each.message} {each.advice}', SENTENCE)}\n" for each in doubts]
    return ["**Doubts**\n\n", *said, "\n"] if said else []


def sides(origins: tuple[Origin, Origin]) -> list[str]:
    """Where the numbers of both sides are from."""
    return [
        *(
            f"- {role}: {text(each.session)}, {each.good} of {format.count(each.launches, 'launch')} ended well: "
            f"{text(each.command)}\n"
            for role, each in zip(("base", "candidate"), origins, strict=True)
        ),
        "\n",
    ]
