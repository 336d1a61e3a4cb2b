"""A part of a page: words, figures, tables."""

from __future__ import annotations

from dataclasses import dataclass

from parabench.report.figures import figures


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
    panels: list[figures.Panel]
    empty: str
    tables: tuple[Table, ...] = ()
    lead: str = ""
    pairs: tuple[tuple[str, str], ...] = ()
    draw: str = ""
    spare: tuple[figures.Panel, ...] = ()
    matrices: tuple[Matrix, ...] = ()
