"""The page of a history: one HTML file that opens from disk, with no network."""

from __future__ import annotations

from parabench.analysis.history.series import History
from parabench.analysis.text import format
from parabench.report.page import fill
from parabench.report.sections.history import page_sections


def render(history: History) -> str:
    """The page as text."""
    return fill(
        "history.html",
        page_sections(history),
        suites=", ".join(dict.fromkeys(visit.session.suite for visit in history.visits)),
        first=history.visits[0].session.day,
        last=history.visits[-1].session.day,
        sentence=history.sentence(),
        stores=format.listed(dict.fromkeys(str(visit.results.path) for visit in history.visits)),
    )
