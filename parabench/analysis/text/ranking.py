"""A sweet spot as a person would say it, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from parabench.analysis.ranking.answer import Answer, Candidate, Measured
from parabench.analysis.ranking.baseline import NoCommBaseline
from parabench.analysis.ranking.bucket_curves import Curve, CurveShape
from parabench.analysis.ranking.objectives import OBJECTIVES, STEP, Objective
from parabench.analysis.ranking.race import Look, exits
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.block_model import MOST_BLOCKS, SHARP_ENOUGH
from parabench.analysis.text import format

# More names than this in one sentence are not read.
MOST_NAMES = 3


def to_dict(answer: Answer) -> dict[str, Any]:
    """As JSON can hold it: unknown is null (docs/reference/json.md)."""
    winner = None if answer.winner is None else answer.winner.case_id
    return asdict(answer) | {"winner": winner, "sentence": sentence(answer), "notes": notes(answer)}


def sentence(answer: Answer) -> str:
    """The answer, after its heading where it has one."""
    said = " ".join(sentences(answer))
    return f"{answer.heading}: {said}" if answer.heading else said


def lines(answer: Answer) -> list[str]:
    """The same as lines of text."""
    first, *rest = sentences(answer)
    return format.in_lines((f"{answer.heading}: {first}" if answer.heading else first, *rest))


def sentences(answer: Answer) -> list[str]:
    """Return the answer without its heading, sentence by sentence: the fastest, the certainty, what else to know."""
    objective = OBJECTIVES[answer.objective]
    if answer.best is None:
        return [each for each in (answer.why_not, not_compared(answer), *_warnings(answer)) if each]
    number = _number(answer.best, objective)
    if not answer.decided:
        why = answer.why_not or ""
        measured = f"Measured: {answer.best.label}: {number}."
        said = [why, _nominally(answer, number)] if answer.tied else [measured, why]
    else:
        said = [*_place(answer, objective, number), _default(answer, objective)]
    said += [
        _order(answer),
        not_compared(answer),
        _other_training(answer),
        _no_comm_baseline(answer.no_comm_baseline) if answer.no_comm_baseline else "",
        *_warnings(answer),
    ]
    return [each for each in said if each]


def notes(answer: Answer) -> list[str]:
    """What the bucket curves say, where the answer itself is not about the bucket size alone; then what links do."""
    links = [*_race(answer.race), *([answer.links] if answer.links else [])]
    if answer.differing == ("bucket_mib",) and not answer.slower:
        return links
    return _curves(answer.curves, answer.blocks, OBJECTIVES[answer.objective].of) + links


def not_compared(answer: Answer) -> str:
    """Return the configurations that are not compared, with their numbers; empty if there are none."""
    if not answer.not_compared:
        return ""
    objective = OBJECTIVES[answer.objective]
    measured = format.listed(
        (f"{each.label}: {said_value(each, objective)} ({each.status})" for each in answer.not_compared), MOST_NAMES
    )
    if answer.best is None:
        return f"Measured: {measured}."
    return f"Not compared, because no launch or repetition that counts connects them with these: {measured}."


def _order(answer: Answer) -> str:
    """Explain that the order of the ratios is not that of the means; empty if both are the same.

    The sentence names the first configuration that has a higher mean than one behind it, and of these the lowest.
    """
    objective = OBJECTIVES[answer.objective]
    order = sorted(answer.candidates, key=lambda each: each.slower)
    costs = [objective.value(each.value) for each in order]  # its own inverse
    for at, cost in enumerate(costs):
        lowest = min(range(at, len(costs)), key=costs.__getitem__)
        if costs[lowest] < cost * (1 - format.EXACT):
            ahead, behind = order[at], order[lowest]
            more = (1 + behind.slower) / (1 + ahead.slower) - 1
            means = " against ".join(objective.say(each.value, each.unit) for each in (behind, ahead))
            return (
                f"In common launches and repetitions {behind.label} {objective.worse(more)} than {ahead.label}, "
                f"although its mean is better ({means}). The two means are not of the same repetitions."
            )
    return ""


def _race(looks: Sequence[Look]) -> list[str]:
    """When configurations left the race, the first by what bound: 'Left the race: 11 configurations after block 3, 24 %
    or more behind; 2 more by block 7.'"""
    of_block: dict[int, list[float]] = {}
    for look, each in exits(looks).values():
        of_block.setdefault(look.block + 1, []).append(each.at_least)
    if not of_block:
        return []
    first, *later = sorted(of_block)
    left = format.count(len(of_block[first]), "configuration")
    said = f"Left the race: {left} after block {first}, {format.percent(min(of_block[first]))} or more behind"
    more = sum(len(of_block[block]) for block in later)
    return [f"{said}; {more} more by block {later[-1]}." if later else f"{said}."]


