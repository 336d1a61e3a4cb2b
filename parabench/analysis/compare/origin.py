"""Where the numbers of a side lie, so that whoever reads an answer finds its rows."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass

from parabench.analysis.compare.sides import Side


@dataclass(frozen=True)
class Origin:
    """A side's session. `at` is what `parabench compare` takes, STORE@SESSION; `command` is what measured it.

    `launches` are all of the session but its reference, `good` those that count; `finished_utc` is None for a session
    that was planned to go on.
    """

    at: str
    session: str
    suite: str
    command: str
    started_utc: str
    finished_utc: str | None
    launches: int
    good: int


def origin_of(side: Side) -> Origin:
    """Where the numbers of `side` lie."""
    # A path may hold bytes that are no text.
    path = os.fsencode(side.results.path).decode(errors="replace")
    return Origin(
        at=f"{path}@{side.session.id}",
        session=side.session.name,
        suite=side.session.suite,
        command=shlex.join(side.session.argv),
        started_utc=side.session.started_utc,
        finished_utc=side.session.finished_utc,
        launches=int(side.cases["n_launches"].sum()),
        good=len(side.good),
    )
