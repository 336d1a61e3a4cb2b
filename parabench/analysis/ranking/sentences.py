"""Write the sentences about a workload from the rows of its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parabench.analysis import format
from parabench.analysis.answer import Row
from parabench.analysis.ranking import too_wide
from parabench.analysis.ranking.objectives import OBJECTIVES, STEP, Objective
from parabench.analysis.ranking.race import Rows, exits
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.contrasts import MOST_REPETITIONS, SHARP_ENOUGH

# A sentence has no more names than this.
MOST_NAMES = 3


def sentences(rows: Rows) -> list[str]:
    """Return the sentences about a workload: the best configuration, how certain that is, and remarks."""
    workload, objective = rows["workloads"][0], OBJECTIVES[rows["workloads"][0]["objective"]]
    found = [
        *_answer(rows, workload, objective),
        *_remarks(rows, workload, objective),
        *_curves(rows["curves"], workload["repetitions"], "" if objective is STEP else f" to {objective.head}"),
        workload["links"],
    ]
    if left := list(exits(rows).values()):
        last, least = max(row["repetition"] + 1 for row in left), min(row["at_least"] for row in left)
        some = format.count(len(left), "configuration")
        found.insert(-1, f"Eliminated: {some} by repetition {last}, {format.percent(least)} or more slower.")
    return [each for each in found if each]


def headed(rows: Rows) -> list[str]:
    """Return `sentences`. If there are several workloads, the first sentence starts with the name of this one."""
    first, *rest = sentences(rows)
    heading = rows["workloads"][0]["workload"]
    return [f"{heading}: {first}" if heading else first, *rest]


def number(row: Row, objective: Objective) -> str:
    """Return the number of a candidate with its half-width as text: '41.2 ms per step (±0.4 ms)'."""
    text, margin = objective.say(row["value"], row["unit"]), row["plus_minus"]
    if margin is None:
        return text
    if margin <= format.EXACT * row["value"] and objective.name == "memory":
        return f"{text} (identical in every launch)"
    return f"{text} ({format.plus_minus(objective.margin(margin, row['value']))})"


def placed(rows: Rows, *places: str) -> list[Row]:
    """Return the rows of `candidates` at these places (`best`, `tied`, ...), the best first."""
    return [row for row in rows["candidates"] if row["place"] in places]


def _answer(rows: Rows, workload: Row, objective: Objective) -> Iterator[str]:
    """Yield sentences about the best configurations and PyTorch's default, or the reason for a missing answer."""
    if workload["best"] is None:
        yield workload["why_not"]
        return
    (best,) = placed(rows, "best")
    if not workload["decided"]:
        alone = not placed(rows, "tied")
        measured = f"{'Measured' if alone else 'Best estimate'}: {best['label']}: {_with_rate(best, objective)}."
        yield from (measured, workload["why_not"]) if alone else (workload["why_not"], measured)
        return
    yield from _set(rows, workload, best, objective)
    for default in (row for row in rows["candidates"] if row["case_id"] == workload["default"]):
        if default is best:
            yield f"{best['label']} is PyTorch's default."
        elif default["place"] == "tied":
            yield f"PyTorch's default ({default['label']}) is among these."
        else:
            usual = "ddp native, default bucket, same world size"
            yield f"PyTorch's default ({usual}) {objective.worse(default['slower'])}."


def _set(rows: Rows, workload: Row, best: Row, objective: Objective) -> Iterator[str]:
    """Yield sentences about the best configuration, or the set of the best, and how certain that is."""
    tied, slower, apart = placed(rows, "tied"), placed(rows, "slower"), workload["apart"]
    everything = format.count(1 + len(tied) + len(slower), "configuration")
    names = [row["name"] for row in rows["members"]]
    basis = f"{format.percent(CONFIDENCE)}, {format.count(workload['repetitions'], 'repetition')}"
    if tied and workload["half_width"] is not None:
        basis += f", {format.within(workload['half_width'])}"
    following, worse = (slower[0]["label"], objective.worse(slower[0]["slower"])) if slower else ("", "")
    open_set = bool(tied) and (not slower or too_wide(workload))
    if open_set and slower:
        chosen = f"{objective.first}: one of {1 + len(tied)} out of {everything}"
        yield f"{chosen} ({basis}): {format.listed(names, MOST_NAMES)}."
        yield f"The next, {following}, {worse}."
    elif open_set:
        yield f"No clear winner among {everything} ({basis}): {format.listed(names, MOST_NAMES)}."
    else:
        yield f"{objective.first}: {names[0]}: {_with_rate(best, objective)}."
        if others := [name for name in names[1:] if name not in apart]:
            yield f"Not statistically distinguishable from it ({basis}): {format.listed(others, MOST_NAMES)}."
        elif len(tied) > len(apart):
            yield f"These bucket sizes are not statistically distinguishable ({basis})."
        elif len(slower) == 1 and not tied:
            yield f"{following} {worse} ({basis})."
        elif slower and not tied:
            rest = format.count(len(slower), "other configuration")
            yield f"It is {objective.ahead} the {rest} ({basis}); the next, {following}, {worse}."
    if apart:  # they shared no launch with the best, so little is known about them
        width = workload["apart_half_width"]
        known = "" if width is None else f", within {format.within(width)}"
        yield f"Compared in separate launches{known}, so possibly as fast: {format.listed(apart, MOST_NAMES)}."
    if open_set:
        yield f"Best estimate: {best['label']}: {_with_rate(best, objective)}."
    yield _more_repetitions(rows, workload)