def said_value(candidate: Measured, objective: Objective) -> str:
    """Its number for the objective, with its ±: '41.2 ms per step (±0.4 ms)'."""
    number = objective.say(candidate.value, candidate.unit)
    if candidate.plus_minus is None:
        return number
    if candidate.plus_minus <= format.EXACT * candidate.value and objective.name == "memory":
        return f"{number} (identical in every launch)"
    return f"{number} ({format.plus_minus(objective.margin(candidate.plus_minus, candidate.value))})"


def _number(best: Candidate, objective: Objective) -> str:
    beside = f"{best.unit}/s unknown"
    if best.tokens_per_s is not None:
        beside = format.throughput(best.tokens_per_s, best.unit)
    if objective is not STEP:
        beside = f"{format.milliseconds(best.step_time_s)} per step"
    return f"{said_value(best, objective)}, {beside}"


def _place(answer: Answer, objective: Objective, number: str) -> list[str]:
    assert answer.best is not None
    more = _more_blocks(answer)
    basis = _basis(answer)
    everything = format.count(len(answer.tied) + 1, "configuration")
    if answer.tied and not answer.slower and (answer.differing == ("bucket_mib",) or not answer.too_wide):
        return _all_alike(answer, objective, number, everything)
    if answer.too_wide:
        names = format.listed((each.name for each in answer.members), MOST_NAMES)
        lowest = _nominally(answer, number)
        if answer.half_width is None or not answer.slower:
            return [f"No clear winner among {everything} ({basis}): {names}.", lowest, _sentence(more)]
        following, near = answer.slower[0], len(answer.tied) + 1
        return [
            f"{objective.first}: one of {near} of {near + len(answer.slower)} configurations ({basis}): {names}.",
            f"The next, {following.label}, {objective.worse(following.slower)}.",
            _apart(answer),
            lowest,
            _sentence(more),
        ]
    of = f" of the {format.count(len(answer.candidates), 'configuration')} compared" if answer.not_compared else ""
    said = [f"{objective.first}{of}: {answer.members[0].name}: {number}."]
    if answer.tied:
        others = [each.name for each in answer.members[1:] if each.name not in answer.apart]
        alike = f"These bucket sizes are not statistically distinguishable ({basis})."
        if others:
            alike = f"Not statistically distinguishable from it ({basis}): {format.listed(others, MOST_NAMES)}."
        elif len(answer.tied) == len(answer.apart):
            alike = ""
        said += [alike, _apart(answer), _sentence(more)]
    elif len(answer.slower) == 1:
        said.append(f"{answer.slower[0].label} {objective.worse(answer.slower[0].slower)} ({_blocks(answer)}).")
    else:
        rest = format.count(len(answer.slower), "other configuration")
        following = answer.slower[0]
        said.append(
            f"It is {objective.ahead} the {rest} ({_blocks(answer)}); "
            f"the next, {following.label}, {objective.worse(following.slower)}."
        )
    return said


def _apart(answer: Answer) -> str:
    """Which of the tied shared no launch with the best, and how little that tells of them."""
    if not answer.apart:
        return ""
    names, one = format.listed(answer.apart, MOST_NAMES), len(answer.apart) == 1
    known = "" if answer.apart_half_width is None else f" within {format.within(answer.apart_half_width)} only"
    has = "has launches of its own, and is" if one else "have launches of their own, and are"
    return f"{names} {has} compared with it{known}: {'it' if one else 'they'} may be as fast."


def _all_alike(answer: Answer, objective: Objective, number: str, everything: str) -> list[str]:
    """That nothing differs significantly from the best, of `everything`: a result where the blocks were enough, else
    the lack of one."""
    assert answer.best is not None
    blocks, basis = format.count(answer.blocks, "block"), _basis(answer)
    found = f"No significant difference between the {everything} ({basis})"
    if answer.differing == ("bucket_mib",):
        found = f"{blocks} are too few to resolve an effect of the bucket size{objective.of} ({everything}; {basis})"
        if answer.more_blocks is None:
            found = f"The bucket size makes no significant difference{objective.of} ({everything}; {basis})"
        if answer.too_wide:
            found = f"No clear winner among {everything} ({basis})"
    spread = max(candidate.slower for candidate in answer.tied)
    behind = f": the last {objective.worse(spread)} than the first" if spread > format.EXACT else ""
    return [f"{found}{behind}.", _nominally(answer, number), _sentence(_more_blocks(answer))]


def _basis(answer: Answer) -> str:
    """What a tie rests on: '95 %, 3 blocks, ±2.1 %'."""
    return _blocks(answer) + ("" if answer.half_width is None else f", {format.within(answer.half_width)}")


def _blocks(answer: Answer) -> str:
    """'95 %, 3 blocks'."""
    return f"{format.percent(CONFIDENCE)}, {format.count(answer.blocks, 'block')}"


def _sentence(said: str) -> str:
    return f"{said[0].upper()}{said[1:]}." if said else ""


def _nominally(answer: Answer, number: str) -> str:
    assert answer.best is not None
    return f"{nominal(answer)}: {answer.best.label}: {number}."


