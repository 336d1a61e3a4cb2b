"""A part of a page: words, figures, tables; and the tab that it stands in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from parabench.analysis.session import SessionData
from parabench.analysis.text import format
from parabench.report.figures.figures import Panel, marked


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
    """A number of a matrix in words, and how dark its place is: from 0, the least of the matrix, to `SHADES`. None: it
    is unknown, or there is none. It may reach over several `columns` and `rows`."""

    text: str
    shade: int | None = None
    columns: int = 1
    rows: int = 1


# In a cell for what is unknown, or is not there.
DASH = "–"
# Besides the lightest; more are not told apart.
SHADES = 4


@dataclass(frozen=True)
class Matrix:
    """What goes from each row to each column. Where they come in groups, `groups` are their names, each with how many
    rows and columns are its own; a cell that reaches over several rows stands in the first of them."""

    title: str
    names: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    groups: tuple[tuple[str, int], ...] = ()

    def group_at(self, row: int) -> tuple[str, int] | None:
        """The group that begins with that row."""
        at = 0
        for name, size in self.groups:
            if at == row:
                return name, size
            at += size
        return None


@dataclass(frozen=True)
class Section:
    """A part of the page with figures and tables; without any, `empty` says why there are none. `lead` is what they
    show, in a sentence or two; `pairs` are facts, each with its name. `draw` names the drawer of the page's script that
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


@dataclass(frozen=True)
class Column:
    """A column of a table of cases: its head, which has the unit; its value, by the name of a row's column or worked
    out of the row; and what says it where it is a number."""

    title: str
    value: str | Callable[[dict[Any, Any]], Any]
    say: Callable[[Any], str] | None = None

    def cell(self, row: dict[Any, Any]) -> str:
        """What the row has in this column, in words."""
        value = row[self.value] if isinstance(self.value, str) else self.value(row)
        return str(value) if self.say is None else self.say(value)


# A case by its name, which says where it is no answer.
MARKED = Column("Case", lambda row: marked(row["label"], row["strategy"]))


def case_table(
    title: str,
    columns: Sequence[Column],
    rows: pd.DataFrame,
    *,
    closed: bool = True,
    note: str = "",
    first: str = FASTEST,
) -> Table:
    """The table of `rows`, which have a `case_id` and come as they are to be read; columns of words come first. Of many
    cases the first are listed, and that is said: `first` names which they are."""
    place = pd.factorize(rows["case_id"])[0]
    shown = rows[place < MOST_CASES].head(MOST_ROWS)
    if len(shown) < len(rows):
        listed, all_cases = shown["case_id"].nunique(), rows["case_id"].nunique()
        which = f"{len(shown)} of {len(rows):,} rows" if listed == all_cases else f"{listed} of {all_cases:,} cases"
        note = f"{note} Listed are {which}, {first}; the store has all.".strip()
    return Table(
        title,
        tuple(column.title for column in columns),
        [tuple(column.cell(row) for column in columns) for row in shown.to_dict("records")],
        sum(column.say is None for column in columns),
        closed,
        note,
        tuple(map(str, shown["case_id"])),
    )


def amount(unit: float = 1.0, unknown: str = DASH) -> Callable[[float | None], str]:
    """Says numbers in a unit that the head names; `unknown` where there is none."""
    return lambda value: format.digits(value / unit) if format.known(value) else unknown


def ms(seconds: float | None) -> str:
    """Milliseconds in a table whose head says so; a dash where they are unknown."""
    return format.digits(seconds * 1e3) if format.known(seconds) else DASH
