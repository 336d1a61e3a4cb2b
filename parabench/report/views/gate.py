"""A gate as a page: the verdict, every case's change, and what casts doubt on it."""

from __future__ import annotations

import pandas as pd

from parabench.analysis.compare.gate import Comparison
from parabench.analysis.compare.rule import REGRESSIONS, Verdict
from parabench.analysis.text import compare as compare_words
from parabench.analysis.text import format
from parabench.report.data.columns import packed
from parabench.report.figures.compare import MOST_DOTS, change_panels
from parabench.report.page import fill
from parabench.report.sections.sides import difference_section, explore, finding_groups, launch_section, side_section
from parabench.report.spec import Section

_TONE = {Verdict.REGRESSION: "bad", Verdict.NO_REGRESSION: "good", Verdict.INCONCLUSIVE: "open"}


def render(of: Comparison) -> str:
    """The page as text."""
    return fill(
        "compare.html",
        [_changes(of)],
        comparison=of,
        tone=_TONE[of.verdict],
        table="gate",
        data={"cases": packed(_rows(of))},
        upper=format.UNKNOWN if of.upper is None else format.signed(of.upper - 1),
        launches_needed=_needed(of),
        differences=[difference_section("What differs besides", of.differences)],
        findings=finding_groups(of.findings),
        launches=launch_section((row.label, (row.base_launches, row.candidate_launches)) for row in of.rows),
        sides=side_section(of.origins),
        command=compare_words.command(of),
        explore=explore(of.origins),
    )


def _changes(of: Comparison) -> Section:
    panels = change_panels(of)
    shown = sum(row.ratio is not None for row in of.rows)
    some = f" The first {MOST_DOTS} of {shown} are drawn; the table has all." if shown > MOST_DOTS else ""
    return Section(
        "changes",
        "How much each case changed",
        "Right of the line is slower. A dot is the candidate's step latency over the base's, its bar the 95 % interval "
        "of that case alone; the shade is the tolerance. A grey tick is the one-sided 95 % upper bound: "
        "slowdowns beyond it are ruled out, and where it lies right of the shade, one of the tolerance is not. A bar "
        f"or tick that leaves the figure has its numbers in the table.{some}",
        panels,
        "No case has a number on both sides, so there is nothing to draw.",
    )


def _rows(of: Comparison) -> pd.DataFrame:
    """The table as the page's script shows it: numbers to sort by, and what words say of them."""
    not_ruled_out = of.not_ruled_out
    return pd.DataFrame(
        {
            "case_id": [row.case_id for row in of.rows],
            "label": [row.label for row in of.rows],
            "note": [row.note for row in of.rows],
            "outcome": [str(row.outcome) for row in of.rows],
            "bad": [row.outcome in REGRESSIONS for row in of.rows],
            "base_s": [row.base_s for row in of.rows],
            "candidate_s": [row.candidate_s for row in of.rows],
            "ratio": [row.ratio for row in of.rows],
            "change": ["" if row.ratio is None else format.signed(row.ratio - 1) for row in of.rows],
            "low": [row.low for row in of.rows],
            "high": [row.high for row in of.rows],
            "interval": [compare_words.interval(row) for row in of.rows],
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
    return str(compare_words.needed(of) or "no number")
