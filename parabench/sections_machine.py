"""Sections of what it ran on, and how its links are wired; how much of the hardware was used."""

from __future__ import annotations

from parabench.analysis.evidence import Evidence
from parabench.page import Section


def sections(seen: Evidence) -> list[Section]:
    """Those of a session, in the order in which a reader asks."""
    return []
