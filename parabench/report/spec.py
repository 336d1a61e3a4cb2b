"""Define the parts of a page: sections, tables, and the columns and formats of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.report.figures import Panel
from parabench.store.record import GB, MIB, UNCOUNTED
from parabench.store.results import records
from parabench.strategies import entry_of

# A cell whose value is unknown or does not apply.
DASH = "–"
# The most rows of a table. Readers do not need more, and they slow a browser down.
MOST_ROWS = 300


@dataclass(frozen=True)
class Table:
    """A table of text. The first `texts` columns are words, the others numbers.

    A `closed` table opens with a click on its title, because a figure shows the same. `note` explains the table. The
    page's filters select rows by `cases`: the id of each row's configuration, or "a|b" for a row of several.
    """

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    texts: int = 1
    closed: bool = True
    note: str = ""
    cases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """A part of a page: text, figures and tables; tables without rows are left out.

    `lead` is the conclusion, `caption` explains the figures, and `reading` has the details behind a click. `pairs` are
    named facts. `empty` is shown if a section lacks figures and tables.
    """

    id: str
    title: str
    caption: str = ""
    empty: str = ""
    tables: tuple[Table, ...] = ()
    lead: str = ""
    pairs: tuple[tuple[str, str], ...] = ()
    panels: list[Panel] = field(default_factory=list)
    reading: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", tuple(table for table in self.tables if table.rows))


# {section id: a function that makes the section, or returns `None` if the session has no content for it}.
Makers = Mapping[str, Callable[[SessionData], Section | None]]


def nothing_to_draw(seen: SessionData) -> str:
    """Return why no case has a step time; empty if one has."""
    return "" if seen.cases["step_time_s"].notna().any() else f"{seen.why_none}, so nothing is drawn."


# ---- tables


def _format(text: Callable[[float], str], factor: float = 1) -> Callable[[float | None], str]:
    return lambda value: text(value * factor) if format.known(value) else DASH


# The formats of numbers in cells; DASH if a number is unknown. Links are measured less exactly.
FORMATS: dict[str, Callable[[float | None], str]] = {
    "digits": _format(format.digits),
    "count": _format("{:,.0f}".format),
    "ratio": _format("{:.2f}".format),
    "percent": _format(format.percent),
    "rate": _format(format.rate),
    "ms": _format(format.digits, 1e3),
    "us": _format(format.digits, 1e6),
    "seconds": _format(lambda seconds: f"{format.digits(seconds)} s"),
    "mib": _format(format.digits, 1 / MIB),
    "gb": _format(format.digits, 1 / GB),
    "about_us": _format(partial(format.digits, significant=2), 1e6),
    "about_gb": _format(partial(format.digits, significant=2), 1 / GB),
    "signed": _format(format.signed),
}
# Columns of words are aligned to the left, columns of numbers in words to the right. The page's script makes the names
# of configurations and the errors in its tables.
TEXT, WORDED, CASE, ERROR = "text", "worded", "case", "error"

# A cell that the page's script shows: text, or {"text", "sub": a second line, "bad": whether it is marked}.
Cell = str | dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of a table: its head with the unit, its value, and its format.

    The value is a name or index in a row, or a function of the row. The format is a name of FORMATS, TEXT, WORDED, CASE
    or ERROR. In tables of the page's script, which are sorted by the value, `show` makes the cell of a row instead.
    """

    title: str
    value: str | int | Callable[[Any], Any]
    format: str = TEXT
    unknown: str = DASH
    show: Callable[[Any], Cell] | None = None

    def cell(self, row: Any) -> Cell:
        """Return the cell of a row, which is a mapping, a sequence or an object."""
        if self.show is not None:
            return self.show(row)
        if callable(self.value):
            value = self.value(row)
        elif isinstance(row, Mapping):
            value = row.get(self.value)
        else:
            value = row[self.value] if isinstance(self.value, int) else getattr(row, self.value)
        if value is None or (isinstance(value, float) and not format.known(value)):
            return self.unknown
        return FORMATS[self.format](value) if self.format in FORMATS else str(value)


def repetition_name(repetition: int) -> str:
    """Return the number of a repetition, or the kind of a launch that does not count."""
    return UNCOUNTED.get(repetition, f"{repetition:.0f}")


# The mark of a strategy without communication.
NOT_RANKED = "baseline, not ranked"
# The name of a configuration, with a note if it is not ranked.
MARKED = Column(
    "Configuration",
    lambda row: row["label"] + f" ({NOT_RANKED})" * (not entry_of(row["strategy"]).ranked),
)


def table_of(
    title: str,
    columns: Sequence[Column],
    rows: pd.DataFrame | Iterable[Any],
    *,
    closed: bool = True,
    note: str = "",
) -> Table:
    """Return the table of `rows`, which are a frame, mappings or objects. Columns of words must come first.

    Rows with a `case_id` are shown if their case is selected. Only the first MOST_ROWS are listed, with a note.
    """
    every = records(rows) if isinstance(rows, pd.DataFrame) else list(rows)
    shown = every[:MOST_ROWS]
    if len(shown) < len(every):
        note = f"{note} Listed are {MOST_ROWS} of {len(every):,} rows; the results database has all.".strip()
    ids = [row.get("case_id") if isinstance(row, Mapping) else getattr(row, "case_id", None) for row in shown]
    return Table(
        title,
        tuple(column.title for column in columns),
        [tuple(str(column.cell(row)) for column in columns) for row in shown],
        sum(column.format == TEXT for column in columns),
        closed,
        note,
        () if None in ids else tuple(map(str, ids)),
    )
