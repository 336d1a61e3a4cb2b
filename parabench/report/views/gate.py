"""A gate as a page: the verdict, every case's change, and its warnings."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable

import pandas as pd

from parabench.analysis import format
from parabench.analysis.answer import Answer
from parabench.analysis.compare import gate
from parabench.analysis.compare.cases import REGRESSIONS, Outcome
from parabench.analysis.compare.gate import Verdict
from parabench.analysis.warnings.codes import FindingGroup
from parabench.report.figures.figures import Panel, lay_out, marks, name_bars, plain
from parabench.report.page import declared, fill, packed
from parabench.report.sections.comparison import difference_section, launch_section, side_section
from parabench.report.spec import WORDED, Column, Section

_TONE = {Verdict.REGRESSION: "bad", Verdict.NO_REGRESSION: "good", Verdict.INCONCLUSIVE: "open"}


def render(of: Answer) -> str:
    """Return the page as text."""
    rows, verdict, sides = gate_rows(of), gate.the_verdict(of), of.tables["sides"].to_dict("records")
    cases, launches = of.tables["cases"], [f"{side}_launches" for side in ("base", "candidate")]
    shown = rows.drop(columns=launches)
    return fill(
        "compare.html",
        [_changes(rows, verdict["tolerance"])],
        verdict=verdict,
        sentence=" ".join(of.sentences),
        tone=_TONE[verdict["verdict"]],
        table="gate",
        data={
            "cases": packed(shown),
            "tables": {"gate": declared(COLUMNS, [str(name) for name in shown if name not in _WORDS])},
        },
        judged=int(cases["p_slower"].notna().sum()),
        cases=len(cases),
        upper=format.UNKNOWN if verdict["upper"] is None else format.signed(verdict["upper"] - 1),
        launches_needed=str(gate.needed(cases, verdict["tolerance"]) or "no number") if rows["open"].any() else "",
        differences=[difference_section("Other differences", of.tables["differences"])],
        findings=[FindingGroup(each.code, each.advice, (each.message,)) for each in of.warnings],
        launches=launch_section(
            zip(cases["label"], zip(*(cases[name] for name in launches), strict=True), strict=True)
        ),
        origins=sides,
        sides=side_section(sides),
        command=gate.command(of),
        explore=shlex.join(["parabench", "report", *of.tables["sides"]["at"]]),
    )


def _changes(rows: pd.DataFrame, tolerance: float) -> Section:
    return Section(
        "changes",
        "Change of each case",
        "Candidate over base, with 95% intervals; right of the line is slower. The shaded band is the tolerance.",
        "No case has a step time on both sides, so there is nothing to draw.",
        panels=change_panels(rows, tolerance),
        reading="A grey tick is the one-sided 95% upper bound: slowdowns beyond it are ruled out. A tick right of the "
        "band means that a slowdown of the tolerance is not ruled out. The figure shows the first "
        f"{MOST_DOTS} cases, and the table has all numbers.",
    )


# The columns of `cases` that the page has, and words for them.
_FIELDS = [
    "case_id", "label", "note", "outcome", "base_step_time_s", "candidate_step_time_s", "ratio", "low", "high", "upper",
    "base_launches", "candidate_launches",
]  # fmt: skip
_WORDS = ("change", "interval", "above")
COLUMNS = (
    Column("Case", "label", "case", beside=("note",)),
    Column("Outcome", "outcome", "status", beside=("bad",)),
    Column("Base ms", "base_step_time_s", "ms"),
    Column("Candidate ms", "candidate_step_time_s", "ms"),
    Column("Change", "ratio", WORDED, beside=("change",)),
    Column("95% interval", "low", WORDED, beside=("interval",)),
    Column("Upper bound", "upper", WORDED, beside=("above", "open")),
    Column("Launches", "n_base", "pair", beside=("n_candidate",)),
)


def gate_rows(of: Answer) -> pd.DataFrame:
    """Return the rows of COLUMNS: numbers to sort by, and their words."""
    cases = of.tables["cases"]

    def signed(ratios: pd.Series[float]) -> list[str]:
        return ["" if pd.isna(ratio) else format.signed(ratio - 1) for ratio in ratios]

    return cases[_FIELDS].assign(
        bad=cases["outcome"].isin(REGRESSIONS),
        change=signed(cases["ratio"]),
        interval=[*map(gate.interval, cases.to_dict("records"))],
        above=signed(cases["upper"]),
        open=gate.not_ruled_out(cases, gate.the_verdict(of)["tolerance"]),
        n_base=cases["base_launches"].map(len),
        n_candidate=cases["candidate_launches"].map(len),
    )


# More dots than this are scrolled past; the table has every case.
MOST_DOTS = 40
# The color and the symbol of each outcome, in their order in the legend.
_MARKERS: dict[Outcome, tuple[str, str]] = {
    Outcome.SLOWER: ("#D55E00", "diamond"),
    Outcome.FASTER: ("#009E73", "triangle-left"),
    Outcome.UNCLEAR: ("#E69F00", "x"),
    Outcome.SAME: ("#0072B2", "circle"),
    Outcome.NOT_JUDGED: ("#7F7F7F", "circle-open"),
}
_SHADE = "rgba(127,127,127,0.18)"
_GREY = "#7F7F7F"
# The axis reaches at most this many times as far as its points: an interval of two launches would flatten the rest.
_REACH = 2.5


def change_panels(rows: pd.DataFrame, tolerance: float) -> list[Panel]:
    """Return the figure of all changes in percent, with upper bounds and the tolerance; empty without numbers."""
    rows = rows[rows["ratio"].notna() & rows["outcome"].isin(list(_MARKERS))].head(MOST_DOTS).reset_index(drop=True)
    if rows.empty:
        return []
    changes = 100 * (rows[["ratio", "low", "high", "upper"]].astype(float) - 1)
    rows["hover"] = [
        f"{plain(label)}: {change} (95%: {interval or format.UNKNOWN})"
        for label, change, interval in zip(rows["label"], rows["change"], rows["interval"], strict=True)
    ]
    traces = []
    for outcome, (color, symbol) in _MARKERS.items():
        own = changes[rows["outcome"] == outcome]
        ends = {
            "array": (own["high"] - own["ratio"]).fillna(0.0).tolist(),
            "arrayminus": (own["ratio"] - own["low"]).fillna(0.0).tolist(),
        }
        bars = {"type": "data", "symmetric": False, **ends, "thickness": 1.5, "width": 4}
        marker = {"color": color, "symbol": symbol, "size": 9}
        hovers = rows["hover"][own.index].tolist()
        if len(own):
            traces.append(marks(own["ratio"], own.index.tolist(), str(outcome), hovers, marker, error_x=bars))
    bounds = changes["upper"].dropna()
    tick = {"symbol": "line-ns-open", "size": 13, "color": _GREY, "line": {"width": 2}}
    ruled_out = [f"slowdowns above {above} are ruled out (95%)" for above in rows["above"][bounds.index]]
    traces.append(marks(bounds, bounds.index.tolist(), "upper bound", ruled_out, tick))
    share = 100 * tolerance
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
        xaxis={"range": _range(changes, share), "ticksuffix": ""},
        yaxis=name_bars(rows["label"]),
    )
    return [Panel("", figure, _height(rows["label"]), wide=True)]


def _range(changes: pd.DataFrame, tolerance: float) -> list[float]:
    """Return the ends of the axis, in percent: all changes, and as much of their intervals as does not flatten them."""
    far = _REACH * max(tolerance, changes["ratio"].abs().max(), changes["upper"].abs().fillna(0.0).median())
    ends = [tolerance, -tolerance, *changes.clip(-far, far).stack()]
    margin = 0.04 * (max(ends) - min(ends))
    return [min(ends) - margin, max(ends) + margin]


# Characters in a line of a name on a phone, and its lines at most, as `reports/script/charts/layout.js` cuts it.
_LINE, _LINES = 24, 5


def _height(names: Iterable[str]) -> int:
    """Return the pixels that rows with these names need, also on a phone, where their lines are short."""
    lengths = [*map(len, names)]
    return 110 + len(lengths) * (17 * min(_LINES, math.ceil(max(lengths) / _LINE)) + 9)
