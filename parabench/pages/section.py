"""A part of a page: words, figures, tables."""

from __future__ import annotations

from dataclasses import dataclass

from parabench.pages import figures


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
