"""How small a slowdown `ab` shows here, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from parabench.analysis.compare.between import FEWEST_SESSIONS
from parabench.analysis.compare.sensitivity import INTERVAL, RIGHT_WITHIN, Needs, Seen, Sensitivity
from parabench.analysis.stats.contrasts import MOST_LAUNCHES, POWER
from parabench.analysis.text import format

# Of the JSON: higher where a field went or means something else.
SCHEMA = 1
# Of which the first sentence speaks.
SHORT, LONG, TOLERANCE = 3.0, 12.0, 0.02


def lines(of: Sensitivity) -> Iterator[str]:
    """The answer in a sentence, what it rests on, and the table of it; of a pilot that is too short what it lacks."""
    if not of.seen:
        yield too_short(of)
        if of.sd is not None:
            yield _rests_on(of)
        if of.baseline is not None:
            yield baseline_sentence(of)
        return
    yield sentence(of)
    yield _rests_on(of)
    yield from table(of)
    yield (
        f"sees: the smallest slowdown of a typical case that is called a regression in {format.percent(POWER)} of runs "
        "(with a tolerance of half of it); passes: the smallest tolerance with which equal sides pass as often."
    )
    if any(each.launches and not each.sure for each in of.seen):
        yield (
            f"?: the interval of such a run may be off by more than a factor of {RIGHT_WITHIN:g}; of more cases or "
            "launches it varies less."
        )
    yield baseline_sentence(of)


def baseline_sentence(of: Sensitivity) -> str:
    """What a gate against a stored session passes, and what that rests on."""
    gate = of.baseline
    if gate is None:
        return (
            "All this is of sides that take turns. Against a stored baseline sessions differ by themselves: --baseline "
            "STORE tells what its sessions allow."
        )
    if gate.measured == gate.cases:
        rests = f"its {format.count(gate.sessions, 'session')} tell how sessions differ"
    else:
        rests = (
            f"of {format.count(gate.sessions, 'session')}, where {FEWEST_SESSIONS} or more would tell how they differ, "
            f"so {format.percent(gate.allowance)} is assumed in {gate.cases - gate.measured} of {gate.cases} cases"
        )
    return (
        f"Against the baseline {gate.session} a gate passes with a tolerance of {format.percent(gate.tolerance)} "
        f"({format.count(gate.launches, 'launch')} a side), and with any number of launches not below "
        f"{format.percent(gate.least)}: {rests}."
    )


def to_dict(of: Sensitivity) -> dict[str, Any]:
    """As JSON can hold it (docs/reference/json.md): unknown is null."""
    return {"schema": SCHEMA, "sentence": sentence(of) if of.seen else too_short(of), **asdict(of)}


def sentence(of: Sensitivity) -> str:
    """'Here `ab` of quick sees 2.1 % in 3 minutes, 1.0 % in 12; its gate needs 4 minutes for 2 %.'"""
    by_minutes = {each.minutes: each for each in of.seen}
    told = [each for each in (by_minutes.get(SHORT), by_minutes.get(LONG)) if each is not None and each.change]
    sees = ", ".join(
        f"{format.percent(each.change)} in {each.minutes:g}{' minutes' if not at else ''}"
        for at, each in enumerate(told)
    )
    least = f"Here `ab` of {of.suite} sees {sees}" if told else f"Here {LONG:g} minutes are too short for an `ab`"
    gate = next(each for each in of.needs if each.change == TOLERANCE)
    name = format.percent(gate.change)
    needs = (
        f"its gate needs {_minutes(gate.gate_minutes)} for {name}"
        if gate.gate_minutes is not None
        else f"no gate of up to {MOST_LAUNCHES} launches passes {name}"
    )
    return f"{least}; {needs}."


def too_short(of: Sensitivity) -> str:
    """What a pilot lacks."""
    if not of.cases:
        return "The pilot tells nothing: no case succeeded on both sides; look at the report of a `parabench run`."
    least = "at least " if of.pairs < of.pairs_needed / 2 else ""  # it hardly tells whether cases vary together
    needs = f"an answer that is right within a factor of {RIGHT_WITHIN:g} needs {least}{of.pairs_needed}"
    more = "" if of.minutes_needed is None else f": give --minutes {_rounded_up(of.minutes_needed)}"
    return f"The pilot is too short to say: it has {format.count(of.pairs, 'pair')} of launches, and {needs}{more}."


def _rests_on(of: Sensitivity) -> str:
    rounds = f" of {format.count(of.rounds, 'round')}" if of.rounds else ""
    said = (
        f"{format.count(of.pairs, 'pair')} of launches{rounds}, {format.count(of.cases, 'case')}: of a typical one "
        f"pairs of equal sides differ by {format.percent(of.sd)} (standard deviation; {format.percent(INTERVAL)}: "
        f"{_between(of.sd_low, of.sd_high)})"
    )
    if of.cases > 1:
        said += f", of {of.noisiest} by {format.percent(of.noisiest_sd)}"
    took = f"a pair took {format.duration(of.pair_s or 0.0)}, all before the first {format.duration(of.first_s or 0.0)}"
    left = f"; left out: {format.listed(of.left_out, most=3)}" if of.left_out else ""
    return f"{said}; {took}{left}."


def table(of: Sensitivity) -> list[str]:
    """What is seen by time, and the time by what is to be seen."""
    by_time = [("minutes", "--launches", "sees", "interval", "passes"), *(_seen(each) for each in of.seen)]
    by_change = [("change", "to see it", "--launches", "to pass with it", "--launches"), *map(_needs, of.needs)]
    return [*format.aligned(by_time, texts=0), *format.aligned(by_change, texts=0)]


def _seen(each: Seen) -> tuple[str, ...]:
    if each.launches is None:
        return (f"{each.minutes:g}", "too short", "", "", "")
    sees = f"{format.percent(each.change)} ({_between(each.low, each.high)})"
    interval = format.within(each.half_width or 0.0) + ("" if each.sure else "?")
    return f"{each.minutes:g}", str(each.launches), sees, interval, format.percent(each.tolerance)


def _needs(each: Needs) -> tuple[str, ...]:
    beyond = f">{MOST_LAUNCHES}"
    sees = "" if each.minutes is None else _minutes(each.minutes)
    if each.minutes is not None and each.low_minutes is not None and each.high_minutes is not None:
        sees += f" ({_rounded_up(each.low_minutes)} to {_rounded_up(each.high_minutes)})"
    return (
        format.percent(each.change),
        sees,
        beyond if each.launches is None else str(each.launches),
        "" if each.gate_minutes is None else _minutes(each.gate_minutes),
        beyond if each.gate_launches is None else str(each.gate_launches),
    )


def _between(low: float | None, high: float | None) -> str:
    """'1.8 to 2.5 %'."""
    return f"{format.percent(low).removesuffix(' %')} to {format.percent(high)}"


def _minutes(minutes: float | None) -> str:
    """'1 minute', '4 minutes'."""
    return format.count(_rounded_up(minutes or 0.0), "minute")


def _rounded_up(minutes: float) -> int:
    """Whole minutes in which it fits."""
    return max(1, math.ceil(minutes - 1e-9))
