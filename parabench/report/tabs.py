"""Which part of a session's page stands in which tab."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parabench.report.spec import Section

# By tab: its title, and its sections in their order.
TABS: dict[str, tuple[str, tuple[str, ...]]] = {
    "answer": ("Answer", ("ranking", "front")),
    "buckets": ("Buckets", ("bucket", "heat", "buckets")),
    "algorithms": ("Algorithms", ("algorithms", "bus", "fit", "bandwidth")),
    "scaling": ("Scaling", ("scaling",)),
    "anatomy": ("Anatomy", ("parts", "anatomy", "timeline", "stragglers", "pipelines", "usage", "libraries")),
    "memory": ("Memory", ("memory", "state", "time-memory")),
    "energy": ("Energy and health", ("health", "energy", "time-devices", "host")),
    "history": ("History", ("history",)),
    "trust": ("Trust", ("spread", "drift", "order", "excluded")),
    "environment": ("Environment", ("links",)),
    "data": ("Data", ()),
}
# These stand there whatever was measured: the template fills them.
ALWAYS = ("answer", "trust", "environment", "data")


@dataclass(frozen=True)
class Tab:
    """One tab with its sections."""

    id: str
    title: str
    sections: tuple[Section, ...]


def tabs_of(sections: Sequence[Section]) -> list[Tab]:
    """The tabs that have something to show. A section that no tab names is a mistake of ours."""
    by_id = {section.id: section for section in sections}
    found = [
        Tab(name, title, tuple(by_id.pop(each) for each in ids if each in by_id)) for name, (title, ids) in TABS.items()
    ]
    assert not by_id, f"no tab has {list(by_id)}"
    return [tab for tab in found if tab.sections or tab.id in ALWAYS]
