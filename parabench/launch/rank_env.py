"""Where a launch takes place: what every rank's job is told besides the case."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from parabench.launch.meeting import RendezvousPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnv:
    """In `folder` a node's ranks leave what they saw. They meet at `meeting`; without one they are all on this node.

    `environment` is set in each before its process group starts.
    """

    folder: Path
    timeout_s: float
    environment: dict[str, str] = field(default_factory=dict)
    meeting: RendezvousPoint | None = None
