"""The report: one HTML page that opens from disk, with no network."""

from __future__ import annotations

from pathlib import Path

from parabench.analysis import format
from parabench.analysis.links import link_table
from parabench.analysis.memory import case_states, compared
from parabench.analysis.ranking.best import answered, next_command, of_turns
from parabench.analysis.session import SessionData, data_of, select_session, session_data
from parabench.analysis.step import summary
from parabench.analysis.warnings.codes import finding_groups
from parabench.analysis.warnings.launches import session_warnings
from parabench.files import write_whole
from parabench.plan.case import RecordedCase
from parabench.private import HIDDEN
from parabench.report.details import case_details
from parabench.report.page import render_page
from parabench.report.page_data import LAUNCH_COLUMNS, OF_CASE, page_data
from parabench.report.sections.answer import (
    algorithms_section,
    by_bucket_section,
    front_section,
    ranking_section,
    scaling_section,
    verdicts,
)
from parabench.report.sections.calls import bandwidth_section, bucket_section
from parabench.report.sections.devices import devices_section, memory_section, usage_section
from parabench.report.sections.environment import links_section
from parabench.report.sections.memory import peaks_section, state_section
from parabench.report.sections.nccl import nccl_section
from parabench.report.sections.step import (
    parts_section,
    pipelines_section,
    shares_section,
    straggler_section,
    timeline_section,
)
from parabench.report.sections.trust import spread_section
from parabench.report.spec import Makers, Section, Tab, shown
from parabench.store.record import FIRST_REPETITION, Status
from parabench.store.results import Results, records


def _links(seen: SessionData) -> Section | None:
    return links_section(link_table(seen.results, seen.session))


def _history(seen: SessionData) -> Section | None:
    """Return the section of histories, whose statistics take time to import, if the database has other sessions."""
    if len(seen.results.listed) < 2:
        return None
    from parabench.report.sections.history import history_section

    return history_section(seen.results.whole_store, seen.session)


def _prediction(seen: SessionData) -> Section | None:
    """Return the section of predictions, which take time to import, if the database has compute-only launches."""
    if not seen.results.whole_store.of_kind("compute"):
        return None
    from parabench.report.sections.prediction import prediction_section

    return prediction_section(seen)


# By tab: its title, and the functions that make its sections, by the ids of these.
TABS: dict[str, tuple[str, Makers]] = {
    "answer": ("Answer", {"ranking": ranking_section, "front": front_section}),
    "buckets": ("Buckets", {"bucket": by_bucket_section, "buckets": bucket_section}),
    "algorithms": ("Algorithms", {"algorithms": algorithms_section, "bandwidth": bandwidth_section}),
    "scaling": ("Scaling", {"scaling": scaling_section, "prediction": _prediction}),
    "anatomy": (
        "Step breakdown",
        {
            "parts": parts_section, "anatomy": shares_section, "timeline": timeline_section,
            "stragglers": straggler_section, "pipelines": pipelines_section, "nccl": nccl_section,
        },
    ),
    "memory": ("Memory", {"memory": peaks_section, "state": state_section, "time-memory": memory_section}),
    "energy": ("Energy and devices", {"usage": usage_section, "time-devices": devices_section}),
    "history": ("History", {"history": _history}),
    "trust": ("Trust", {"spread": spread_section}),
    "environment": ("Environment", {"links": _links}),
    "data": ("Data", {}),
}  # fmt: skip


def section_makers(seen: SessionData) -> Makers:
    """Return the functions that make the sections of a session's report, by the ids of the sections."""
    if seen.session.kind == RecordedCase.kind:
        from parabench.report.views import recorded

        return recorded.SECTIONS
    if seen.session.kind == "collectives":
        from parabench.report.views import collectives

        return {"bus": collectives.bus_section, "fit": collectives.fit_section, "links": _links}
    return {name: make for _, makers in TABS.values() for name, make in makers.items()}


def training_tabs(seen: SessionData) -> list[Tab]:
    """Return the tabs with content about the session."""
    made = {name: (title, [make(seen) for make in makers.values()]) for name, (title, makers) in TABS.items()}
    return shown(Tab(name, title, tuple(filter(None, sections))) for name, (title, sections) in made.items())


def write_report(results: Results, out: Path, session: str | None = None) -> Path:
    """Write the report of a session (default: the newest) to the file `out`, completely or not at all.

    Raises UsageError if the session does not exist, or if `out` cannot be written.
    """
    write_whole(out, render(results, session), "page", "give another file for the report")
    return out


# Lines on the terminal, which people paste into issues.
_LINES = 5


def conclusions(results: Results) -> list[str]:
    """Return what the newest session of recordings shows, in a few lines."""
    from parabench.report.views import collectives, recorded

    seen = session_data(results)
    lines = collectives.conclusions(seen) if seen.session.kind == "collectives" else recorded.conclusions(results)
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], f"{format.count(len(lines) - _LINES + 1, 'more line')} on the page."]
    return lines


def render(results: Results, session: str | None = None) -> str:
    """Return the page as text."""
    chosen = select_session(results, session)
    if chosen.kind == "collectives":
        from parabench.report.views import collectives

        return collectives.render(data_of(results, chosen))
    if chosen.kind == RecordedCase.kind:
        from parabench.report.views import recorded

        return recorded.render(results, chosen)
    seen = data_of(results, chosen)
    launches = seen.numbers
    return render_page(
        "report.html",
        chosen,
        training_tabs(seen),
        data=page_data(seen),
        opened=case_details(seen, tuple(each for each in LAUNCH_COLUMNS if each.value in OF_CASE)),
        answers=verdicts(seen),
        where=summary.lines(seen),
        of_turns=of_turns(seen),
        held=compared(seen.once(case_states)),
        next=next_command(seen, seen.once(answered), HIDDEN),
        trust=_trust(seen),
        none_counts=seen.why_none[0].lower() + seen.why_none[1:],
        statistics=sorted(seen.cases["statistic"].unique()),
        findings=finding_groups(results, chosen, seen.once(session_warnings), seen.labels),
        launches=len(launches),
        failed=records(launches[launches["status"] != Status.OK]),
    )


def _trust(seen: SessionData) -> dict[str, int]:
    """Return the numbers of launches, good launches, launches that succeeded without a number (`numberless`), cases,
    repetitions, steps of a launch, and skipped cases."""
    own = seen.numbers[seen.numbers["repetition"] >= FIRST_REPETITION]
    good = own[own["counted"]]
    return {
        "launches": len(own),
        "good": len(good),
        "numberless": int((own["status"] == Status.OK).sum()) - len(good),
        "skipped": len(seen.session.plan.get("skipped") or []),
        "cases": int(own["case"].nunique()),
        "repetitions": int(good["repetition"].nunique()),
        "steps": int(good["n_steps"].median()) if len(good) else 0,
    }
