"""A part of a page: words, figures, tables; and the tab that it stands in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.report.figures.figures import Panel, marked
from parabench.store.record import GB, MIB


@dataclass(frozen=True)
class Table:
    """Rows of text below `head`. The first `texts` columns are words, the others numbers. `closed`: behind `title`,
    because a figure shows the same. `note` says how to read it, where the section's caption is not the place. `cases`
    are the ids of the cases that the rows tell of, so that the filters choose among them; where a row tells of several,
    `of` are these as rows of the page's data."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    texts: int = 1
    closed: bool = True
    note: str = ""
    cases: tuple[str, ...] = ()
    of: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Cell:
    """A number of a matrix as text, and its shade from 0, the smallest, to `SHADES`; `None` if it is unknown."""

    text: str
    shade: int | None = None


# In a cell for what is unknown, or is not there.
DASH = "–"
# Besides the lightest; more are not told apart.
SHADES = 4


@dataclass(frozen=True)
class Matrix:
    """Numbers from each row to each column, which have the same names."""

    title: str
    names: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Section:
    """A part of the page with figures and tables; without any, `empty` says why there are none. `lead` is what they
    show, in a sentence or two; `caption` what is drawn, in two sentences at most; `reading`, all else that a reader may
    ask, stands behind a line. `pairs` are facts, each with its name. `draw` names the drawer of the page's script that
    makes its figures of the selected cases; where it makes none, `empty` says why. `spare` are figures of single cases
    that stand in the details of their case alone."""

    id: str
    title: str
    caption: str = ""
    empty: str = ""
    tables: tuple[Table, ...] = ()
    lead: str = ""
    pairs: tuple[tuple[str, str], ...] = ()
    draw: str = ""
    panels: list[Panel] = field(default_factory=list)
    spare: tuple[Panel, ...] = ()
    matrices: tuple[Matrix, ...] = ()
    reading: str = ""


# Tabs that stand on a page whatever was measured: its template fills them.
ALWAYS = ("answer", "trust", "environment", "data")


@dataclass(frozen=True)
class Tab:
    """One tab with its sections."""

    id: str
    title: str
    sections: tuple[Section, ...]


def shown(tabs: Iterable[Tab]) -> list[Tab]:
    """The tabs that have something to show."""
    return [tab for tab in tabs if tab.sections or tab.id in ALWAYS]


def nothing_to_draw(seen: SessionData) -> str:
    """Why no case has a step time; empty where some have."""
    return "" if seen.cases["step_time_s"].notna().any() else f"{seen.why_none}, so there is nothing to draw."


# More rows than these nobody reads in a page, and a browser is slow with them.
MOST_CASES = 50
MOST_ROWS = 300

FASTEST = "the fastest"


def _or_dash(say: Callable[..., str]) -> Callable[[float | None], str]:
    return lambda value: say(value) if format.known(value) else DASH


# How numbers are said in a cell, by the names that columns, templates and the page's script share; unknown is a dash.
_SAID: dict[str, Callable[..., str]] = {
    "digits": format.digits,
    "count": "{:,.0f}".format,
    "ratio": "{:.2f}".format,
    "percent": format.percent,
    "rate": format.rate,
    "ms": lambda seconds: format.digits(seconds * 1e3),
    "us": lambda seconds: format.digits(seconds * 1e6),
    "seconds": lambda seconds: f"{format.digits(seconds)} s",
    "mib": lambda count: format.digits(count / MIB),
    "gb": lambda count: format.digits(count / GB),
    # Of links, which are measured less exactly.
    "about_us": lambda seconds: format.digits(seconds * 1e6, 2),
    "about_gb": lambda count: format.digits(count / GB, 2),
    "signed": format.signed,
    "times": format.times,
}
FORMATS: dict[str, Callable[[float | None], str]] = {name: _or_dash(say) for name, say in _SAID.items()}
# Of columns that are in words already: these stand to the left, those to the right, as numbers do.
TEXT, WORDED = "text", "worded"


@dataclass(frozen=True)
class Column:
    """A column of a table: its head, which has the unit; its value, by the path to a row's field or worked out of the
    row; and how that is said: a name of FORMATS, TEXT or WORDED, whose words may be the first `beside`.

    Of a table that the page's script fills, `value` is a column of the page's data, by which it sorts, `beside` are
    others that a cell shows too, and further formats are those of `reports/script/table/columns.js`.
    """

    title: str
    value: str | Callable[[Any], Any]
    format: str = TEXT
    unknown: str = DASH
    beside: tuple[str, ...] = ()

    def cell(self, row: Any) -> str:
        """What the row, a mapping or an object, has in this column, in words."""
        value = self.value(row) if callable(self.value) else _at(row, self.value)
        if self.format == WORDED and self.beside:
            return str(_at(row, self.beside[0]) or DASH)
        if self.format not in FORMATS:
            return str(value)
        return FORMATS[self.format](value) if format.known(value) else self.unknown


def _at(row: Any, path: str) -> Any:
    """What `row` has at 'field', 'field.field' or 'field.0'."""
    for name in path.split("."):
        row = row[name] if isinstance(row, Mapping) else row[int(name)] if name.isdigit() else getattr(row, name)
    return row


# A case by its name, which says where it is not ranked.
MARKED = Column("Case", lambda row: marked(row["label"], row["strategy"]))


def table_of(title: str, columns: Sequence[Column], rows: Iterable[Any], **more: Any) -> Table:
    """The table of `rows`; columns of words come first. `more` are fields of Table."""
    return Table(
        title,
        tuple(column.title for column in columns),
        [tuple(column.cell(row) for column in columns) for row in rows],
        sum(column.format == TEXT for column in columns),
        **more,
    )


def case_table(
    title: str,
    columns: Sequence[Column],
    rows: pd.DataFrame,
    *,
    closed: bool = True,
    note: str = "",
    first: str = FASTEST,
) -> Table:
    """The table of `rows`, which have a `case_id` and come as they are to be read. Of many cases the first are listed,
    and that is said: `first` names which they are."""
    place = pd.factorize(rows["case_id"])[0]
    shown = rows[place < MOST_CASES].head(MOST_ROWS)
    if len(shown) < len(rows):
        listed, all_cases = shown["case_id"].nunique(), rows["case_id"].nunique()
        which = f"{len(shown)} of {len(rows):,} rows" if listed == all_cases else f"{listed} of {all_cases:,} cases"
        note = f"{note} Listed are {which}, {first}; the store has all.".strip()
    cases = tuple(map(str, shown["case_id"]))
    return table_of(title, columns, shown.to_dict("records"), closed=closed, note=note, cases=cases)
