"""Account for the wall time of a watched loop: the parts of its mean step, and expensive steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parabench.launch.results import Marks
from parabench.metrics import STEP_PARTS
from parabench.watching.loop import BACKWARD, END, FORWARD, LOADED, OPTIMIZER, REQUESTED

Seconds = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

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
# Steps recur if there are at least this number, and this share of the gaps between them differ by TOLERANCE or less.
LEAST_MEMBERS, ALIKE, TOLERANCE = 4, 0.75, 0.1


def loop_time(
    marks: Marks,
    first: int,
    instrumented: Sequence[bool],
    later_waits: Mapping[int, float],
    pauses: Mapping[int, float],
) -> dict[str, Any] | None:
    """Return the total seconds of each part of the steps from `first` on; `None` if no plain step is known.

    A pause between two loops over batches belongs to the step before it. Instrumented steps count without the cost of
    their instruments.

    Args:
        marks: Timestamps in seconds, shape (steps, 6).
        instrumented: Whether each step had instruments.
        later_waits: {step: seconds of waiting} for the second and later batches of a step.
        pauses: {step: seconds} before a step, between two loops over batches.
    """
    waits, paused = np.zeros(len(marks)), np.zeros(len(marks) + 1)
    waits[[*later_waits]], paused[[*pauses]] = [*later_waits.values()], [*pauses.values()]
    known = int(np.isfinite(marks[first:, END]).cumprod().sum())
    counted = slice(first, first + known)
    marks, waits, with_instruments = marks[counted], waits[counted], np.array(instrumented[counted], dtype=bool)
    if with_instruments.all():
        return None
    took = np.diff(marks, axis=1)
    seconds = dict.fromkeys(PARTS, np.zeros(known))
    if waits.any() or np.isnan(marks[:, FORWARD]).any():  # forward and backward alternate
        seconds["forward_backward_s"] = marks[:, BACKWARD] - marks[:, LOADED] - waits
    else:
        seconds["forward_s"], seconds["backward_s"] = took[:, LOADED], took[:, FORWARD]
    seconds["data_s"], seconds["optimizer_s"] = took[:, REQUESTED] + waits, took[:, BACKWARD]
    seconds["other_s"] = took[:, OPTIMIZER]
    seconds["other_s"][:-1] += paused[counted][1:]
    parts = np.column_stack([*seconds.values()])
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


def _grouped(extra: Seconds, usual: float) -> Iterator[tuple[int | None, Steps]]:
    """Yield (period, members) of groups: recurring steps, the longest first, then the others with the period None."""
    left = extra >= max(LEAST_EXTRA * usual, np.finfo(float).tiny)
    # Thresholds fall, so that groups of rare and long steps, such as checkpoints, are found first.
    highest = float(extra.max())
    falls = int(np.ceil(np.log2(highest / extra[left].min()))) if left.any() else -1
    for threshold in highest / 2.0 ** np.arange(1, falls + 2):
        above = np.flatnonzero(left & (extra >= threshold))
        if (every := _period(above, len(extra))) is not None:
            left[above] = False
            yield every, above
    irregular = np.flatnonzero(left & (extra >= LEAST_EXTRA_IRREGULAR * usual))
    if len(irregular):
        yield None, irregular


def _period(at: Steps, steps: int) -> int | None:
    """Return the period of the steps `at` if they recur throughout the loop of `steps` steps, else `None`."""
    if len(at) < LEAST_MEMBERS:
        return None
    gaps = np.diff(at)
    every = int(np.sort(gaps)[(len(gaps) - 1) // 2])
    slack = int(TOLERANCE * every)
    throughout = at[0] <= every + slack and steps - 1 - at[-1] <= every + slack
    alike = float(np.mean(np.abs(gaps - every) <= slack))
    return every if every > 1 and throughout and alike >= ALIKE else None
