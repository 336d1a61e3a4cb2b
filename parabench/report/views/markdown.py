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

from parabench.analysis import format
from parabench.analysis.compare import gate, machines
from parabench.analysis.compare.cases import Outcome
from parabench.analysis.compare.gate import Comparison, Verdict
from parabench.analysis.compare.machines import Machines
from parabench.analysis.compare.overall import interval
from parabench.analysis.compare.several import Row
from parabench.analysis.environment.diff import Difference
from parabench.analysis.session import Origin
from parabench.report.spec import DASH, WORDED, Column
from parabench.report.views.gate import COLUMNS, gate_rows
from parabench.store.record import Finding

# The characters of a comment's body at most, as GitHub says itself when one is longer.
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
    """A block of code, whatever the text holds."""
    longest = max((len(run) for run in re.findall("`+", value)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{value}\n{fence}\n\n"


@dataclass(frozen=True)
class Rows:
    """A table whose rows may be cut: `head` are its columns, cells are escaped; `thing` is the subject of a row.

    `summary` hides it behind a line to click on. The first column and those in `texts` are words, the others are
    right-aligned.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    thing: str
    summary: str = ""
    texts: Sequence[int] = ()

    def first(self, most: int) -> str:
        """Return the table with its first rows, and a note about the others; empty without rows."""
        if not self.rows:
            return ""
        marks = ("---" if i == 0 or i in self.texts else "---:" for i in range(len(self.head)))
        table = "".join(map(_line, (self.head, marks, *self.rows[:most])))
        if missing := len(self.rows) - most:
            table += f"\n{missing:,} more {self.thing} left out: GitHub takes {LIMIT:,} characters.\n"
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


def differing(title: str, differences: tuple[Difference, ...]) -> Rows:
    """What is not the same on both sides, as a table to unfold."""
    return Rows(
        ("", "base", "candidate"),
        [(text(each.name), text(each.base), text(each.candidate)) for each in differences],
        "differences are",
        f"{title} ({len(differences)})",
        (1, 2),
    )


def findings(found: tuple[Finding, ...]) -> list[str]:
    """Warnings, one per line."""
    said = [f"- {text(f'{each.message} {each.advice}', SENTENCE)}\n" for each in found]
    return ["**Warnings**\n\n", *said, "\n"] if said else []


def sides(origins: Sequence[Origin]) -> list[str]:
    """Where the numbers of both sides are from."""
    return [
        *(
            f"- {role}: {text(each.session)}, {each.valid} of {format.count(each.launches, 'launch')} succeeded: "
            f"{text(each.command)}\n"
            for role, each in zip(("base", "candidate"), origins, strict=True)
        ),
        "\n",
    ]


_MARK = {Verdict.REGRESSION: "✗", Verdict.NO_REGRESSION: "✓", Verdict.INCONCLUSIVE: "?"}
# Launches have a table of their own.
_COLUMNS = COLUMNS[:-1]


def render(of: Comparison | Machines) -> str:
    """Return the Markdown text, of at most LIMIT characters."""
    return fitted(_of_gate(of) if isinstance(of, Comparison) else _of_machines(of))


def _of_gate(of: Comparison) -> list[str | Rows]:
    head = [column.title for column in _COLUMNS]
    rows = gate_rows(of).to_dict("records")
    same = [_cells(row) for row in rows if row["outcome"] == Outcome.SAME]
    return [
        f"## {_MARK[of.verdict]} {of.verdict.capitalize()}\n\n",
        f"{text(gate.sentence(of), SENTENCE)}\n\n",
        Rows(head, [_cells(row) for row in rows if row["outcome"] != Outcome.SAME], "cases are", texts=(1,)),
        Rows(
            head,
            same,
            "cases are",
            f"{format.count(len(same), 'case')} without slowdowns above {gate.tolerated(of)}",
            (1,),
        ),
        differing("Other differences", of.differences),
        *findings(of.findings),
        Rows(
            ("case", "base", "candidate"),
            [
                (text(row.label), *map(text, map(gate.ids, (row.base_launches, row.candidate_launches))))
                for row in of.rows
            ],
            "cases are",
            "Launches that the numbers are made of, by id",
            (1, 2),
        ),
        *sides(of.origins),
        f"To see it again:\n\n{code(gate.command(of))}",
    ]


def _cells(row: dict[Any, Any]) -> list[str]:
    label, outcome, *numbers = (text(column.cell(row)) for column in _COLUMNS)
    note = f": {text(row['note'])}" if row["note"] else ""
    return [label + note, f"**{outcome}**" if row["bad"] else outcome, *numbers]


def _ratio(name: str) -> tuple[Column, Column]:
    """Return the columns of a ratio and of its 95% interval."""

    def ends(row: Row) -> str:
        found = row.ratio(name, 1)
        return interval(found) if found is not None and found.low is not None else DASH

    return Column(machines.TITLES[name], f"{name}.0.ratio", "times"), Column("95 %", ends, WORDED)


def _name(row: Row) -> str:
    step = row.step_time[0]
    return row.label if step is None or step.ratio is not None else f"{row.label}: {step.note}"


_MACHINES = (
    Column("Case", _name),
    Column("base, ms", "step_time.0.base_step_time_s", "ms"),
    Column("candidate, ms", "step_time.0.candidate_step_time_s", "ms"),
    *(column for name in machines.TITLES for column in _ratio(name)),
)


def _of_machines(of: Machines) -> list[str | Rows]:
    alone = [(row.label, *why) for row in of.rows if (why := machines.alone_on(of, row))]
    return [
        f"## {text(of.hardware_names[1])} against {text(of.hardware_names[0])}\n\n",
        f"{text(' '.join(machines.answers(of.works)), SENTENCE)}\n\n",
        Rows(
            [column.title for column in _MACHINES],
            [[text(column.cell(row)) for column in _MACHINES] for row in of.rows if None not in row.cases],
            "cases are",
        ),
        "Ratios are candidate / base: of a step's time, where less is better; of tokens per joule and of tokens/s "
        "per GB of peak memory, where more is better.\n\n",
        Rows(
            ("case", "side", "why"),
            [(text(label), side, text(why)) for label, side, why in alone],
            "cases are",
            f"{format.count(len(alone), 'case')} without a partner",
            (1, 2),
        ),
        differing("Hardware that differs", of.hardware),
        differing("Software that differs", of.software),
        *findings(of.findings),
        *sides(of.origins),
        f"To see it again:\n\n{code(machines.command(of.origins))}",
    ]
