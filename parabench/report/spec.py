"""The parts of a page: tabs with sections, which have sentences, figures and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.report.figures.figures import Panel, marked
from parabench.store.record import GB, MIB, UNCOUNTED, Status
from parabench.store.results import records

# A cell whose value is unknown or does not apply.
DASH = "–"
# The most rows of a table. Readers do not need more, and they slow a browser down.
MOST_ROWS = 300


@dataclass(frozen=True)
class Table:
    """Rows of text below `head`.

    The first `texts` columns are words, the others numbers. A `closed` table opens with a click on its title, because
    a figure shows the same. `note` explains it. The page's filters select rows by `cases`: the id of each row's
    configuration, or "a|b" for a row of several.
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


# By id, the functions that make sections; `None` if the session has nothing for a section.
Makers = Mapping[str, Callable[[SessionData], Section | None]]

# Tabs that every page has: their templates fill them.
ALWAYS = ("answer", "trust", "environment", "data")


@dataclass(frozen=True)
class Tab:
    """One tab with its sections."""

    id: str
    title: str
    sections: tuple[Section, ...]


def shown(tabs: Iterable[Tab]) -> list[Tab]:
    """Return the tabs that have something to show."""
    return [tab for tab in tabs if tab.sections or tab.id in ALWAYS]


def nothing_to_draw(seen: SessionData) -> str:
    """Return why no case has a step time; empty if one has."""
    return "" if seen.cases["step_time_s"].notna().any() else f"{seen.why_none}, so nothing is drawn."


def nothing_counted(seen: SessionData) -> str:
    """Return why no launch counts; empty if one does."""
    return f"{seen.why_none}, so nothing is drawn." if seen.counted.empty else ""


def _scaled(factor: float, significant: int = 3) -> Callable[[float], str]:
    return lambda value: format.digits(value * factor, significant)


# The formats of known numbers in cells, by the names that columns, templates and the page's script share. Links are
# measured less exactly.
_KNOWN: dict[str, Callable[[float], str]] = {
    "digits": format.digits,
    "count": "{:,.0f}".format,
    "ratio": "{:.2f}".format,
    "percent": format.percent,
    "rate": format.rate,
    "ms": _scaled(1e3),
    "us": _scaled(1e6),
    "seconds": lambda seconds: f"{format.digits(seconds)} s",
    "mib": _scaled(1 / MIB),
    "gb": _scaled(1 / GB),
    "about_us": _scaled(1e6, 2),
    "about_gb": _scaled(1 / GB, 2),
    "signed": format.signed,
    "times": format.times,
}


def _or_dash(text: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: text(value) if format.known(value) else DASH


FORMATS = {name: _or_dash(text) for name, text in _KNOWN.items()}
# Columns of words are aligned to the left, columns of numbers in words to the right. The page's script makes the names
# of configurations and the errors in its tables.
TEXT, WORDED, CASE, ERROR = "text", "worded", "case", "error"

# A cell that the page's script shows: text, or {"text", "sub": a second line, "bad": whether it is marked}.
Cell = str | dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of a table: its head with the unit, its value, and its format.

    The value is the path to a field of a row, or a function of the row. The format is a name of FORMATS, TEXT, WORDED,
    CASE or ERROR. `show` makes the cell of a row instead; rows are still sorted by the value.
    """

    title: str
    value: str | Callable[[Any], Any]
    format: str = TEXT
    unknown: str = DASH
    show: Callable[[Any], Cell] | None = None

    def cell(self, row: Any) -> Cell:
        """Return the cell of a row, which is a mapping or an object."""
        if self.show is not None:
            return self.show(row)
        value = self.value(row) if callable(self.value) else _at(row, self.value)
        if value is None or (isinstance(value, float) and not format.known(value)):
            return self.unknown
        return FORMATS[self.format](value) if self.format in FORMATS else str(value)

    def text(self, row: Any) -> str:
        """Return the text of the cell of a row."""
        cell = self.cell(row)
        return cell if isinstance(cell, str) else str(cell["text"])


def flagged(text: str, bad: bool) -> Cell:
    """Return a cell that is marked if it is bad."""
    return {"text": text, "bad": True} if bad else text


def out_of(name: str, every: str) -> Callable[[Any], Cell]:
    """Return a function of a row for cells such as '3 of 4'."""
    count = FORMATS["count"]
    return lambda row: f"{count(row[name])} of {count(row[every])}" if format.known(row[name]) else DASH


def repetition_name(repetition: int) -> str:
    """Return the number of a repetition, or the kind of a launch that does not count."""
    return UNCOUNTED.get(repetition, f"{repetition:.0f}")


# Columns of tables that the page's script fills.
NAME = Column("Configuration", "label", CASE, show=lambda row: row.get("note") or "")
STATUS = Column("Status", "status", show=lambda row: flagged(row["status"] or DASH, row["status"] != Status.OK))
REPETITION = Column("Repetition", "repetition", WORDED, show=lambda row: repetition_name(row["repetition"]))


def _at(row: Any, path: str) -> Any:
    """Return the value of `row` at 'field', 'field.field' or 'field.0'; None if a mapping lacks it."""
    if isinstance(row, Mapping) and path in row:
        return row[path]
    for name in path.split("."):
        row = row.get(name) if isinstance(row, Mapping) else row[int(name)] if name.isdigit() else getattr(row, name)
    return row


# The name of a configuration, with a note if it is not ranked.
MARKED = Column("Configuration", lambda row: marked(row["label"], row["strategy"]))


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
        [tuple(column.text(row) for column in columns) for row in shown],
        sum(column.format == TEXT for column in columns),
        closed,
        note,
        () if None in ids else tuple(map(str, ids)),
    )
