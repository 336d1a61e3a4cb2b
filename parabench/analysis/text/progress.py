"""What a session says in words, for the terminal: what is fastest, and what ranks hold."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pandas as pd

from parabench.analysis.environment.nodes import cluster_options
from parabench.analysis.memory import compared, state_table
from parabench.analysis.ranking.answer import Answer
from parabench.analysis.ranking.ranking import answers
from parabench.analysis.ranking.stopping import candidates_of_spots
from parabench.analysis.session import Session, select_session
from parabench.analysis.stats.block_model import MOST_BLOCKS
from parabench.analysis.tables import launch_table
from parabench.analysis.text.links import with_links
from parabench.store.record import FIRST_BLOCK, SHARED_PROCESSES
from parabench.store.results import Results
from parabench.store.store import STORE_NAME

# What is proposed where deciding looks hopeless and fewer candidates would help.
NARROWING_MIN = 30


def verdict(results: Results, session: str | int | None = None) -> list[str]:
    """The lines of a training session (default: the newest): a sweet spot for each work, what bucket curves say, where
    several strategies were measured which holds least and whether theory says so, and the command that would settle
    what is open.

    Where no time is decided the memory stands first: bytes are the same in every launch, and one is enough for them.
    Raises UsageError for no such session.
    """
    chosen = select_session(results, session)
    launches = launch_table(results, chosen)
    spots = with_links(answers(launches), results, chosen, launches)
    fastest = [line for answer in spots for line in (answer.sentence(), *answer.notes())]
    held = compared(state_table(launches, results.whole))
    said = fastest + held if any(answer.decided for answer in spots) else held + fastest
    return said + settling(results, chosen, launches, spots)


def settling(results: Results, session: Session, launches: pd.DataFrame, spots: Sequence[Answer]) -> list[str]:
    """`next_command` in a line, where there is one."""
    return [f"{aim}: {line}" for aim, line in next_command(results, session, launches, spots)]


def next_command(
    results: Results, session: Session, launches: pd.DataFrame, spots: Sequence[Answer]
) -> list[tuple[str, str]]:
    """What it is for, and the command that launches what is still open until it is decided; none where it would do
    nothing. Where that would take more than MOST_BLOCKS blocks, it has a budget, and promises less.

    Only the newest session of a store can be resumed.
    """
    newest = session.id == int(results.session["id"].max())
    if session.interleaved or not newest or results.path.name != STORE_NAME:
        return []
    told = results.finding[results.finding["session_id"] == session.id]
    if SHARED_PROCESSES in set(told["code"]):  # it ran inside a group of processes that somebody else starts
        return []
    left = candidates_of_spots(spots, launches)
    if not left.cases:
        return []
    begun = launches.loc[launches["block"] >= FIRST_BLOCK, "block"].nunique()
    far = left.more_blocks is not None and begun + left.more_blocks > MOST_BLOCKS
    budget = ["--budget", f"{NARROWING_MIN:g}"] if far else []
    command = ["parabench", "run", "--resume", "--until-decided", *budget, "--out", str(results.path.parent)]
    command += cluster_options(session.environment)
    return [(f"To {'narrow it down' if far else 'settle it'}", shlex.join(command))]
