"""Account for the wall time of a watched loop: the parts of its mean step, and expensive steps that recur."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parabench.launch.results import Marks
from parabench.metrics import STEP_PARTS
from parabench.watching.loop import BACKWARD, END, FORWARD, LOADED, OPTIMIZER, REQUESTED

Seconds = npt.NDArray[np.float64]

PARTS = tuple(STEP_PARTS)
# The usual time is this quantile, so that it is correct even if every second step is expensive.
USUAL = 0.25
# The cost of instruments is the difference of this quantile between steps with and without them.
UNDISTURBED = 0.1
# Expensive steps are shown if their extra time is at least this share of the loop.
LEAST_SHARE = 0.05
# The minimum of an expensive step's extra time in usual step times: if it recurs, and if it does not. The second is
# larger, because many steps of a busy machine are somewhat longer.
LEAST_EXTRA, LEAST_EXTRA_IRREGULAR = 0.25, 1.0
# The factor between two thresholds. Thresholds fall, so that groups of rare and long steps are found first.
FALL = 2**0.5
# A group recurs if it has at least this number of members, and this share of the gaps between them differ by TOLERANCE
# or less.
LEAST_MEMBERS, ALIKE, TOLERANCE = 4, 0.75, 0.1


def loop_time(
    marks: Marks,
    first: int,
    instrumented: Sequence[bool],
    later_waits: Mapping[int, float],
    pauses: Mapping[int, float],
) -> dict[str, Any] | None:
    """Return the total seconds of each part of the steps from `first` on; `None` if no plain step is known.

    `marks` are timestamps in seconds, shape (steps, 6). `later_waits` and `pauses` are as in `Loop`.
    """
    # A pause between two loops over batches belongs to the step before it. Instrumented steps count without the cost of
    # their instruments.
    known = int(np.isfinite(marks[first:, END]).cumprod().sum())
    counted = slice(first, first + known)
    waits, paused = (_by_step(each, len(marks) + 1)[counted] for each in (later_waits, pauses))
    parts, with_instruments = _parts(marks[counted], waits, paused), np.array(instrumented[counted], dtype=bool)
    if with_instruments.all():
        return None
    if with_instruments.any():
        slow, plain = (np.quantile(parts[each], UNDISTURBED, axis=0) for each in (with_instruments, ~with_instruments))
        parts[with_instruments] = np.maximum(0.0, parts[with_instruments] - np.maximum(0.0, slow - plain))
    return {
        "first": first,
        "steps": known,
        "instrumented": int(with_instruments.sum()),
        "seconds": {name: float(total) for name, total in zip(PARTS, parts.sum(axis=0), strict=True) if total},
        "expensive": expensive_steps(parts),
    }


def _by_step(seconds: Mapping[int, float], steps: int) -> Seconds:
    found = np.zeros(steps)
    found[[*seconds]] = [*seconds.values()]
    return found


def _parts(marks: Marks, waits: Seconds, paused: Seconds) -> Seconds:
    """Return the seconds of each part of each step, shape (steps, parts)."""
    took = np.diff(marks, axis=1)
    nothing, both = np.zeros(len(marks)), marks[:, BACKWARD] - marks[:, LOADED] - waits
    together = bool(waits.any() or np.isnan(marks[:, FORWARD]).any())
    found = {
        "data_s": took[:, REQUESTED] + waits,
        "forward_s": nothing if together else took[:, LOADED],
        "backward_s": nothing if together else took[:, FORWARD],
        "forward_backward_s": both if together else nothing,
        "optimizer_s": took[:, BACKWARD],
        "other_s": took[:, OPTIMIZER],
    }
    found["other_s"][:-1] += paused[1:]
    return np.column_stack([found[name] for name in PARTS])


def expensive_steps(parts: Seconds) -> list[dict[str, Any]]:
    """Return the groups of steps whose extra time in one part is a relevant share of the loop, largest share first.

    `parts` are seconds, shape (steps, parts). `every` is the period in steps, or `None`.
    """
    total = float(parts.sum())
    usual = float(np.quantile(parts.sum(axis=1), USUAL)) if len(parts) else 0.0
    groups: list[dict[str, Any]] = []
    for name, column in zip(PARTS, parts.T, strict=True) if total else ():
        extra = column - np.quantile(column, USUAL)
        for every, members in _grouped(extra, usual):
            share = float(extra[members].sum()) / total
            extra_s = float(np.mean(extra[members]) if every is None else np.median(extra[members]))
            groups.append({"part": name, "every": every, "steps": len(members), "extra_s": extra_s, "share": share})
    shown = [group for group in groups if group["share"] >= LEAST_SHARE]
    return sorted(shown, key=lambda group: -group["share"])


def _grouped(extra: Seconds, usual: float) -> Iterator[tuple[int | None, npt.NDArray[np.int64]]]:
    """Yield (period, members) of groups: recurring steps, the longest first, then the others with the period None."""
    left = extra >= max(LEAST_EXTRA * usual, np.finfo(float).tiny)
    if not left.any():
        return
    least = float(extra[left].min())
    cut = float(extra.max())
    while left.any():
        cut = max(least, cut / FALL)
        above = np.flatnonzero(left & (extra >= cut))
        every = _period(above, len(extra))
        if every is not None:
            members = _on_grid(np.flatnonzero(left & (extra >= cut / 2)), above, every)
            left[members] = False
            yield every, members
        elif cut == least:
            break
    irregular = np.flatnonzero(left & (extra >= LEAST_EXTRA_IRREGULAR * usual))
    if len(irregular):
        yield None, irregular


def _period(at: npt.NDArray[np.int64], steps: int) -> int | None:
    """Return the period of the steps `at` if they recur throughout the loop of `steps` steps, else `None`."""
    if len(at) < LEAST_MEMBERS:
        return None
    gaps = np.diff(at)
    every = int(np.sort(gaps)[(len(gaps) - 1) // 2])
    slack = int(TOLERANCE * every)
    throughout = at[0] <= every + slack and steps - 1 - at[-1] <= every + slack
    alike = float(np.mean(np.abs(gaps - every) <= slack))
    return every if every > 1 and throughout and alike >= ALIKE else None


def _on_grid(candidates: npt.NDArray[np.int64], core: npt.NDArray[np.int64], every: int) -> npt.NDArray[np.int64]:
    """Return the candidates at a distance of whole periods from a neighbor in `core`."""
    slack = int(TOLERANCE * every)
    fits = np.zeros(len(candidates), dtype=bool)
    for neighbor in (np.searchsorted(core, candidates) - 1, np.searchsorted(core, candidates, side="right")):
        there = (neighbor >= 0) & (neighbor < len(core))
        distance = np.abs(core[np.clip(neighbor, 0, len(core) - 1)] - candidates)
        periods = np.round(distance / every)
        fits |= there & (periods >= 1) & (np.abs(distance - periods * every) <= slack)
    return candidates[fits]
