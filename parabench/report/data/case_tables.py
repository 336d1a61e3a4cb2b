"""Tables whose rows each tell of one case: bounded, and tied to their cases so that the filters choose among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from parabench.report.spec import Table

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
