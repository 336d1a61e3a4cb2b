"""The sides of a comparison: which session of which store, and how each is called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from parabench.analysis import format
from parabench.analysis.numbers import LAUNCH_NUMBERS
from parabench.analysis.session import SessionData, data_of, select_session, split
from parabench.errors import UsageError
from parabench.store.results import Results, load
from parabench.store.store import STORE_NAME

# A label longer than this would push the numbers out of its sentence, card or column; the table of where they are from
# has all of it.
LONGEST_LABEL = 40


def read_side(text: str, role: str, loaded: dict[Path, Results] | None = None) -> SessionData:
    """The side that `text` names: a store, or `store@session`, by id or label; a folder stands for its results.db.
    Stores that are `loaded` are not read again.

    Raises UsageError when there is no such store or session, or it trained nothing.
    """
    path, session = split(text)
    return side_of(_load(path, {} if loaded is None else loaded), session, role)


def read_sides(base: str, candidate: str) -> tuple[SessionData, SessionData]:
    """Both sides, base and candidate; a store that both are in is read once."""
    loaded: dict[Path, Results] = {}
    return read_side(base, "base", loaded), read_side(candidate, "candidate", loaded)


def _load(path: Path, loaded: dict[Path, Results]) -> Results:
    if path.resolve() not in loaded:
        loaded[path.resolve()] = load(path, LAUNCH_NUMBERS)
    return loaded[path.resolve()]


def side_of(results: Results, session: str | int | None = None, role: str = "base") -> SessionData:
    """A session (default: the newest) of results that are loaded. Raises UsageError, as `read_side` does."""
    chosen = select_session(results, session)
    chosen.require("training", results.path)
    return data_of(results, chosen, role)


def sides_of(results: Results, sessions: Sequence[int]) -> tuple[SessionData, SessionData]:
    """Base and candidate, the sessions with these ids of results that are loaded. Raises UsageError, as `side_of`."""
    base, candidate = sessions
    return side_of(results, base, "base"), side_of(results, candidate, "candidate")


def interleaved(base: SessionData, candidate: SessionData) -> bool:
    """Whether both took turns in one run, so that what drifted, drifted for both."""
    own, other = base.session.interleaved, candidate.session.interleaved
    return bool(own) and own.get("run") == other.get("run") and own.get("side") != other.get("side")


def check_two(base: SessionData, candidate: SessionData) -> None:
    """Raise UsageError when both sides are one session, be it in a store and a copy of it."""
    if base.session.identity == candidate.session.identity:
        store = base.results.path
        raise UsageError(f"both sides are {base.session.name} of {store}; name two sessions as {store}@SESSION")


def _label(side: SessionData) -> str:
    label = format.one_line(side.session.name)
    return label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL - 1].rstrip()}…"


# From the shortest name to one that no other session has.
_NAMES: tuple[Callable[[SessionData], str], ...] = (
    _label,
    lambda side: f"{_label(side)} of {_store(side.results.path)}",
    lambda side: f"{_label(side)} of {side.results.path}",
    lambda side: f"{_label(side)} of {side.results.path}@{side.session.id}",
)


def read_several(stores: Sequence[tuple[Path, str | None]]) -> tuple[SessionData, ...]:
    """The sessions (None: a store's newest) of the stores, the `role` of each its name among them, which no other has.

    Raises UsageError for fewer than two, for one session twice, for no such store or session, and where one measured
    something else than training.
    """
    if len(stores) < 2:
        raise UsageError("one session has nothing to be compared with; name two or more stores or sessions")
    loaded: dict[Path, Results] = {}
    chosen = [(_load(path, loaded), session) for path, session in stores]
    kinds = {select_session(results, session).kind for results, session in chosen}
    if len(kinds) > 1:
        raise UsageError(
            f"some of these sessions measured {' and some '.join(sorted(kinds))}, which have nothing in common; "
            "compare those of one kind"
        )
    return named([side_of(results, session) for results, session in chosen])


def named(sides: Sequence[SessionData]) -> tuple[SessionData, ...]:
    """The sides, each called by its session, with as much of its store as sets it apart. Raises UsageError for one
    session twice."""
    places: dict[tuple[str, ...], list[int]] = {}
    for at, side in enumerate(sides, 1):
        places.setdefault(side.session.identity, []).append(at)
    for same in places.values():
        if len(same) > 1 and len(sides) == 2:
            check_two(*sides)
        elif len(same) > 1:
            side = sides[same[0] - 1]
            raise UsageError(
                f"arguments {format.joined(map(str, same))} are one session, {side.session.name} of "
                f"{side.results.path}; name each once, as STORE@SESSION"
            )
    roles = [""] * len(sides)
    for name in _NAMES:
        names = [format.one_line(name(side)) for side in sides]
        counts = Counter(names)
        roles = [role or (own if counts[own] == 1 else "") for role, own in zip(roles, names, strict=True)]
    # What a terminal must not be sent is all the same character, so that even paths may read alike.
    roles = [role or f"side {at + 1}" for at, role in enumerate(roles)]
    return tuple(replace(side, role=role) for side, role in zip(sides, roles, strict=True))


def _store(path: Path) -> str:
    """What a person would call a store: the folder of a run, or its file."""
    return path.resolve().parent.name if path.name == STORE_NAME else path.stem
