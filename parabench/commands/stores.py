"""Which store and session a command is to read."""

from __future__ import annotations

from pathlib import Path

from parabench.errors import UsageError


def chosen_in(store: str, session: str | None) -> tuple[Path, str | None]:
    """(store, session) of an argument `store` or `store@session`, and of --session.

    Raises UsageError where both name a session.
    """
    from parabench.store.store import split

    path, named = split(store)
    if named is not None and session is not None:
        raise UsageError(f"{store} and --session {session} both name a session; give one of them")
    return path, session if named is None else named
