"""A part of a page: words, figures, tables; and the tab that it stands in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from parabench.analysis.text import format
from parabench.report.figures.figures import Panel


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
    caption: str
    panels: list[Panel]
    empty: str
    tables: tuple[Table, ...] = ()
    lead: str = ""
    pairs: tuple[tuple[str, str], ...] = ()
    draw: str = ""
    spare: tuple[Panel, ...] = ()
    matrices: tuple[Matrix, ...] = ()


# By tab: its title, and its sections in their order.
TABS: dict[str, tuple[str, tuple[str, ...]]] = {
    "answer": ("Answer", ("ranking", "front")),
    "buckets": ("Buckets", ("bucket", "heat", "buckets")),
    "algorithms": ("Algorithms", ("algorithms", "bus", "fit", "bandwidth")),
    "scaling": ("Scaling", ("scaling",)),
    "anatomy": ("Anatomy", ("parts", "anatomy", "timeline", "stragglers", "pipelines", "usage", "libraries")),
    "memory": ("Memory", ("memory", "state", "time-memory")),
    "energy": ("Energy and health", ("health", "energy", "time-devices", "host")),
    "history": ("History", ("history",)),
    "trust": ("Trust", ("spread", "drift", "order", "excluded")),
    "environment": ("Environment", ("links",)),
    "data": ("Data", ()),
}
# These stand there whatever was measured: the template fills them.
ALWAYS = ("answer", "trust", "environment", "data")


@dataclass(frozen=True)
class Tab:
    """One tab with its sections."""

    id: str
    title: str
    sections: tuple[Section, ...]


def tabs_of(
    sections: Sequence[Section],
    tabs: Mapping[str, tuple[str, tuple[str, ...]]] = TABS,
    always: Collection[str] = ALWAYS,
) -> list[Tab]:
    """The tabs that have something to show, or are in `always`. A section that no tab names is a mistake of ours."""
    by_id = {section.id: section for section in sections}
    found = [
        Tab(name, title, tuple(by_id.pop(each) for each in ids if each in by_id)) for name, (title, ids) in tabs.items()
    ]
    assert not by_id, f"no tab has {list(by_id)}"
    return [tab for tab in found if tab.sections or tab.id in always]


# More rows than these nobody reads in a page, and a browser is slow with them.
MOST_CASES = 50
MOST_ROWS = 300

FASTEST = "the fastest"
Said = Callable[[dict[Any, Any]], tuple[str, ...]]


def case_table(
    title: str,
    head: tuple[str, ...],
    rows: pd.DataFrame,
    said: Said,
    *,
    texts: int = 1,
    closed: bool = True,
    note: str = "",
    first: str = FASTEST,
) -> Table:
    """The table of `rows`, which have a `case_id` and come as they are to be read; `said` makes the words of one. Of
    many cases the first are listed, and that is said: `first` names which they are."""
    place = pd.factorize(rows["case_id"])[0]
    shown = rows[place < MOST_CASES].head(MOST_ROWS)
    if len(shown) < len(rows):
        listed, all_cases = shown["case_id"].nunique(), rows["case_id"].nunique()
        which = f"{len(shown)} of {len(rows):,} rows" if listed == all_cases else f"{listed} of {all_cases:,} cases"
        note = f"{note} Listed are {which}, {first}; the store has all.".strip()
    return Table(
        title,
        head,
        [said(row) for row in shown.to_dict("records")],
        texts,
        closed,
        note,
        tuple(map(str, shown["case_id"])),
    )


def ms(seconds: float | None) -> str:
    """Milliseconds in a table whose head says so; a dash where they are unknown."""
    return format.digits(seconds * 1e3) if format.known(seconds) else "–"
