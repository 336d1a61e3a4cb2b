"""Compare two folders of profiler traces and logs: one recording of each side, so no test and no verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.answer import Answer
from parabench.analysis.session import SessionData
from parabench.analysis.step import recorded
from parabench.analysis.warnings import all_findings
from parabench.store.results import records

SIDES = ("base", "candidate")
_APART = {
    True: "The ranges over the steps do not overlap.",
    False: "The ranges over the steps overlap.",
    None: "A variant has one step, so its spread is unknown.",
}


def answer(base: SessionData, candidate: SessionData) -> Answer:
    """Return the answer of `compare --from`: the table of `recorded.compared` and its sentences."""
    table = recorded.compared(base, candidate)
    warnings = dict.fromkeys(
        each for side in (base, candidate) for each in all_findings(side.results, side.session, ())
    )
    return Answer(tuple(_sentences(table, base, candidate)), {"compared": table}, warnings=tuple(warnings))


def _sentences(table: pd.DataFrame, base: SessionData, candidate: SessionData) -> Iterator[str]:
    """Yield how steps differ, and what the comparison cannot show."""
    steps = table[(table["what"] == "step") & table["ratio"].notna()]
    for row in records(steps):
        name = "A step on its slowest rank" if row["name"] == "slowest rank" else row["name"].capitalize()
        took = (f"{format.milliseconds(row[f'{side}_median_s'])} ({range_ms(row, side)})" for side in SIDES)
        yield (
            f"{name} takes {format.times(row['ratio'])} times as long in the candidate: {' before, '.join(took)} now. "
            f"{_APART[row['apart']]}"
        )
    if steps.empty:
        yield "Steps cannot be compared: a variant has no trace with steps."
    yield (
        "Each variant is one training run, so the variance between launches is unknown, and a difference may be noise: "
        "record several launches of each variant."
    )
    for name, column in (("ranks", "world_size"), ("device", "device"), ("backend", "backend")):
        own, new = (str(side.numbers.iloc[0][column]) for side in (base, candidate))
        if own != new:
            yield f"The {name} differ: {own} in the base, {new} in the candidate."


def range_ms(row: Any, side: str) -> str:
    """Return the least and most of a side over the steps: '54.3 to 80.9'; empty if they are unknown."""
    low, high = row[f"{side}_least_s"], row[f"{side}_most_s"]
    return format.milliseconds_between(low, high) if format.known(low) else ""
