"""Summarize the step of a session with one configuration, or of a watched loop, in lines of text."""

from __future__ import annotations

import pandas as pd

from parabench.analysis import format
from parabench.analysis.launch_number import STATISTIC, loop_times
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import case_breakdown
from parabench.metrics import STEP_PARTS
from parabench.store.results import records

_PLACES = {
    "data_s": "waiting for data",
    "forward_s": "in forward",
    "backward_s": "in backward",
    "forward_backward_s": "in forward and backward",
    "optimizer_s": "in the optimizer",
    "other_s": "after the optimizer",
}


def lines(seen: SessionData, *, instrumented: bool = True) -> list[str]:
    """Return lines about the parts of a step, communication and peak memory, for a session of one configuration.

    With `instrumented`, communication is read from instrumented steps. With several configurations, the lines are about
    a watched loop only.
    """
    cases, found = seen.cases[seen.cases["step_time_s"].notna()], _loop(seen)
    if len(cases) != 1:
        return found
    case = cases.iloc[0]
    parts = case[list(STEP_PARTS)].dropna().astype(float)
    if not found and parts.sum():
        found = [f"Parts of a step, on its slowest rank: {_shares(parts / parts.sum())}."]
    apart = seen.once(case_breakdown) if instrumented else pd.DataFrame(columns=["case_id"])
    for step in records(apart[apart["case_id"] == case["case_id"]]):
        if step["communication_s"] > 0:
            found.append(
                f"Communication: {format.percent(step['exposed_share'])} of an instrumented step is spent waiting for "
                f"it ({format.milliseconds(step['exposed_s'])} of {format.milliseconds(step['step_s'])}); "
                f"{format.milliseconds(step['overlapped_s'])} more is hidden behind computing."
            )
    if case["peak_memory_bytes"] > 0:
        kind = "resident set" if case["device"] == "cpu" else "allocated memory"
        found.append(f"Highest peak {kind} of a rank: {format.mebibytes(case['peak_memory_bytes'])}.")
    return found


def _shares(parts: pd.Series) -> str:
    """Return 'data 5%, forward 30%' for {part: its share of the step}."""
    return ", ".join(f"{STEP_PARTS[str(part)]} {format.percent(share)}" for part, share in parts.items())


def _loop(seen: SessionData) -> list[str]:
    """Return the lines about the last run of a watched loop; empty if the session has none.

    The three most expensive groups of steps have a line: 'Every 4 steps, one takes 20.1 ms longer after the optimizer
    (10 of 40 steps): 83% of the loop.'
    """
    runs = [(at, loop) for at, loop in enumerate(loop_times(seen.counted["facts"])) if loop]
    if not runs:
        return []
    at, loop = runs[-1]
    launch = seen.counted.iloc[at]
    parts = pd.Series({part: loop.part_s(part) for part in STEP_PARTS if part in loop.seconds}) / loop.step_s
    found = [f"The last of {len(runs)} runs:"] if len(runs) > 1 else []
    if seen.counted["in_turns"].any():  # The verdict of a tuned loop is about bucket caps.
        found.append(f"The loop: {format.milliseconds(loop.step_s)} per step.")
    found += [
        f"Parts of the loop's time, on rank {loop.rank} (mean of {format.count(loop.steps, 'step')} after the first "
        f"{loop.first}): {_shares(parts)}.",
        f"Undisturbed step ({STATISTIC[launch['device']]}): {format.milliseconds(launch['undisturbed_s'])}.",
    ]
    for group in loop.expensive[:3]:
        when = "At irregular intervals" if group["every"] is None else f"Every {group['every']:,} steps"
        found.append(
            f"{when}, one takes {format.milliseconds(group['extra_s'])} longer {_PLACES[group['part']]} "
            f"({group['steps']:,} of {loop.steps:,} steps): {format.percent(group['share'])} of the loop."
        )
    return found