def _with_rate(best: Row, objective: Objective) -> str:
    """Return the number of the best with its throughput; if another objective was ranked, with its step time."""
    beside = f"{format.milliseconds(best['step_time_s'])} per step"
    if objective is STEP:
        rate = best["tokens_per_s"]
        beside = f"{best['unit']}/s unknown" if rate is None else format.throughput(rate, best["unit"])
    return f"{number(best, objective)}, {beside}"


def _more_repetitions(rows: Rows, workload: Row) -> str:
    """Return a sentence about the repetitions that would resolve SHARP_ENOUGH; empty if no more are needed."""
    more = workload["more_repetitions"]
    if more is None:
        return ""
    resolving = f"Resolving {100 * SHARP_ENOUGH:g}%"
    if workload["repetitions"] + more > MOST_REPETITIONS:
        return f"{resolving} would take more than {MOST_REPETITIONS} repetitions: too noisy."
    takes = ""
    if len(rows["race"]) > 1:
        before, now = rows["race"][-2:]
        takes = f" ({format.duration(more * (now['seconds'] - before['seconds']))})"
    return f"{resolving} needs about {format.count(more, 'more repetition')}{takes}."


def _remarks(rows: Rows, workload: Row, objective: Objective) -> Iterator[str]:
    """Yield sentences about configurations without a ratio, with stale gradients, without a check, and baselines."""
    if apart := placed(rows, "not_compared"):
        numbers = (f"{row['label']}: {number(row, objective)} ({row['status']})" for row in apart)
        why = "Not compared, because no launch or repetition that counts connects them with these"
        yield f"{why if workload['best'] else 'Measured'}: {format.listed(numbers, MOST_NAMES)}."
    if stale := [row for row in placed(rows, "best", "tied") if row["other_training"]]:
        texts = format.listed((f"{row['label']} ({staleness(row)})" for row in stale), MOST_NAMES)
        yield f"Not equivalent to single-device training (stale gradients): {texts}."
    for row in rows["candidates"]:
        if row["case_id"] == workload["same_training"]:
            step = format.milliseconds(row["step_time_s"])
            yield f"The fastest that is equivalent to single-device training: {row['label']}: {step} per step."
    for row in rows["no_comm_baselines"]:
        step = f"Without communication ({row['strategy']}) a step takes {format.milliseconds(row['step_time_s'])}"
        if row["share"] is None:
            yield f"{step}; no launch or repetition that counts connects it with the fastest."
            continue
        share, low, high = (format.percent(max(0.0, row[name] or 0.0)) for name in ("share", "low", "high"))
        interval = "" if row["low"] is None else f" (95%: {low} to {high})"
        yield f"{step}, {share} less than the fastest's{interval}."
    if workload["unverified"]:
        yield f"Not verified against training on one device: {format.listed(workload['unverified'], MOST_NAMES)}."
    if workload["unknown"]:
        yield f"Not ranked (no measurement): {format.listed(workload['unknown'], MOST_NAMES)}."


def staleness(row: Row) -> str:
    """Return the delay of a configuration's gradients in words: '1.5 updates on average, 4 at most'."""
    mean, most = row["staleness_mean"], row["staleness_max"]
    known = format.known(mean) and format.known(most)
    return format.staleness(mean, most) if known else "by how many updates is unknown"


def _curves(curves: Sequence[Row], repetitions: int, objective: str) -> list[str]:
    """Return a sentence about flat curves and one about unclear curves; `objective` is text such as ' to memory'."""
    texts = {
        "flat": "{names}: the bucket size makes no significant difference{objective} ({evidence}).",
        "unclear": "{names}: too few repetitions to resolve an effect of the bucket size{objective} ({evidence}).",
    }
    found = []
    for shape, text in texts.items():
        own = [curve for curve in curves if curve["shape"] == shape and curve["half_width"] is not None]
        if own:
            half_width, at_most = (max(each[name] for each in own) for name in ("half_width", "at_most"))
            evidence = f"{format.count(repetitions, 'repetition')}, {format.within(half_width)}"
            if shape == "flat" and at_most > format.EXACT:
                evidence += f"; no size is more than {format.percent(at_most)} behind"
            names = format.listed((each["name"] for each in own), most=3)
            found.append(text.format(names=names, objective=objective, evidence=evidence))
    return found
