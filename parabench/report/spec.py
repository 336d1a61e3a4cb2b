"""The parts of a page: tabs with sections, which have sentences, figures and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.plan.collective_case import size_text
from parabench.report.figures.figures import Panel, marked
from parabench.store.record import GB, MIB, UNCOUNTED, Status
from parabench.store.results import records

# A cell whose value is unknown or does not apply.
DASH = "–"
# Besides the lightest; more are not distinguishable.
SHADES = 4
# The most rows of a table. Readers do not need more, and they slow a browser down.
MOST_ROWS = 300


@dataclass(frozen=True)
class Table:
    """Rows of text below `head`.

    The first `texts` columns are words, the others numbers. A `closed` table opens with a click on its title, because
    a figure shows the same. `note` explains how to read it. The page's filters select rows by `cases`, the id of each
    row's case, "a|b" for a row of several.
    """

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    texts: int = 1
    closed: bool = True
    note: str = ""
    cases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Matrix:
    """Numbers from each name to each name, as (text, shade from 0 to SHADES, or None without a number)."""

    title: str
    names: tuple[str, ...]
    rows: tuple[tuple[tuple[str, int | None], ...], ...]


@dataclass(frozen=True)
class Section:
    """A part of a page: text, figures and tables; tables without rows are left out.

    `lead` is the conclusion, `caption` explains the figures, and `reading` has the details behind a click. `pairs` are
    named facts. `empty` is shown if there is nothing to draw or to list. `spare` are figures for the details of their
    case.
    """

    id: str
    title: str
    caption: str = ""
    empty: str = ""
    tables: tuple[Table, ...] = ()
    lead: str = ""
    pairs: tuple[tuple[str, str], ...] = ()
    panels: list[Panel] = field(default_factory=list)
    spare: tuple[Panel, ...] = ()
    matrices: tuple[Matrix, ...] = ()
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
    return "" if seen.cases["step_time_s"].notna().any() else f"{seen.why_none}, so there is nothing to draw."


def nothing_counted(seen: SessionData) -> str:
    """Return why no launch counts; empty if one does."""
    return f"{seen.why_none}, so there is nothing to draw." if seen.counted.empty else ""


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
# Formats of columns of words, which are aligned to the left, or to the right as numbers are.
TEXT, WORDED = "text", "worded"


@dataclass(frozen=True)
class Column:
    """A column of a table: its head with the unit, its value, and its format.

    The value is the path to a field of a row, or a function of the row. The format is a name of FORMATS, TEXT, or
    WORDED, which may show its first `beside` instead. A table that the page's script fills has further formats (RICH),
    which may depend on the fields `beside` of the row; its rows are sorted by the value.
    """

    title: str
    value: str | Callable[[Any], Any]
    format: str = TEXT
    unknown: str = DASH
    beside: tuple[str, ...] = ()

    def cell(self, row: Any) -> str:
        """Return the text of this column for a row, which is a mapping or an object."""
        if self.format == WORDED and self.beside:
            return str(_at(row, self.beside[0]) or DASH)
        value = self.value(row) if callable(self.value) else _at(row, self.value)
        if self.format in FORMATS:
            return FORMATS[self.format](value) if format.known(value) else self.unknown
        return self.unknown if value is None else str(value)

    def rich(self, row: Mapping[Any, Any]) -> Cell:
        """Return the cell of a row in a table that the page's script fills."""
        known = [row[name] for name in (str(self.value), *self.beside)]
        values: list[Any] = [each if isinstance(each, str) or format.known(each) else None for each in known]
        value, *beside = values
        if self.format in RICH:
            return RICH[self.format](value, *beside)
        return FORMATS[self.format](value) if self.format in FORMATS else str(value or "")


# A cell that the page's script shows: text, or {"text", "sub": a second line, "bad": whether it is marked}.
Cell = str | dict[str, Any]


def _marked(text: str, bad: bool) -> Cell:
    return {"text": text, "bad": True} if bad else text


def _of(low: Any, high: Any, between: str, say: Callable[[float | None], str]) -> str:
    return DASH if low is None else f"{say(low)}{between}{say(high)}"


def _times(ratio: Any, low: Any, high: Any) -> Cell:
    text = FORMATS["times"](ratio)
    return text if ratio is None or low is None else {"text": text, "sub": format.times_between(low, high)}


# Formats of tables that the page's script fills, as functions of a value, which is None if unknown, and of the values
# in the columns `beside`. The script makes cells of "case" and "error".
RICH: dict[str, Callable[..., Cell]] = {
    "case": lambda _, note="": note or "",
    "error": lambda error: error or "",
    "status": lambda status, bad=None: _marked(status or DASH, status != Status.OK if bad is None else bool(bad)),
    "outcome": lambda outcome: outcome or DASH,
    "worded": lambda _, words, bad=False: _marked(words or DASH, bool(bad)),
    "block": lambda block: UNCOUNTED.get(block, f"{block:.0f}"),
    "size": lambda count: size_text(int(count)),
    "wrong": lambda count: _marked(FORMATS["count"](count), (count or 0) > 0),
    "of": lambda n, every: _of(n, every, " of ", FORMATS["count"]),
    "pair": lambda n, other: _of(n, other, ", ", FORMATS["count"]),
    "range_ms": lambda low, high: _of(low, high, " to ", FORMATS["ms"]),
    "margin_ms": lambda margin, of: DASH if margin is None else format.margin_ms(margin, of),
    # A case without a step time on a side shows its status.
    "side_ms": lambda step, status: FORMATS["ms"](step) if step is not None else _marked(status or ABSENT, True),
    "times": _times,
}
# The formats of cells that the page's script makes, and the formats of columns that are sorted as words.
LABELS = ("case", "error")
WORDS = (TEXT, "status", "outcome")
ABSENT = "not measured"


def _at(row: Any, path: str) -> Any:
    """Return the value of `row` at 'field', 'field.field' or 'field.0'; None if a mapping lacks it."""
    for name in path.split("."):
        row = row.get(name) if isinstance(row, Mapping) else row[int(name)] if name.isdigit() else getattr(row, name)
    return row


# The name of a case, with a note if it is not ranked.
MARKED = Column("Case", lambda row: marked(row["label"], row["strategy"]))


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
        note = f"{note} Listed are {MOST_ROWS} of {len(every):,} rows; the store has all.".strip()
    ids = [row.get("case_id") if isinstance(row, Mapping) else getattr(row, "case_id", None) for row in shown]
    return Table(
        title,
        tuple(column.title for column in columns),
        [tuple(column.cell(row) for column in columns) for row in shown],
        sum(column.format == TEXT for column in columns),
        closed,
        note,
        () if None in ids else tuple(map(str, ids)),
    )
