"""Where the time of one configuration's step goes, for sessions in which there is nothing to compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parabench.analysis import format
from parabench.analysis.launch_number import STATISTIC
from parabench.analysis.loop_time import Expensive, LoopTime, loop_times
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import taken_apart
from parabench.metrics import STEP_PARTS
from parabench.store.results import records

# Groups of expensive steps that are shown.
MOST_GROUPS = 3

PLACES = {
    "data_s": "waiting for data",
    "forward_s": "in forward",
    "backward_s": "in backward",
    "forward_backward_s": "in forward and backward",
    "optimizer_s": "in the optimizer",
    "other_s": "after the optimizer",
}


def lines(seen: SessionData, *, instrumented: bool = True) -> list[str]:
    """Return where the time goes in a session of one configuration: the parts of its step, its communication if the
    `instrumented` steps are read, and its peak memory. With several configurations, only a watched loop, whose caps
    raced, has such lines."""
    case, loop = _only(seen), _loop(seen)
    if case is None:
        return loop
    return [*(loop or _parts(case)), *(_communication(seen, case) if instrumented else ()), *_memory(case)]


def _only(seen: SessionData) -> Mapping[str, Any] | None:
    """The one configuration that has a step time; None where there are several, or none."""
    names = ("case_id", "device", "step_time_s", "peak_memory_bytes", *STEP_PARTS)
    measured = [case for case in records(seen.cases, names) if format.known(case["step_time_s"])]
    return measured[0] if len(measured) == 1 else None


def _parts(case: Mapping[str, Any]) -> list[str]:
    seconds = {name: case[part] for part, name in STEP_PARTS.items() if format.known(case[part])}
    whole = sum(seconds.values())
    if not whole:
        return []
    said = [f"{word} {format.percent(value / whole)}" for word, value in seconds.items()]
    return [f"Where a step goes, on its slowest rank: {', '.join(said)}."]


def _loop(seen: SessionData) -> list[str]:
    """Return the lines for the last run of a watched loop in the session; none if there is no such run."""
    valid = seen.numbers[seen.numbers["counted"]]
    loops = [each for each in enumerate(loop_times(valid["facts"])) if each[1] is not None]
    if not loops:
        return []
    at, loop = loops[-1]
    assert loop is not None
    undisturbed_s, device = float(valid["undisturbed_s"].iloc[at]), str(valid["device"].iloc[at])
    return [
        *[f"The last of {len(loops)} runs:"] * (len(loops) > 1),
        # The verdict above is about bucket caps, which were compared in turns.
        *[f"The loop: {format.milliseconds(loop.step_s)} per step."] * bool(valid["in_turns"].any()),
        _loop_parts(loop),
        f"Undisturbed step ({STATISTIC[device]}): {format.milliseconds(undisturbed_s)}.",
        *(_group(each, loop.steps) for each in loop.expensive[:MOST_GROUPS]),
    ]


def _loop_parts(loop: LoopTime) -> str:
    known = ((name, loop.part_s(part)) for part, name in STEP_PARTS.items() if part in loop.seconds)
    parts = (f"{name} {format.percent(seconds / loop.step_s)}" for name, seconds in known)
    over = f"{format.count(loop.steps, 'step')} after the first {loop.first}"
    return f"Where the loop's time goes, on rank {loop.rank} (mean of {over}): {', '.join(parts)}."


def _group(group: Expensive, steps: int) -> str:
    """Return 'Every 4 steps, one takes 20.1 ms longer after the optimizer (10 of 40 steps): 83% of the loop.'"""
    when = "At irregular intervals" if group.every is None else f"Every {group.every:,} steps"
    extra, share = format.milliseconds(group.extra_s), format.percent(group.share)
    some = f"{group.steps:,} of {steps:,} steps"
    return f"{when}, one takes {extra} longer {PLACES[group.part]} ({some}): {share} of the loop."


def _communication(seen: SessionData, case: Mapping[str, Any]) -> list[str]:
    apart = seen.once(taken_apart)
    own = apart[apart["case_id"] == case["case_id"]].to_dict("records")
    if not own or not own[0]["communication_s"] > 0:
        return []
    of = own[0]
    return [
        f"Communication: {format.percent(of['exposed_share'])} of an instrumented step is spent waiting for it "
        f"({format.milliseconds(of['exposed_s'])} of {format.milliseconds(of['step_s'])}); "
        f"{format.milliseconds(of['overlapped_s'])} more is hidden behind computing."
    ]


def _memory(case: Mapping[str, Any]) -> list[str]:
    peak = case["peak_memory_bytes"]
    if not peak > 0:
        return []
    what = "resident set" if case["device"] == "cpu" else "allocated memory"
    return [f"Peak {what} of the rank that holds most: {format.mebibytes(peak)}."]
