"""The report: one HTML page that opens from disk, with no network."""

from __future__ import annotations

from pathlib import Path

from parabench import collectives_report
from parabench.analysis import tables, words
from parabench.analysis.best import answers
from parabench.analysis.checks import check_evidence
from parabench.analysis.evidence import evidence
from parabench.analysis.memory import compared, state_table
from parabench.analysis.session import select_session
from parabench.page import render_page
from parabench.record import FIRST_BLOCK, Status
from parabench.sections import training_sections
from parabench.sections_machine import machine_section
from parabench.store import Results
from parabench.whole_file import write_whole


def write_report(results: Results, out: Path, session: str | None = None) -> Path:
    """Write the report of a session (default: the newest) to the file `out`, whole or not at all.

    Raises UsageError for no such session, or when `out` cannot be written.
    """
    write_whole(out, render(results, session), "page", "give another file for the report")
    return out


def render(results: Results, session: str | None = None) -> str:
    """The page as text."""
    chosen = select_session(results, session)
    if chosen.kind == "collectives":
        return collectives_report.render(results, chosen)
    seen = evidence(results, chosen)
    launches, cases = seen.launches, seen.cases
    spots = answers(launches)
    states = state_table(launches, results.sample)
    own = launches[launches["block"] >= FIRST_BLOCK]
    labels = dict(zip(cases["case_id"], cases["label"], strict=True))
    return render_page(
        "report.html",
        chosen,
        training_sections(seen, states),
        machine_section(chosen),
        answers=spots,
        held=compared(states),
        trust=tables.trust(own),
        cases=tables.case_rows(cases, spots),
        unit=" or ".join(dict.fromkeys(map(words.unit_of, cases["seq_len"]))) or "tokens",
        statistics=sorted(set(cases["statistic"])),
        findings=tables.finding_groups(results, chosen, check_evidence(seen), labels),
        launches=launches.to_dict("records"),
        failed=launches[launches["status"] != Status.OK].to_dict("records"),
    )
