"""Fixtures of tests that watch loops."""

from __future__ import annotations

import pytest


@pytest.fixture
def unanalyzed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record a loop without the analysis of its session, which takes most of the time of a short loop."""
    monkeypatch.setattr("parabench.analysis.ranking.words.closing_lines", lambda data: [])
    monkeypatch.setattr("parabench.analysis.warnings.launches.session_warnings", lambda data: [])
