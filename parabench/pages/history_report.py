"""The page of a history: one HTML file that opens from disk, with no network."""

from __future__ import annotations

from parabench.analysis import words
from parabench.analysis.over_time.series import History
from parabench.pages.page import fill
from parabench.pages.sections_history import page_sections


def render(history: History) -> str:
    """The page as text."""
    return fill(
        "history.html",
        page_sections(history),
        suites=", ".join(dict.fromkeys(visit.session.suite for visit in history.visits)),
        first=history.visits[0].when,
        last=history.visits[-1].when,
        sentence=history.sentence(),
        stores=words.listed(dict.fromkeys(str(visit.results.path) for visit in history.visits)),
    )