def nominal(answer: Answer) -> str:
    """Return how the best is called if nothing proves that it is."""
    objective = OBJECTIVES[answer.objective]
    costs = [objective.value(each.value) for each in answer.candidates]
    return "Lowest mean" if costs[0] <= min(costs) * (1 + format.EXACT) else "First in common launches"


def _more_blocks(answer: Answer) -> str:
    """How many more blocks would resolve it; nothing where the set is sharp enough."""
    if answer.more_blocks is None:
        return ""
    resolving = f"resolving {100 * SHARP_ENOUGH:g} %"
    if answer.blocks + answer.more_blocks > MOST_BLOCKS:
        return f"{resolving} would take more than {MOST_BLOCKS} blocks: too noisy"
    takes = ""
    if len(answer.race) > 1:
        before, now = answer.race[-2:]
        takes = f" ({format.duration(answer.more_blocks * (now.seconds - before.seconds))})"
    return f"{resolving} needs about {format.count(answer.more_blocks, 'more block')}{takes}"


def _default(answer: Answer, objective: Objective) -> str:
    if answer.default is None or answer.best is None:
        return ""
    if answer.default.case_id == answer.best.case_id:
        return f"{answer.best.label} is PyTorch's default."
    if answer.default.case_id in {candidate.case_id for candidate in answer.tied}:
        return f"PyTorch's default ({answer.default.label}) is one of these." if answer.slower else ""
    return f"PyTorch's default (ddp native, default bucket, same world size) {objective.worse(answer.default.slower)}."


def _other_training(answer: Answer) -> str:
    assert answer.best is not None
    others = [each for each in (answer.best, *answer.tied) if each.other_training]
    said = [
        f"{each.label} is not equivalent to single-device training: its gradients are stale ({_staleness(each)})."
        for each in others
    ]
    if len(others) > 1:
        several = format.listed((f"{each.label} ({_staleness(each)})" for each in others), MOST_NAMES)
        said = [f"Not equivalent to single-device training (stale gradients): {several}."]
    if answer.same_training is not None:
        same, step_time = answer.same_training.label, format.milliseconds(answer.same_training.step_time_s)
        said.append(f"The fastest that is equivalent to single-device training: {same}: {step_time} per step.")
    return " ".join(said)


def _staleness(candidate: Candidate) -> str:
    if candidate.staleness_mean is None or candidate.staleness_max is None:
        return "by how many updates is unknown"
    return format.staleness(candidate.staleness_mean, candidate.staleness_max)


def _no_comm_baseline(of: NoCommBaseline) -> str:
    step = f"Without communication ({of.strategy}) a step takes {format.milliseconds(of.step_time_s)}"
    if of.share is None:
        return f"{step}; no launch or repetition that counts connects it with the fastest."
    if of.share <= 0:
        return f"{step}, not less than the fastest's."
    between = ""
    if of.low is not None and of.high is not None:
        between = f" (95 %: {format.percent(max(0.0, of.low))} to {format.percent(of.high)})"
    share = format.percent(of.share)
    if of.bound:
        return f"{step}: communication costs at most {share} of the fastest's{between}."
    return f"{step}, {share} less than the fastest's{between}."


def _warnings(answer: Answer) -> list[str]:
    said = []
    if answer.unverified:
        labels = format.listed(answer.unverified, MOST_NAMES)
        said.append(f"Not verified against training on one device: {labels}.")
    if answer.unknown:
        labels = format.listed(answer.unknown, MOST_NAMES)
        said.append(f"Not ranked (no measurement): {labels}.")
    return said


def _curves(curves: Iterable[Curve], blocks: int, of: str) -> list[str]:
    """What flat and unclear curves say; several of the same sizes in one sentence."""
    said = []
    drawn = [curve for curve in curves if curve.half_width is not None]
    for shape in (CurveShape.FLAT, CurveShape.UNCLEAR):
        alike: dict[tuple[float | None, ...], list[Curve]] = {}
        for curve in drawn:
            if curve.shape is shape:
                alike.setdefault(curve.sizes, []).append(curve)
        for sizes, group in alike.items():
            names = format.listed((curve.name for curve in group), MOST_NAMES)
            within = format.within(max(curve.half_width or 0.0 for curve in group))
            count = format.count(blocks, "block")
            if shape is CurveShape.UNCLEAR:
                verb = "is" if blocks == 1 else "are"
                said.append(f"{names}: {count} {verb} too few to resolve an effect of the bucket size{of} ({within}).")
                continue
            at_most = max(curve.at_most or 0.0 for curve in group)
            behind = f"; no size is more than {format.percent(at_most)} behind" if at_most > format.EXACT else ""
            said.append(
                f"{names}: the bucket size makes no significant difference{of} {_span(sizes)} "
                f"({count}, {within}{behind})."
            )
    return said


def _span(sizes: Sequence[float | None]) -> str:
    numbers = [size for size in sizes if size is not None]
    default = " and at PyTorch's default" if None in sizes else ""
    return f"from {numbers[0]:g} to {numbers[-1]:g} MiB{default}"
