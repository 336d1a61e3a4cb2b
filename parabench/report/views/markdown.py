"""GitHub's Markdown. Labels, errors and settings come from a database, so all text is escaped."""

from __future__ import annotations

import re

from parabench.analysis import format
from parabench.report.spec import Table

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
# Commands and options in sentences, such as `parabench ab`.
_CODE = re.compile("(`[a-z0-9 .=-]+`)")


def text(value: object, most: int = CELL) -> str:
    """Return `value` in one line of `most` characters that GitHub shows unchanged, also in a table."""
    line = format.one_line(value)
    parts = _CODE.split(line if len(line) <= most else f"{line[: most - 1]}…")
    shown = "".join(part if at % 2 else part.translate(_ESCAPES) for at, part in enumerate(parts))
    # GitHub makes links of addresses.
    return re.sub(r"\b(www)\.", r"\1&#46;", shown.replace("://", "&#58;//"), flags=re.IGNORECASE)


def code(value: str) -> str:
    """Return a block of code, also if the text contains fences."""
    longest = max((len(run) for run in re.findall("`+", value)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{value}\n{fence}\n\n"


def table(of: Table) -> str:
    """Return a table with its first MOST_ROWS rows. A closed table is folded below its title."""
    marks = ["---" if at < of.texts else "---:" for at in range(len(of.head))]
    rows = [of.head, *of.rows[:MOST_ROWS]]
    lines = [f"| {' | '.join(map(text, row))} |\n" for row in rows]
    lines.insert(1, f"| {' | '.join(marks)} |\n")
    if len(of.rows) > MOST_ROWS:
        lines.append(f"\n{len(of.rows) - MOST_ROWS:,} more rows are left out.\n")
    body = "".join(lines)
    if not of.closed:
        return f"{body}\n"
    return f"<details>\n<summary>{text(of.title)}</summary>\n\n{body}\n</details>\n\n"
