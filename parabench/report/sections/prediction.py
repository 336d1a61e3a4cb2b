"""The section of what more ranks are predicted to give, where the store tells what ranks compute alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from parabench.analysis.prediction.outlook import Outlook
from parabench.analysis.prediction.predict import Prediction, by_reason
from parabench.analysis.prediction.schedule import BETWEEN, WITHIN
from parabench.analysis.session import SessionData
from parabench.analysis.text import format
from parabench.analysis.text.outlook import outlook_lines, outlooks_of
from parabench.report.figures.figures import Panel
from parabench.report.figures.prediction import prediction_panel
from parabench.report.spec import WORDED, Column, Section, Table, table_of

# Of cases that nothing is predicted of, with the reason.
MOST_REFUSED = 5
# Names of cases in one of its cells.
_MOST_NAMES = 4


def prediction_section(seen: SessionData) -> Section | None:
    """Predictions for more ranks than trained; None where the store does not tell what ranks compute alone."""
    found = [(each, {name: each.curve(name) for name in each.strategies}) for each in outlooks_of(seen)]
    if not found:
        return None
    panels: list[Panel] = []
    tables: list[Table] = []
    refused: list[Prediction] = []
    notes: dict[str, None] = {}
    for each, curves in found:
        told = {name: [one for one in curve if one.refused is None] for name, curve in curves.items()}
        told = {name: curve for name, curve in told.items() if curve}
        rows = [one for curve in told.values() for one in curve]
        beyond = any(one.case.world_size > each.most for one in rows)
        if beyond:
            panels.append(prediction_panel(each.heading, told))
        if rows:
            tables.append(_table(each, rows, closed=beyond))
        refused += [one for curve in curves.values() for one in curve if one.refused is not None]
        notes |= dict.fromkeys(note for one in rows for note in one.notes)
    if refused:
        tables.append(_refused(refused))
    return Section(
        "prediction",
        "Prediction",
        "What a rank is predicted to train in a second, with 90 % intervals; a level line is linear scaling. Marks are "
        "measured; thin dashes keep the rate of the most ranks that were measured."
        if panels
        else "",
        "Nothing could be predicted from this store.",
        tuple(tables),
        panels=panels,
        lead=" ".join(line for each, _ in found for line in outlook_lines(each, seen, seen.results.path.name)),
        reading=_reading(notes) if tables else "",
    )


def _reading(notes: Iterable[str]) -> str:
    """How predictions are made, and what was taken for granted for them."""
    taken = list(notes)
    return (
        "A step is put together from what a rank computes alone, measured in a session of its own, and from what "
        "collectives take, each in every round as long as messages between two ranks; both are corrected by the "
        "trainings that were measured. Each strategy has the algorithm and bucket size of its fastest training of the "
        "most ranks; parabench predict tells of others. The fastest is the case that needs least time for a sample, of "
        "all strategies, algorithms and DDP's usual bucket sizes."
        + (f" Taken for granted: {format.listed(taken, _MOST_NAMES)}." if taken else "")
    )


def _table(of: Outlook, rows: Sequence[Prediction], *, closed: bool) -> Table:
    return table_of(
        " · ".join(filter(None, ("Predicted steps, in ms", of.heading))),
        (
            Column("Case", lambda each: each.case.label),
            Column("Predicted", "step_s", "ms"),
            Column("90 %", lambda each: format.milliseconds_between(each.low_s, each.high_s), WORDED),
            Column("Measured", "measured_s", "ms"),
            Column("Compute", "compute_s", "ms"),
            Column("Slowest rank", "slowest_s", "ms"),
            Column("In a node", lambda each: (each.exposed_s or {}).get(WITHIN, 0.0), "ms"),
            Column("Between nodes", lambda each: (each.exposed_s or {}).get(BETWEEN, 0.0), "ms"),
            *([Column("Bubble", "bubble_s", "ms")] if any(each.bubble_s for each in rows) else []),
            Column("Memory, MiB", "peak_bytes", "mib"),
            Column("Same rate", "constant_s", "ms"),
            Column("Line in log2", "line_s", "ms"),
        ),
        rows,
        closed=closed,
        note="A step is what ranks compute, wait for the slowest of them, and communicate in a node and between nodes "
        "with nothing to hide it; a bubble is a wait for other ranks. Same rate and line in log2 are naive forecasts: "
        "each rank as fast as at the most ranks measured, or on a line of its rate in the logarithm of the ranks.",
    )


def _refused(refused: Sequence[Prediction]) -> Table:
    """The cases of each reason together."""
    reasons = by_reason(refused)
    shown = list(reasons.items())[:MOST_REFUSED]
    return table_of(
        "Not predicted",
        (
            Column("Cases", lambda row: format.listed((each.case.label for each in row[1]), _MOST_NAMES)),
            Column("Because", lambda row: row[0]),
        ),
        shown,
        note=f"Listed are {len(shown)} of {len(reasons)} reasons." if len(shown) < len(reasons) else "",
    )
