"""The comparison of two folders of recordings, as lines, JSON, Markdown and a page."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.answer import Answer
from parabench.analysis.session import SessionData
from parabench.analysis.step import recorded
from parabench.analysis.warnings.codes import finding_groups
from parabench.report.page import fill
from parabench.report.spec import WORDED, Column, Section, table_of
from parabench.report.views import markdown
from parabench.store.results import records

_SIDES = ("base", "candidate")
# Rows on a terminal.
_MOST_LINES = 20
_APART = {
    True: "The ranges over the steps do not overlap.",
    False: "The ranges over the steps overlap.",
    None: "A side has one step, so its spread is unknown.",
}
_READING = (
    "Medians over the steps, and their least and most. Collectives and kernels are means over ranks: one call, and "
    "all its runs in a step. A kernel is listed if it is among the longest of its rank."
)


@dataclass(frozen=True)
class Pair:
    """Two recordings, the table of `recorded.compared`, and the command that compares them."""

    base: SessionData
    candidate: SessionData
    argv: list[str]

    @cached_property
    def table(self) -> pd.DataFrame:
        return recorded.compared(self.base, self.candidate)


def sentences(of: Pair) -> list[str]:
    """Return how steps differ, and what the comparison cannot show."""
    told = []
    for row in records(of.table[of.table["what"] == "step"]):
        if format.known(row["ratio"]):
            name = "A step on its slowest rank" if row["name"] == "slowest rank" else row["name"].capitalize()
            took = (f"{format.milliseconds(row[f'{side}_median_s'])} ({_range(row, side)})" for side in _SIDES)
            told.append(
                f"{name} takes {format.times(row['ratio'])} times as long in the candidate: "
                f"{' before, '.join(took)} now. {_APART[row['apart']]}"
            )
    told = told or ["Steps cannot be compared: a side has no trace with steps."]
    told.append(
        "Each side is one recording, so the variance between launches is unknown, and a difference may be noise: "
        "record several launches of each side."
    )
    for name, column in (("ranks", "world_size"), ("device", "device"), ("backend", "backend")):
        own, new = (str(side.numbers.iloc[0][column]) for side in (of.base, of.candidate))
        if own != new:
            told.append(f"The {name} differ: {own} in the base, {new} in the candidate.")
    return told


def _range(row: Any, side: str) -> str:
    low, high = row[f"{side}_least_s"], row[f"{side}_most_s"]
    return f"{format.digits(low * 1e3)} to {format.digits(high * 1e3)}" if format.known(low) else ""


def _apart(row: Any) -> str:
    """Return how the steps of both sides lie, or which side lacks the quantity."""
    if format.known(row["ratio"]):
        return {True: "apart", False: "overlap", None: "one step"}[row["apart"]]
    lacks = next((side for side in _SIDES if not format.known(row[f"{side}_median_s"])), None)
    where = "among the longest of" if row["what"] == "kernel" else "in"
    return "zero" if lacks is None else f"not {where} {lacks}"


_COLUMNS = (
    Column("What", lambda row: f"{row['what']}: {row['name']}"),
    Column("Base, ms", "base_median_s", "ms"),
    Column("Candidate, ms", "candidate_median_s", "ms"),
    Column("Times", "ratio", "ratio"),
    Column("Ranges", _apart, WORDED),
    Column("Base steps", lambda row: _range(row, "base"), WORDED),
    Column("Candidate steps", lambda row: _range(row, "candidate"), WORDED),
)
_HEAD = [column.title for column in _COLUMNS]


def _cells(table: pd.DataFrame) -> list[list[str]]:
    return [[column.text(row) for column in _COLUMNS] for row in records(table)]


def lines(of: Pair) -> list[str]:
    """Return the comparison for a terminal."""
    more = len(of.table) - _MOST_LINES
    rows = format.aligned([_HEAD, *_cells(of.table.head(_MOST_LINES))])
    return [*sentences(of), *rows, *[f"{more} more rows: see --html, --markdown or --json."] * (more > 0)]


def answer(of: Pair) -> Answer:
    """Return the answer of `compare --from`."""
    return Answer(tuple(sentences(of)), {"compared": of.table})


def to_markdown(of: Pair) -> str:
    """Return the comparison as Markdown."""
    paragraphs = [f"{markdown.text(each, markdown.SENTENCE)}\n\n" for each in sentences(of)]
    return "".join(["## Two recordings\n\n", *paragraphs, markdown.rows_of(_HEAD, _cells(of.table))])


def render(of: Pair) -> str:
    """Return the comparison as a page."""
    sides = (of.base, of.candidate)
    names = [next(iter(side.labels.values())) for side in sides]
    table = table_of("Base and candidate", _COLUMNS, of.table, closed=False)
    return fill(
        "recorded.html",
        [Section("compared", "Base and candidate", "", "Nothing can be compared.", (table,), reading=_READING)],
        question="How do these recordings differ?",
        name="; ".join(names),
        sentences=sentences(of),
        facts=list(zip(_SIDES, names, strict=True)),
        findings=[found for side in sides for found in finding_groups(side.results, side.session, (), side.labels)],
        command=shlex.join(of.argv),
    )
