"""Where the time of one configuration's step goes, for sessions in which there is nothing to compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parabench.analysis.session import SessionData
from parabench.analysis.text import format
from parabench.store.columns import records
from parabench.store.metrics import STEP_PARTS


def lines(seen: SessionData, *, instrumented: bool = True) -> list[str]:
    """Of a session of one configuration that counts: the parts of its step, what of it communication takes, where its
    `instrumented` steps were read, and the peak of its memory; [] of several."""
    case = _only(seen)
    if case is None:
        return []
    return [*_parts(case), *(_communication(seen, case) if instrumented else ()), *_memory(case)]


def _only(seen: SessionData) -> Mapping[str, Any] | None:
    """The one configuration that has a step time; None where there are several, or none."""
    names = ("case_id", "device", "step_time_s", "peak_memory_bytes", *STEP_PARTS)
    measured = [case for case in records(seen.case_columns, names) if format.known(case["step_time_s"])]
    return measured[0] if len(measured) == 1 else None


def _parts(case: Mapping[str, Any]) -> list[str]:
    seconds = {name: case[part] for part, name in STEP_PARTS.items() if format.known(case[part])}
    whole = sum(seconds.values())
    if not whole:
        return []
    said = [f"{word} {format.percent(value / whole)}" for word, value in seconds.items()]
    return [f"Where a step goes, on its slowest rank: {', '.join(said)}."]


def _communication(seen: SessionData, case: Mapping[str, Any]) -> list[str]:
    from parabench.analysis.step.breakdown import taken_apart  # with pandas, which `best` does without

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
