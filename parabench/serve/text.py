"""How far a session is, in words."""

from __future__ import annotations

from parabench.analysis.text import format
from parabench.store.record import UNCOUNTED, Status

# More of an error than this is in the page's own list.
MOST_OF_AN_ERROR = 100


def progress_words(
    done: int, planned: int, failed: int, left_s: float | None, finished: bool, stalled_s: float | None
) -> str:
    """How many launches are done of how many, what is left, and what went wrong. `stalled_s` is since when nothing
    came, where something must have; else None."""
    said = f"{done:,} of {format.count(planned, 'launch')}"
    if finished:
        said = f"Finished: {said}"
    elif stalled_s is not None:
        said += f"; no launch has ended for {format.duration(stalled_s)}, so the run seems to have stopped"
    elif left_s is not None and done < planned:
        said += f", about {format.duration(left_s, 1)} left"
    return f"{said}. {format.count(failed, 'launch')} failed." if failed else f"{said}."


def last_words(label: str, block: int, status: str, error: str | None, wall_s: float | None) -> str:
    """The launch that ended last: what it was, and how it ended."""
    name = format.one_line(label)
    what = f"{UNCOUNTED[block]}, {name}" if block in UNCOUNTED else f"{name}, block {block + 1}"
    if status == Status.OK:
        return f"{what}: ok" if wall_s is None else f"{what}: ok after {format.duration(wall_s)}"
    why = format.one_line(error or "")
    short = why if len(why) <= MOST_OF_AN_ERROR else f"{why[:MOST_OF_AN_ERROR].rstrip()} …"
    return f"{what}: {status}" + (f", {short}" if short else "")
