"""Build the report of a session: one HTML file that needs no network."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from parabench.analysis import format
from parabench.analysis.collectives.crossover import answer
from parabench.analysis.environment.facts import environment_rows
from parabench.analysis.memory import case_states, compared
from parabench.analysis.ranking.best import answered, interleaving_lines, next_command
from parabench.analysis.session import SessionData, data_of, select_session, session_data
from parabench.analysis.step import summary
from parabench.analysis.warnings import all_findings, grouped
from parabench.analysis.warnings.launches import session_warnings
from parabench.files import write_whole
from parabench.plan.case import RecordedCase
from parabench.private import HIDDEN
from parabench.report.cases import case_details, page_data
from parabench.report.page import fill, kicker, skipped_cases
from parabench.report.sections.answer import front_section, ranking_section, verdicts
from parabench.report.sections.axes import algorithms_section, by_bucket_section, scaling_section
from parabench.report.sections.calls import bandwidth_section, bucket_section
from parabench.report.sections.devices import devices_section, memory_section, usage_section
from parabench.report.sections.environment import links_section, machine_section, spread_section
from parabench.report.sections.memory import peaks_section, state_section
from parabench.report.sections.step import (
    nccl_section,
    parts_section,
    pipelines_section,
    shares_section,
    straggler_section,
)
from parabench.report.sections.timeline import timeline_section
from parabench.report.spec import Makers, Section, repetition_name
from parabench.report.views import collectives, recorded
from parabench.store.record import FIRST_REPETITION, Status
from parabench.store.results import Results, known_records


def _history(seen: SessionData) -> Section | None:
    """Return the history section, whose imports are slow; None if the database has no other session."""
    if len(seen.results.listed) < 2:
        return None
    from parabench.report.sections.history import history_section

    return history_section(seen.results.whole_store, seen.session)


def _prediction(seen: SessionData) -> Section | None:
    """Return the prediction section, whose imports are slow; None without compute-only launches."""
    if not seen.results.whole_store.of_kind("compute"):
        return None
    from parabench.report.sections.prediction import prediction_section

    return prediction_section(seen)


# {tab id: (title, {section id: the function that makes it})}.
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
    "environment": ("Environment", {"links": links_section}),
    "data": ("Data", {}),
}  # fmt: skip


# The template adds content to these tabs, so they are shown even without sections.
_ALWAYS_SHOWN = ("answer", "trust", "environment", "data")


def training_tabs(seen: SessionData) -> dict[str, list[Section]]:
    """Return {tab id: sections} of the shown tabs, in order, for a session of training runs."""
    tabs = {
        name: [section for make in makers.values() if (section := make(seen)) is not None]
        for name, (_, makers) in TABS.items()
    }
    return {name: sections for name, sections in tabs.items() if sections or name in _ALWAYS_SHOWN}


def section_makers(seen: SessionData) -> Makers:
    """Return {section id: the function that makes it} for the page of a session of any kind."""
    if seen.session.kind == RecordedCase.kind:
        return recorded.SECTIONS
    if seen.session.kind == "collectives":
        return {"bus": collectives.bus_section, "fit": collectives.fit_section, "links": links_section}
    return {name: make for _, makers in TABS.values() for name, make in makers.items()}


def write_report(results: Results, out: Path, session: str | None = None) -> Path:
    """Write the report of a session (default: the newest) to the file `out`, completely or not at all.

    Raises UsageError if the session does not exist, or if `out` cannot be written.
    """
    write_whole(out, render(results, session), "page", "give another file for the report")
    return out


# Lines on the terminal, which people paste into issues.
_LINES = 5


def conclusions(results: Results) -> list[str]:
    """Return the conclusions and warnings about the newest imported session, in at most _LINES lines."""
    seen = session_data(results)
    of_logs = seen.session.kind == "collectives"
    lines = [*(answer(seen).sentences if of_logs else recorded.sentences(seen))]
    # The sentence about the profiler is the same for all traces.
    stored = seen.results.finding
    messages = stored.loc[stored["code"] != "recording_profiled", "message"]
    lines += [f"warning: {message}" for message in messages if message not in lines]
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], f"{format.count(len(lines) - _LINES + 1, 'more line')} on the page."]
    return lines


def render(results: Results, session: str | None = None) -> str:
    """Return the HTML of the report of a session (default: the newest)."""
    chosen = select_session(results, session)
    seen = data_of(results, chosen)
    if chosen.kind == "collectives":
        return collectives.render(seen)
    if chosen.kind == RecordedCase.kind:
        return recorded.render(seen)
    tabs, launches = training_tabs(seen), seen.numbers
    failed = [
        (launch, f"repetition {name}" if launch["repetition"] >= FIRST_REPETITION else f"{name} launch")
        for launch in known_records(launches[launches["status"] != Status.OK])
        for name in (repetition_name(launch["repetition"]),)
    ]
    return fill(
        "report.html",
        [section for sections in tabs.values() for section in sections],
        page_data(seen),
        title=chosen.label or chosen.suite,
        kicker=kicker(chosen),
        question=chosen.question or "What was measured?",
        session=chosen,
        tabs=[(name, TABS[name][0], sections) for name, sections in tabs.items()],
        opened=case_details(seen),
        answers=verdicts(seen),
        where=summary.lines(seen),
        of_turns=interleaving_lines(seen),
        held=compared(seen.once(case_states)),
        next=next_command(seen, seen.once(answered), HIDDEN),
        trust=_trust(seen),
        none_counts=seen.why_none[0].lower() + seen.why_none[1:],
        statistics=sorted(seen.cases["statistic"].unique()),
        findings=grouped(all_findings(results, chosen, seen.once(session_warnings)), seen.labels),
        launches=len(launches),
        failed=failed,
        skipped=skipped_cases(chosen),
        machine=machine_section(chosen),
        environment=environment_rows(chosen),
        command=shlex.join(chosen.argv),
    )


def _trust(seen: SessionData) -> dict[str, Any]:
    """Return the counts in the sentence about launches.

    `good` launches have a step time, and `numberless` ones succeeded without it. `steps` are the fewest and the most
    measured steps of a good launch.
    """
    own = seen.numbers[seen.numbers["repetition"] >= FIRST_REPETITION]
    good = own[own["counted"]]
    return {
        "launches": len(own),
        "good": len(good),
        "numberless": int((own["status"] == Status.OK).sum()) - len(good),
        "skipped": len(seen.session.plan.get("skipped") or []),
        "cases": int(own["case"].nunique()),
        "repetitions": int(good["repetition"].nunique()),
        "steps": [int(good["n_steps"].min()), int(good["n_steps"].max())] if len(good) else [],
    }
