"""The sides of a comparison: sessions of results databases, and their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from parabench.analysis import format
from parabench.analysis.numbers import LAUNCH_NUMBERS
from parabench.analysis.session import SessionData, data_of, select_session, split
from parabench.errors import UsageError
from parabench.store.results import Results, load
from parabench.store.store import STORE_NAME


def read_side(text: str, role: str) -> SessionData:
    """Return the session that `text` names: STORE or STORE@SESSION, by id or label.

    For a folder, read its results.db. Raises UsageError if there is no such session, or if it trained nothing.
    """
    path, session = split(text)
    return side_of(load(path, LAUNCH_NUMBERS), session, role)


def read_sides(base: str, candidate: str) -> tuple[SessionData, SessionData]:
    """Return base and candidate. Raises UsageError, as `read_side` does."""
    first, other = _read([split(base), split(candidate)])
    return replace(first, role="base"), replace(other, role="candidate")


def _read(stores: Sequence[tuple[Path, str | None]]) -> list[SessionData]:
    paths = {path.resolve(): path for path, _ in stores}
    loaded = {resolved: load(path, LAUNCH_NUMBERS) for resolved, path in paths.items()}
    return [side_of(loaded[path.resolve()], session) for path, session in stores]


def side_of(results: Results, session: str | int | None = None, role: str = "base") -> SessionData:
    """Return a session of `results`, the newest by default. Raises UsageError, as `read_side` does."""
    chosen = select_session(results, session)
    chosen.require("training", results.path)
    return data_of(results, chosen, role)


def sides_of(results: Results, sessions: Sequence[int]) -> tuple[SessionData, SessionData]:
    """Return base and candidate, the sessions of `results` with these ids."""
    base, candidate = sessions
    return side_of(results, base, "base"), side_of(results, candidate, "candidate")


def interleaved(base: SessionData, candidate: SessionData) -> bool:
    """Return whether both are sides of one `ab`, so that drift affects both alike."""
    own, other = base.session.interleaved, candidate.session.interleaved
    return bool(own) and own.get("run") == other.get("run") and own.get("side") != other.get("side")


def check_distinct(sides: Sequence[SessionData]) -> None:
    """Raise UsageError if a session is given twice, also as a copy in another results database."""
    seen: set[tuple[str, ...]] = set()
    for side in sides:
        if side.session.identity in seen:
            store = side.results.path
            raise UsageError(f"{side.session.name} of {store} is given twice; name other sessions as {store}@SESSION")
        seen.add(side.session.identity)


def read_several(stores: Sequence[tuple[Path, str | None]]) -> tuple[SessionData, ...]:
    """Return the sessions (None: the newest), each with a unique name as its `role`.

    Raises UsageError for fewer than two sessions, for one session twice, and as `read_side` does.
    """
    if len(stores) < 2:
        raise UsageError("one session has nothing to be compared with; name two or more stores or sessions")
    sides = _read(stores)
    check_distinct(sides)
    names = [_names(side) for side in sides]
    uses = Counter(chain.from_iterable(names))
    roles = (next((name for name in own if uses[name] == 1), own[-1]) for own in names)
    return tuple(replace(side, role=role) for side, role in zip(sides, roles, strict=True))


def _names(side: SessionData) -> list[str]:
    """Return names of a session, the shortest first; a results database is named by its folder or file."""
    path, name = side.results.path, side.session.name
    store = path.resolve().parent.name if path.name == STORE_NAME else path.stem
    return [format.one_line(each) for each in (name, f"{name} of {store}", f"{name} of {side.origin.at}")]
