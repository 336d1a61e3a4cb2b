"""A gate as a page: the verdict, every case's change, and its warnings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from parabench.analysis.compare import gate
from parabench.analysis.compare.cases import REGRESSIONS, CaseResult, Outcome
from parabench.analysis.compare.gate import Comparison, Verdict
from parabench.analysis.compare.overall import explore
from parabench.analysis.text import format
from parabench.analysis.warnings.codes import FindingGroup
from parabench.report.figures.figures import Panel, Trace, lay_out, name_bars, plain
from parabench.report.page import declared, fill, packed
from parabench.report.sections.comparison import (
    difference_section,
    launch_section,
    side_section,
)
from parabench.report.spec import WORDED, Column, Section

_TONE = {Verdict.REGRESSION: "bad", Verdict.NO_REGRESSION: "good", Verdict.INCONCLUSIVE: "open"}


def render(of: Comparison) -> str:
    """The page as text."""
    table = gate_rows(of)
    return fill(
        "compare.html",
        [_changes(of)],
        comparison=of,
        sentence=gate.sentence(of),
        tone=_TONE[of.verdict],
        table="gate",
        data={
            "cases": packed(table),
            "tables": {"gate": declared(COLUMNS, [str(name) for name in table if name not in _WORDS])},
        },
        upper=format.UNKNOWN if of.upper is None else format.signed(of.upper - 1),
        launches_needed=_needed(of),
        differences=[difference_section("Other differences", of.differences)],
        findings=[FindingGroup(each.code, each.advice, (each.message,)) for each in of.findings],
        launches=launch_section((row.label, (row.base_launches, row.candidate_launches)) for row in of.rows),
        sides=side_section(of.origins),
        command=gate.command(of),
        explore=explore(*of.origins),
    )


def _changes(of: Comparison) -> Section:
    panels = change_panels(of)
    shown = sum(row.ratio is not None for row in of.rows)
    some = f" First {MOST_DOTS} of {shown} cases; the table has all." if shown > MOST_DOTS else ""
    return Section(
        "changes",
        "Change of each case",
        "Candidate over base, with 95 % intervals; right of the line is slower. The shaded band is the tolerance.",
        "No case has a step time on both sides, so there is nothing to draw.",
        panels=panels,
        reading="A grey tick is the one-sided 95 % upper bound: slowdowns beyond it are ruled out. A tick right of the "
        "band means that a slowdown of the tolerance is not ruled out. The table has the numbers of bars and ticks "
        f"that leave the figure.{some}",
    )


# What words say of a number beside them.
_WORDS = ("change", "interval", "above")
COLUMNS = (
    Column("Case", "label", "case", beside=("note",)),
    Column("Outcome", "outcome", "status", beside=("bad",)),
    Column("Base ms", "base_step_time_s", "ms"),
    Column("Candidate ms", "candidate_step_time_s", "ms"),
    Column("Change", "ratio", WORDED, beside=("change",)),
    Column("95 % interval", "low", WORDED, beside=("interval",)),
    Column("Upper bound", "upper", WORDED, beside=("above", "open")),
    Column("Launches", "n_base", "pair", beside=("n_candidate",)),
)


def gate_rows(of: Comparison) -> pd.DataFrame:
    """The rows of COLUMNS: numbers to sort by, and what words say of them."""
    not_ruled_out = of.not_ruled_out
    return pd.DataFrame(
        {
            "case_id": [row.case_id for row in of.rows],
            "label": [row.label for row in of.rows],
            "note": [row.note for row in of.rows],
            "outcome": [str(row.outcome) for row in of.rows],
            "bad": [row.outcome in REGRESSIONS for row in of.rows],
            "base_step_time_s": [row.base_step_time_s for row in of.rows],
            "candidate_step_time_s": [row.candidate_step_time_s for row in of.rows],
            "ratio": [row.ratio for row in of.rows],
            "change": ["" if row.ratio is None else format.signed(row.ratio - 1) for row in of.rows],
            "low": [row.low for row in of.rows],
            "high": [row.high for row in of.rows],
            "interval": [gate.interval(row) for row in of.rows],
            "upper": [row.upper for row in of.rows],
            "above": ["" if row.upper is None else format.signed(row.upper - 1) for row in of.rows],
            "open": [row in not_ruled_out for row in of.rows],
            "n_base": [len(row.base_launches) for row in of.rows],
            "n_candidate": [len(row.candidate_launches) for row in of.rows],
        }
    )


def _needed(of: Comparison) -> str:
    """With how many launches a side two equal sides would pass; empty where every case has ruled the tolerance out."""
    if not of.not_ruled_out:
        return ""
    return str(gate.needed(of) or "no number")


# More dots than this are scrolled past; the table has every case.
MOST_DOTS = 40
# Colour, symbol and order of what became of a case.
_OUTCOME: dict[Outcome, tuple[str, str]] = {
    Outcome.SLOWER: ("#D55E00", "diamond"),
    Outcome.FASTER: ("#009E73", "triangle-left"),
    Outcome.UNCLEAR: ("#E69F00", "x"),
    Outcome.SAME: ("#0072B2", "circle"),
    Outcome.NOT_JUDGED: ("#7F7F7F", "circle-open"),
}
_SHADE = "rgba(127,127,127,0.18)"
_GREY = "#7F7F7F"
# An axis reaches at most so many times as far as its points: an interval of two launches would press all else flat.
_REACH = 2.5


def change_panels(of: Comparison) -> list[Panel]:
    """The change of every case that has numbers on both sides, in %, with its upper bound and the tolerance."""
    drawn = [row for row in of.rows if row.ratio is not None and row.outcome in _OUTCOME][:MOST_DOTS]
    if not drawn:
        return []
    traces: list[Trace] = []
    low, high = _range_of_changes(drawn, of.tolerance)
    for outcome, (colour, symbol) in _OUTCOME.items():
        rows = [(place, row) for place, row in enumerate(drawn) if row.outcome is outcome]
        if rows:
            traces.append(
                _dots(rows) | {"name": str(outcome), "marker": {"color": colour, "symbol": symbol, "size": 9}}
            )
    seen = [(place, row) for place, row in enumerate(drawn) if row.upper is not None]
    if seen:
        traces.append(
            {
                "type": "scatter",
                "x": [100 * ((row.upper or 1) - 1) for _, row in seen],
                "y": [place for place, _ in seen],
                "mode": "markers",
                "name": "upper bound",
                "marker": {"symbol": "line-ns-open", "size": 13, "color": _GREY, "line": {"width": 2}},
                "hovertemplate": "slowdowns above %{x:.2~f} % are ruled out (95 %)<extra></extra>",
            }
        )
    share = 100 * of.tolerance
    over_all = {"y0": 0, "y1": 1, "yref": "paper"}
    tolerated = {
        "type": "rect", "x0": -share, "x1": share, **over_all, "fillcolor": _SHADE, "line": {"width": 0},
        "layer": "below",
    }  # fmt: skip
    unchanged = {"type": "line", "x0": 0.0, "x1": 0.0, **over_all, "line": {"color": _GREY, "width": 1.5}}
    figure = lay_out(
        traces,
        "change of the step time (%)",
        "",
        shapes=[tolerated, unchanged],
        xaxis={"range": [low, high], "ticksuffix": ""},
        yaxis=name_bars(row.label for row in drawn),
    )
    return [Panel("", figure, _height([row.label for row in drawn]), wide=True)]


def _dots(rows: Sequence[tuple[int, CaseResult]]) -> Trace:
    """Positions in %, intervals, and what hovering says."""
    changes = [100 * ((row.ratio or 1) - 1) for _, row in rows]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": changes,
        "y": [place for place, _ in rows],
        "error_x": _bars([(row.ratio, row.low, row.high) for _, row in rows], 100.0),
        "customdata": [
            [
                plain(row.label),
                format.signed((row.ratio or 1) - 1),
                plain(gate.interval(row) or format.UNKNOWN),
            ]
            for _, row in rows
        ],
        "hovertemplate": "%{customdata[0]}: %{customdata[1]} (95 %: %{customdata[2]})<extra></extra>",
    }


def _bars(ratios: Iterable[tuple[float | None, float | None, float | None]], scale: float) -> dict[str, Any]:
    """Error bars of (ratio, low, high), times `scale`; none where the interval is unknown."""
    known = [(r, lo, hi) if r and lo is not None and hi is not None else (0.0, 0.0, 0.0) for r, lo, hi in ratios]
    return {
        "type": "data",
        "symmetric": False,
        "array": [scale * (hi - r) for r, _, hi in known],
        "arrayminus": [scale * (r - lo) for r, lo, _ in known],
        "thickness": 1.5,
        "width": 4,
    }


def _range_of_changes(rows: Sequence[CaseResult], tolerance: float) -> tuple[float, float]:
    """The ends of the axis, in %."""
    points = [100 * ((row.ratio or 1) - 1) for row in rows] + [100 * tolerance, -100 * tolerance]
    # The noisiest case must not press all others flat, and beyond twice as long no place says more.
    found = sorted(100 * (row.upper - 1) for row in rows if row.upper is not None and row.upper <= 2)
    points += found[: math.ceil(0.9 * len(found))]
    reach = [100 * (each - 1) for row in rows for each in (row.low, row.high) if each is not None]
    far = _REACH * max(map(abs, points))
    low, high = min([*points, *(max(each, -far) for each in reach)]), max([*points, *(min(e, far) for e in reach)])
    margin = 0.04 * (high - low)
    return low - margin, high + margin


# Characters in a line of a name on a phone, and its lines at most, as `reports/script/charts/layout.js` cuts it.
_LINE, _LINES = 24, 5


def _height(names: Sequence[str]) -> int:
    """Pixels that rows with these names need, also on a phone, where their lines are short."""
    lines = min(_LINES, math.ceil(max(map(len, names)) / _LINE))
    return 110 + len(names) * (17 * lines + 9)
