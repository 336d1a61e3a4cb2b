"""A gate as a page: the verdict, every case's change, and its warnings."""

from __future__ import annotations

import shlex

import pandas as pd

from parabench.analysis import format
from parabench.analysis.answer import Answer
from parabench.analysis.compare import gate
from parabench.analysis.compare.cases import REGRESSIONS
from parabench.analysis.compare.gate import Verdict
from parabench.analysis.warnings.codes import FindingGroup
from parabench.report.figures.changes import MOST_DOTS, changes
from parabench.report.page import declared, fill, packed
from parabench.report.sections.comparison import difference_section, launch_section, side_section
from parabench.report.spec import DASH, NAME, WORDED, Column, Section, flagged
from parabench.store.results import records

_TONE = {Verdict.REGRESSION: "bad", Verdict.NO_REGRESSION: "good", Verdict.INCONCLUSIVE: "open"}


def render(of: Answer) -> str:
    """Return the page as text."""
    rows, verdict, sides = gate_rows(of), gate.the_verdict(of), records(of.tables["sides"])
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
            "tables": {"gate": declared(COLUMNS, shown, [str(name) for name in shown if name not in _WORDS])},
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
        "No case has a step time on both sides, so nothing is drawn.",
        panels=changes(rows, tolerance),
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
    NAME,
    Column("Outcome", "outcome", show=lambda row: flagged(row["outcome"], row["bad"])),
    Column("Base ms", "base_step_time_s", "ms"),
    Column("Candidate ms", "candidate_step_time_s", "ms"),
    Column("Change", "ratio", WORDED, show=lambda row: row["change"] or DASH),
    Column("95% interval", "low", WORDED, show=lambda row: row["interval"] or DASH),
    Column("Upper bound", "upper", WORDED, show=lambda row: flagged(row["above"] or DASH, row["open"])),
    Column("Launches", "n_base", WORDED, show=lambda row: f"{row['n_base']}, {row['n_candidate']}"),
)


def gate_rows(of: Answer) -> pd.DataFrame:
    """Return the rows of COLUMNS: numbers to sort by, and their words."""
    cases = of.tables["cases"]

    def signed(ratios: pd.Series[float]) -> list[str]:
        return ["" if pd.isna(ratio) else format.signed(ratio - 1) for ratio in ratios]

    return cases[_FIELDS].assign(
        bad=cases["outcome"].isin(REGRESSIONS),
        change=signed(cases["ratio"]),
        interval=[*map(gate.interval, records(cases))],
        above=signed(cases["upper"]),
        open=gate.not_ruled_out(cases, gate.the_verdict(of)["tolerance"]),
        n_base=cases["base_launches"].map(len),
        n_candidate=cases["candidate_launches"].map(len),
    )
