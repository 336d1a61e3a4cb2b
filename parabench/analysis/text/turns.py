"""What launches in which cases took turns say of themselves, in words: what turns carry over, and the noise floor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from parabench.analysis.carry_over import CarryOver, Effect
from parabench.analysis.noise_floor import NoiseFloor
from parabench.analysis.text import format

# Of each test what was found, of a case and of all together.
_SAID = {
    "after": "the turn after one of {case} is {slower} than after the others",
    "first": "{case}: the first step of a turn that counts is {slower} than the later ones",
    "long": "{case}: in turns {long} times as long a step is {slower}, against the others, than in short ones",
    "alone": "{case}: in a launch of its own a step is {slower}, against the others, than in shared launches",
}
_OF_ALL = "the first step of a turn that counts is {slower} than the later ones"


def noise_sentence(of: NoiseFloor, labels: Mapping[str, str]) -> str:
    """The noise floor: 'Two copies of X differed by 0.4 % (95 %: ±0.9 %) in 5 shared launches.'"""
    what = labels.get(of.case_id or "", "the same configuration")
    within = "" if of.half_width is None else f" (95 %: {format.within(of.half_width)})"
    launches = format.count(of.launches, "shared launch")
    return f"Two copies of {what} differed by {format.percent(abs(of.difference))}{within} in {launches}."


def found(seen: CarryOver, labels: Mapping[str, str]) -> Iterator[tuple[str | None, str]]:
    """(case id, sentence) of each carry-over that was found; None for all cases."""
    for test, effect in seen.found.items():
        case = labels.get(effect.case_id or "", "")
        text = (_SAID[test] if case else _OF_ALL).format(case=case, slower=_slower(effect), long=seen.long)
        said = f"Carry-over between turns: {text}{_interval(effect)}."
        yield effect.case_id, said


def sentence(seen: CarryOver, labels: Mapping[str, str], isolated: bool = False) -> str:
    """The largest effect that was found, and whether cases were `isolated` for it; where none was, how much is ruled
    out."""
    if seen.found:
        effects = zip(seen.found.values(), found(seen, labels), strict=True)
        said = max(effects, key=lambda each: abs(each[0].size or 0.0))[1][1]
        return f"{said} So the answer comes from launches of their own." if isolated else said
    of = format.count(seen.launches, "shared launch")
    measured = [each for each in seen.tests["after"] if each.case_id in seen.last]
    ends = [abs(end) for each in measured for end in (each.low, each.high) if end is not None]
    among = "" if len(measured) == len(seen.tests["after"]) else "among the cases of the last, "
    depends = f"{among}a turn depends on the case before it by less than"
    bound = f": {depends} {format.percent(max(ends))} (95 %)" if ends else ""
    return f"No carry-over between turns was found in {of}{bound}."


def _slower(effect: Effect) -> str:
    size = effect.size or 0.0
    return f"{format.percent(abs(size))} {'slower' if size > 0 else 'faster'}"


def _interval(effect: Effect) -> str:
    if effect.low is None or effect.high is None:
        return ""
    return f" (95 %: {format.signed(effect.low)} to {format.signed(effect.high)})"
