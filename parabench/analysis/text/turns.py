"""What launches in which cases took turns say of themselves, in words: interference, and the noise floor."""

from __future__ import annotations

from collections.abc import Mapping

from parabench.analysis.carry_over import CarryOver
from parabench.analysis.noise_floor import NoiseFloor
from parabench.analysis.text import format


def noise_sentence(of: NoiseFloor, labels: Mapping[str, str]) -> str:
    """The noise floor: 'Two copies of X differed by 0.4 % (95 %: ±0.9 %) in 5 shared launches.'"""
    what = labels.get(of.case_id or "", "the same configuration")
    within = "" if of.half_width is None else f" (95 %: {format.within(of.half_width)})"
    launches = format.count(of.launches, "shared launch")
    return f"Two copies of {what} differed by {format.percent(abs(of.difference))}{within} in {launches}."


def found(seen: CarryOver, labels: Mapping[str, str]) -> str:
    """Describe the effect that was found."""
    effect = seen.found
    assert effect is not None
    size, interval = effect.size or 0.0, ""
    if effect.low is not None and effect.high is not None:
        interval = f" (95 %: {format.signed(effect.low)} to {format.signed(effect.high)})"
    slower = f"{format.percent(abs(size))} {'slower' if size > 0 else 'faster'}"
    return (
        "Interference between interleaved configurations: the turn after one of "
        f"{labels.get(effect.case_id, effect.case_id)} is {slower} than after the others{interval}."
    )


def sentence(seen: CarryOver, labels: Mapping[str, str]) -> str:
    """Describe the effect that was found, or how much is ruled out."""
    if seen.found:
        return found(seen, labels)
    of = format.count(seen.launches, "shared launch")
    measured = [each for each in seen.effects if each.case_id in seen.last]
    ends = [abs(end) for each in measured for end in (each.low, each.high) if end is not None]
    among = "" if len(measured) == len(seen.effects) else "among the configurations of the last, "
    depends = f"{among}a turn depends on the configuration before it by less than"
    bound = f": {depends} {format.percent(max(ends))} (95 %)" if ends else ""
    return f"No interference between interleaved configurations was found in {of}{bound}."
