"""What stands on the page of a session of trainings: tabs, and in each its sections, as a reader asks.

A section is an entry here and a function of what is known of the session; one that gives None has nothing to say of it.
"""

from __future__ import annotations

from collections.abc import Callable

from parabench.analysis.links import link_table
from parabench.analysis.session import SessionData, holds
from parabench.report.sections.answer import (
    algorithms_section,
    by_bucket_section,
    front_section,
    heat_section,
    race_section,
    ranking_section,
    scaling_section,
)
from parabench.report.sections.calls import bandwidth_section, bucket_section, straggler_section
from parabench.report.sections.devices import devices_section, health_section, host_section, memory_section
from parabench.report.sections.environment import links_section
from parabench.report.sections.libraries import libraries_section
from parabench.report.sections.memory import peaks_section, state_section
from parabench.report.sections.step import parts_section, pipelines_section, shares_section, timeline_section
from parabench.report.sections.trust import drift_section, excluded_section, order_section, spread_section
from parabench.report.sections.usage import energy_section, usage_section
from parabench.report.spec import Section, Tab, shown


def _links(seen: SessionData) -> Section | None:
    return links_section(link_table(seen.results, seen.session))


def _history(seen: SessionData) -> Section | None:
    """Only where the store has other sessions: else the statistics of histories, which take time to import, are not
    needed."""
    if len(seen.results.listed) < 2:
        return None
    from parabench.report.sections.history import history_section

    return history_section(seen.results.whole_store, seen.session)


def _prediction(seen: SessionData) -> Section | None:
    """Only where the store tells what ranks compute alone: else what predictions take to import is not needed."""
    if not holds(seen.results, "compute"):
        return None
    from parabench.report.sections.prediction import prediction_section

    return prediction_section(seen)


# By tab: its title, and what makes its sections.
TABS: dict[str, tuple[str, tuple[Callable[[SessionData], Section | None], ...]]] = {
    "answer": ("Answer", (ranking_section, race_section, front_section)),
    "buckets": ("Buckets", (by_bucket_section, heat_section, bucket_section)),
    "algorithms": ("Algorithms", (algorithms_section, bandwidth_section)),
    "scaling": ("Scaling", (scaling_section, _prediction)),
    "anatomy": (
        "Step breakdown",
        (
            parts_section, shares_section, timeline_section, straggler_section, pipelines_section, usage_section,
            libraries_section,
        ),
    ),
    "memory": ("Memory", (peaks_section, state_section, memory_section)),
    "energy": ("Energy and health", (health_section, energy_section, devices_section, host_section)),
    "history": ("History", (_history,)),
    "trust": ("Trust", (spread_section, drift_section, order_section, excluded_section)),
    "environment": ("Environment", (_links,)),
    "data": ("Data", ()),
}  # fmt: skip


def training_tabs(seen: SessionData) -> list[Tab]:
    """The tabs that have something to show of the session."""
    return shown(
        Tab(name, title, tuple(section for make in makers if (section := make(seen)) is not None))
        for name, (title, makers) in TABS.items()
    )
