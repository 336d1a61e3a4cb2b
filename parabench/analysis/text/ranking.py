"""How a sweet spot is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parabench.analysis.ranking.bucket_curves import curve_sentences
from parabench.analysis.ranking.objectives import OBJECTIVES, STEP, Objective
from parabench.analysis.stats.block_model import MOST_BLOCKS, SHARP_ENOUGH
from parabench.analysis.text import format

if TYPE_CHECKING:
    from parabench.analysis.ranking.answer import Answer, Candidate

# More names than this in one sentence are not read.
MOST_NAMES = 3


def plain_sentence(answer: Answer) -> str:
    """The answer without its heading."""
    return " ".join(sentences(answer))


def sentences(answer: Answer) -> list[str]:
    """The same, sentence by sentence: what is fastest, how sure that is, then what else one should know."""
    if answer.best is None:
        return [answer.why_not or ""]
    objective = OBJECTIVES[answer.objective]
    number = _number(answer.best, objective)
    if not answer.decided:
        said = [
            answer.why_not or "",
            _nominally(answer.best.label, number) if answer.tied else f"Measured: {answer.best.label}: {number}.",
        ]
    else:
        said = [*_place(answer, objective, number), _default(answer, objective)]
    said += [
        _other_training(answer),
        answer.no_comm_baseline.sentence() if answer.no_comm_baseline else "",
        *_doubts(answer),
    ]
    return [sentence for sentence in said if sentence]


def notes(answer: Answer) -> list[str]:
    """What the bucket curves say, where the answer itself is not about the bucket size alone; then what links do."""
    links = [answer.links] if answer.links else []
    if answer.differing == ("bucket_mib",) and not answer.slower:
        return links
    return curve_sentences(answer.curves, answer.blocks, OBJECTIVES[answer.objective].of) + links


def said_value(candidate: Candidate, objective: Objective) -> str:
    """Its number for the objective, with its ±: '41.2 ms a step (±0.4 ms)'."""
    number = objective.say(candidate.value, candidate.unit)
    if candidate.plus_minus is None:
        return number
    if candidate.plus_minus <= format.EXACT * candidate.value and objective.name == "memory":
        return f"{number} (the same in every launch)"
    return f"{number} ({format.plus_minus(objective.margin(candidate.plus_minus, candidate.value))})"


def _number(best: Candidate, objective: Objective) -> str:
    beside = format.throughput(best.tokens_per_s, best.unit)
    if objective is not STEP:
        beside = f"{format.milliseconds(best.step_time_s)} a step"
    return f"{said_value(best, objective)}, {beside}"


def _place(answer: Answer, objective: Objective, number: str) -> list[str]:
    blocks, more = format.count(answer.blocks, "block"), _more_blocks(answer)
    within = "" if answer.half_width is None else f" ({format.within(answer.half_width)})"
    everything = format.count(len(answer.tied) + 1, "configuration")
    if answer.tied and not answer.slower and (answer.differing == ("bucket_mib",) or not answer.too_wide):
        return _all_alike(answer, objective, number, everything)
    if answer.too_wide:
        names = format.listed((each.name for each in answer.members), MOST_NAMES)
        return [
            f"No clear winner among {everything} with {blocks}{within}: {names}.",
            _nominally(answer.members[0].name, number),
            _sentence(more),
        ]
    said = [f"{objective.first}: {answer.members[0].name}: {number}."]
    if answer.tied:
        others = [each.name for each in answer.members[1:]]
        named = (
            f"{format.listed(others, MOST_NAMES)} cannot be told apart from it"
            if others
            else "These bucket sizes cannot be told apart"
        )
        said.append(f"{named} with {blocks}{within}{f'; {more}' if more else ''}.")
    elif len(answer.slower) == 1:
        said.append(f"{answer.slower[0].label} {objective.worse(answer.slower[0].slower)} ({blocks}).")
    else:
        rest = format.count(len(answer.slower), "other configuration")
        following = answer.slower[0]
        said.append(
            f"It is {objective.ahead} the {rest} with {blocks}; "
            f"the next, {following.label}, {objective.worse(following.slower)}."
        )
    return said


def _all_alike(answer: Answer, objective: Objective, number: str, everything: str) -> list[str]:
    """That nothing could be told apart from the best, of `everything`: a finding where the blocks were enough, else the
    lack of one."""
    assert answer.best is not None
    blocks = format.count(answer.blocks, "block")
    within = "unknown how close" if answer.half_width is None else format.within(answer.half_width)
    found = f"No difference was found between the {everything} with {blocks} ({within})"
    if answer.differing == ("bucket_mib",):
        found = f"{blocks} are too few to say whether the bucket size matters{objective.of} ({everything}, {within})"
        if answer.more_blocks is None:
            found = (
                f"The bucket size makes no difference{objective.of} that {blocks} could show ({everything}, {within})"
            )
        if answer.too_wide:
            few = f"{blocks} are too few to say whether the bucket size matters{objective.of} ({within})"
            found = f"No clear winner among {everything}: {few}"
    spread = max(candidate.slower for candidate in answer.tied)
    behind = f": the last is {format.percent(spread)} behind the first" if spread > format.EXACT else ""
    return [f"{found}{behind}.", _nominally(answer.best.label, number), _sentence(_more_blocks(answer))]


def _sentence(said: str) -> str:
    return f"{said[0].upper()}{said[1:]}." if said else ""


def _nominally(name: str, number: str) -> str:
    return f"Nominally first: {name}: {number}."


def _more_blocks(answer: Answer) -> str:
    """How many more blocks would tell; nothing where the set is sharp enough."""
    if answer.more_blocks is None:
        return ""
    difference = f"a difference of {100 * SHARP_ENOUGH:g} %"
    if answer.blocks + answer.more_blocks > MOST_BLOCKS:
        return f"more than {MOST_BLOCKS} blocks would be needed to tell {difference}: too noisy"
    return f"about {format.count(answer.more_blocks, 'more block')} would tell {difference}"


def _default(answer: Answer, objective: Objective) -> str:
    if answer.default is None or answer.best is None:
        return ""
    if answer.default.case_id == answer.best.case_id:
        return "It is PyTorch's default."
    if answer.default.case_id in {candidate.case_id for candidate in answer.tied}:
        return f"PyTorch's default ({answer.default.label}) is among those." if answer.slower else ""
    return f"PyTorch's default (ddp native, default bucket, same world size) {objective.worse(answer.default.slower)}."


def _other_training(answer: Answer) -> str:
    assert answer.best is not None
    others = [each for each in (answer.best, *answer.tied) if each.other_training]
    said = [
        f"{each.label} is another training than one device's: its gradients are stale ({each.stale()})."
        for each in others
    ]
    if len(others) > 1:
        several = format.listed((f"{each.label} ({each.stale()})" for each in others), MOST_NAMES)
        said = [f"Other trainings than one device's, with stale gradients: {several}."]
    if answer.same_training is not None:
        latency = format.milliseconds(answer.same_training.step_time_s)
        said.append(f"The fastest that trains as one device does: {answer.same_training.label}: {latency} a step.")
    return " ".join(said)


def _doubts(answer: Answer) -> list[str]:
    said = []
    if answer.unverified:
        labels = format.listed(answer.unverified, MOST_NAMES)
        said.append(f"Not verified, because the run on one device failed: {labels}.")
    if answer.unknown:
        labels = format.listed(answer.unknown, MOST_NAMES)
        said.append(f"Without a number, and so not ranked: {labels}.")
    return said
