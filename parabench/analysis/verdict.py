"""What a session says in words, for the terminal: what is fastest, and what ranks hold."""

from __future__ import annotations

from parabench.analysis.best import answers
from parabench.analysis.frames import launch_table
from parabench.analysis.memory import compared, state_table
from parabench.analysis.session import select_session
from parabench.store import Results


def verdict(results: Results, session: str | int | None = None) -> list[str]:
    """The lines of a training session (default: the newest): a sweet spot for each work, and where several strategies
    were measured, which holds least and whether theory says so.

    Where no time is decided the memory stands first: bytes are the same in every launch, and one is enough for them.
    Raises UsageError for no such session.
    """
    launches = launch_table(results, select_session(results, session))
    spots = answers(launches)
    fastest = [answer.sentence() for answer in spots]
    held = compared(state_table(launches, results.sample))
    return fastest + held if any(answer.decided for answer in spots) else held + fastest
