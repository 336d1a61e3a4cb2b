"""The report: one HTML page that opens from disk, with no network."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from parabench import collectives_report, figures
from parabench.analysis import tables
from parabench.analysis.best import answers
from parabench.analysis.checks import check_launches
from parabench.analysis.frames import case_table, launch_table, same_work
from parabench.analysis.scaling import scaling
from parabench.analysis.session import select_session
from parabench.errors import UsageError
from parabench.page import Section, render_page
from parabench.record import REFERENCE_BLOCK, Status
from parabench.store import Results

# How an SQLite file begins: a store must never be taken for an old report.
SQLITE = b"SQLite format 3"


def write_report(results: Results, out: Path, session: str | None = None) -> Path:
    """Write the report of a session (default: the newest) to the file `out`, whole or not at all.

    Raises UsageError for no such session, or when `out` cannot be written.
    """
    if out.is_file():
        with out.open("rb") as file:
            if file.read(len(SQLITE)) == SQLITE:
                raise UsageError(f"{out} is a database, not a page; give another file for the report")
    page = render(results, session)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.", suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(page)
            Path(name).chmod(0o644)  # mkstemp's 0600 would keep a web server or a colleague out
            Path(name).replace(out)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}; give another file") from error
    return out


def render(results: Results, session: str | None = None) -> str:
    """The page as text."""
    chosen = select_session(results, session)
    if chosen.kind == "collectives":
        return collectives_report.render(results, chosen)
    launches = launch_table(results, chosen)
    cases = case_table(launches)
    spots = answers(launches)
    own = launches[launches["block"] != REFERENCE_BLOCK]
    labels = dict(zip(cases["case_id"], cases["label"], strict=True))
    return render_page(
        "report.html",
        chosen,
        figure_sections(cases),
        answers=spots,
        trust=tables.trust(own),
        cases=tables.case_rows(cases, spots),
        statistics=sorted(set(cases["statistic"])),
        findings=tables.finding_groups(results, chosen, check_launches(launches, results.sample, chosen), labels),
        launches=launches.to_dict("records"),
        failed=launches[launches["status"] != Status.OK].to_dict("records"),
    )


def figure_sections(cases: pd.DataFrame) -> list[Section]:
    """The figures, in the order in which a reader asks."""
    works = same_work(cases)

    def each(draw: Callable[[pd.DataFrame], list[figures.Panel]]) -> list[figures.Panel]:
        drawn = [(work, panel) for work, group in works for panel in draw(group)]
        if len(works) < 2:
            return [panel for _, panel in drawn]
        return [
            figures.Panel(" · ".join(filter(None, (panel.title, _work(work)))), panel.figure, panel.height)
            for work, panel in drawn
        ]

    nothing = "" if cases["latency_s"].notna().any() else "No launch ended well, so there is nothing to draw."
    return [
        Section(
            "bucket",
            "Step latency against bucket size",
            "Lower is better. Bars reach from the fastest to the slowest launch; the axis does not begin "
            "at zero. “default” is PyTorch's own bucket setting.",
            each(figures.latency_by_bucket),
            nothing or "No strategy was measured with more than one bucket size.",
        ),
        Section(
            "heat",
            "Algorithm and bucket size together",
            "Step latency in ms; the deeper the blue, the faster.",
            each(figures.heat_map),
            nothing or "This needs at least two algorithms and two bucket sizes of one strategy and world size.",
        ),
        Section(
            "scaling",
            "More ranks",
            "The work of a step stays the same at every world size (strong scaling). Efficiency is "
            "throughput over that of one rank times the ranks; where one rank was not measured, the smallest "
            "world size is the base. Of several curves, the one with most world sizes, then the fastest, is drawn.",
            each(lambda group: figures.scaling_panels(scaling(group))),
            nothing or "Only one world size was measured, so nothing can be said about scaling.",
        ),
        Section(
            "parts",
            "Where a step's time goes",
            "Medians over steps of the slowest rank, then over launches; medians also where cases are "
            "ranked by another number. Backward includes the communication that it waits for." + _at_most(cases),
            each(figures.step_parts),
            nothing or "The parts of a step were not recorded.",
        ),
        Section(
            "memory",
            "Peak memory",
            "The largest of all ranks and launches." + _at_most(cases),
            each(figures.peak_memory),
            nothing or "Peak memory was not recorded: unknown, not zero.",
        ),
    ]


def _work(work: dict[str, Any]) -> str:
    return (
        f"{work['model']}, {work['data']}, batch {work['global_batch']} × {work['seq_len']}, "
        f"{work['dtype']}, {work['device']}"
    )


def _at_most(cases: pd.DataFrame) -> str:
    many = cases["latency_s"].notna().sum() > figures.MOST_BARS
    return f" The {figures.MOST_BARS} fastest cases are drawn; the table has all." if many else ""
