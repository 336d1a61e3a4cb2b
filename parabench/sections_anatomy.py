"""Sections of where a step's time goes: communication seen and hidden, buckets, the timeline."""

from __future__ import annotations

from parabench.analysis.evidence import Evidence
from parabench.page import Section


def sections(seen: Evidence) -> list[Section]:
    """Those of a session, in the order in which a reader asks."""
    return []
