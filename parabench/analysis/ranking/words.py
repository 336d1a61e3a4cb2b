"""The ranking in words and as an answer: the output of `best`, and the last lines of a run."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from parabench.analysis import format
from parabench.analysis.answer import Answer, columns, keyed, tables
from parabench.analysis.carry_over import carry_over
from parabench.analysis.carry_over import sentence as carried_over
from parabench.analysis.environment.nodes import cluster_options
from parabench.analysis.memory import case_states, compared
from parabench.analysis.numbers import work_text
from parabench.analysis.ranking.bucket_curves import Curve, Members, curve_notes
from parabench.analysis.ranking.objectives import OBJECTIVES, STEP, Objective
from parabench.analysis.ranking.pareto import ParetoPoint, front_table
from parabench.analysis.ranking.race import Exit, Look, race_note, undecided
from parabench.analysis.ranking.ranking import Candidate, NoCommBaseline, Place, Ranking, spots
from parabench.analysis.scaling import scaling_lines
from parabench.analysis.session import SessionData
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.contrasts import MOST_BLOCKS, SHARP_ENOUGH
from parabench.analysis.step import summary
from parabench.analysis.turns import noise_floor
from parabench.analysis.warnings.codes import all_findings
from parabench.store.record import MEASURED_ON_CPU, WATCHED, Finding
from parabench.store.store import STORE_NAME

# A sentence has no more names than this.
MOST_NAMES = 3
# The budget of the proposed command if deciding looks hopeless and fewer candidates would help.
NARROWING_MIN = 30
# Columns of workloads that are the id of a single configuration.
_CASES = ("best", "winner", "default", "same_training")
# The tables of the answer. A text is the difference of a workload from the others.
TABLES = {
    "workloads": columns(Ranking, "heading", workload=str, work=str, **dict.fromkeys(_CASES, str | None)),
    "candidates": columns(Candidate, workload=str),
    "members": columns(Members, workload=str),
    "curves": columns(Curve, workload=str),
    "front": columns(ParetoPoint, workload=str),
    "by": columns(Place, workload=str),
    "no_comm_baselines": columns(NoCommBaseline, workload=str),
    "race": columns(Look, workload=str),
    "eliminated": columns(Exit, workload=str, block=int),
}


def answer(
    seen: SessionData, rankings: Sequence[Ranking], computed: Sequence[Finding] = (), *, instrumented: bool = False
) -> Answer:
    """Return the answer of `best`: the sentences, the tables of all workloads, and the stored and `computed` warnings.

    For step times, the sentences include scaling, model states, and the command that would settle open comparisons.
    `instrumented`: also read instrumented steps, for the communication of a single configuration.
    """
    rows: dict[str, list[Any]] = {name: [] for name in TABLES}
    for each in rankings:
        of = {"workload": each.heading}
        ids = {name: found and found.case_id for name in _CASES for found in [getattr(each, name)]}
        rows["workloads"].append((each, of | ids | {"work": work_text(each.work)}))
        rows["candidates"] += keyed((*each.candidates, *each.not_compared), **of)
        for name in ("members", "curves", "front", "by", "race"):
            rows[name] += keyed(getattr(each, name), **of)
        rows["no_comm_baselines"] += keyed(filter(None, [each.no_comm_baseline]), **of)
        for look in each.race:
            rows["eliminated"] += keyed(look.left, block=look.block, **of)
    sentences = tuple(_of_session(seen, rankings, instrumented))
    return Answer(sentences, tables(TABLES, rows), warnings=tuple(all_findings(seen.results, seen.session, computed)))


def _of_session(seen: SessionData, rankings: Sequence[Ranking], instrumented: bool) -> Iterator[str]:
    """Yield all sentences. If nothing is decided, memory comes first, because it is the same in every launch."""
    of_steps = all(OBJECTIVES[each.objective] is STEP for each in rankings)
    decided = any(each.decided for each in rankings)
    memory = compared(seen.once(case_states)) if of_steps else []
    if not decided:
        yield from memory
    for each in rankings:
        yield from headed(each)
        yield from notes(each)
    yield from of_turns(seen, small=False)
    if of_steps:
        yield from summary.lines(seen, instrumented=instrumented)
        yield from scaling_lines(seen)
    if decided:
        yield from memory
    for basis in dict.fromkeys(each.basis for each in rankings if each.best is not None):
        yield f"One number per launch: {basis}. All ± and comparisons are at 95%."
    if of_steps:
        yield from (f"{purpose}: {command}" for purpose, command in next_command(seen, rankings))


def closing_lines(seen: SessionData) -> list[str]:
    """Return the last lines of a run: the sentences of its answer."""
    return _text(answer(seen, seen.once(spots), instrumented=True))


def _text(of: Answer) -> list[str]:
    """Return the sentences as lines, after the warning that a machine with GPUs was measured on its CPU."""
    on_cpu = [each.message for each in of.warnings if each.code == MEASURED_ON_CPU]
    return [*on_cpu, *format.in_lines(of.sentences)]


def lines(of: Answer) -> list[str]:
    """Return an answer for the terminal: the sentences, then the code of the best and the tables of each workload."""
    parts = [_text(of)]
    works: list[Any] = list(of.tables["workloads"].itertuples())
    for work in works:
        name = f" ({work.workload})" if work.workload else ""
        candidates, places, front = (_rows(of, table, work.workload) for table in ("candidates", "by", "front"))
        best = next((each for each in candidates if each.case_id == work.best), None)
        if work.decided and best is not None:
            title = [f"{best.label}{name}:"] if name else []
            parts.append([*title, *textwrap.indent(best.code, "    ").splitlines()])
        if places:
            title = [f"By {', '.join(places[0].axes)}{name}:"] if name else []
            parts.append([*title, *_by_table(work, candidates, places)])
        if len(front) > 1:
            parts.append([f"Pareto-optimal in step time and peak memory{name}:", *front_table(front)])
    return [line for part in parts for line in (*part, "")][:-1]


def _rows(of: Answer, table: str, workload: str) -> list[Any]:
    """Return the rows of one workload, with the cells as attributes."""
    rows = of.tables[table]
    return list(rows[rows["workload"] == workload].itertuples())


def _by_table(work: Any, candidates: Sequence[Any], places: Sequence[Any]) -> list[str]:
    """Return the best for each value of the axes as lines of text."""
    objective, axes = OBJECTIVES[work.objective], places[0].axes
    of_case = {each.case_id: each for each in candidates}
    rows = [[*axes, "best configuration", objective.head, "slower", "distinguishable", "configurations"]]
    for place in places:
        if place.case_id is None:
            rows.append([*place.names, f"none ({place.status})", "–", "–", "–", "0"])
            continue
        own, first = of_case[place.case_id], place.case_id == work.best
        unknown = "unknown" if not first else "best" if work.winner == work.best else "–"
        apart = {True: "yes", False: "no", None: unknown}[place.distinguishable]
        behind = "–" if first else format.percent(own.slower)
        rows.append([*place.names, own.label, number(own, objective), behind, apart, str(place.configurations)])
    return format.aligned(rows, texts=len(axes) + 1)


def next_command(seen: SessionData, answers: Sequence[Ranking], where: str | None = None) -> list[tuple[str, str]]:
    """Return the purpose and the command that launches what is still open until it is decided; none if there is none.

    If that would take more than MOST_BLOCKS repetitions, it has a budget. Only the newest session of a database can be
    resumed. `where` replaces the database's folder in output for others.
    """
    results, session = seen.results, seen.session
    newest = session.id == results.listed["id"].max()
    watched = (results.finding["code"] == WATCHED).any()
    if session.interleaved or watched or not newest or results.path.name != STORE_NAME:
        return []
    still = [each for each in answers if each.open]
    left = undecided(seen.numbers, session.raced)
    if not still or not (left.cases or left.too_noisy):
        return []
    blocks = [each.blocks + each.more_blocks for each in still if each.more_blocks is not None]
    far = left.too_noisy or max(blocks, default=0) > MOST_BLOCKS
    budget = ["--budget", f"{NARROWING_MIN:g}"] if far else []
    command = ["parabench", "run", "--resume", "--until-decided", *budget, "--out", where or str(results.path.parent)]
    command += cluster_options(session.environment)
    return [(f"To {'narrow it down' if far else 'settle it'}", shlex.join(command))]


def of_turns(seen: SessionData, *, small: bool = True) -> list[str]:
    """Return the noise floor and the interference of shared launches, a line each; `small` interference if asked."""
    tested = seen.once(carry_over)
    shown = [carried_over(tested, seen.labels)] if tested and (small or tested.matters) else []
    return [*seen.once(noise_floor), *shown]


def sentence(answer: Ranking) -> str:
    """Return the answer after its heading, if it has one."""
    return " ".join(headed(answer))


def headed(answer: Ranking) -> list[str]:
    """Return `sentences`, the first after the answer's heading, if it has one."""
    first, *rest = sentences(answer)
    return [f"{answer.heading}: {first}" if answer.heading else first, *rest]


def sentences(answer: Ranking) -> list[str]:
    """Return the answer without its heading: the fastest, the certainty, the rest."""
    return [each for each in _sentences(answer, OBJECTIVES[answer.objective]) if each]


def _sentences(answer: Ranking, objective: Objective) -> Iterator[str]:
    best, default, same = answer.best, answer.default, answer.same_training
    if best is None:
        yield answer.why_not or ""
    elif answer.decided:
        yield from _set(answer, best, objective)
        if default is not None and default is best:
            yield f"{best.label} is PyTorch's default."
        elif default is not None and default.place == "tied":
            yield f"PyTorch's default ({default.label}) is among these."
        elif default is not None:
            usual = "ddp native, default bucket, same world size"
            yield f"PyTorch's default ({usual}) {objective.worse(default.slower)}."
    elif answer.tied:
        yield answer.why_not or ""
        yield _nominally(answer, best, objective)
    else:
        yield f"Measured: {best.label}: {_with_rate(best, objective)}."
        yield answer.why_not or ""
    if best is not None:
        yield _order(answer, best, objective)
    yield not_compared(answer)
    if stale := [each for each in (best, *answer.tied) if each and each.other_training]:
        texts = format.listed((f"{each.label} ({_staleness(each)})" for each in stale), MOST_NAMES)
        yield f"Not equivalent to single-device training (stale gradients): {texts}."
    if same is not None:
        step_time = format.milliseconds(same.step_time_s)
        yield f"The fastest that is equivalent to single-device training: {same.label}: {step_time} per step."
    if answer.no_comm_baseline is not None:
        yield _no_comm_baseline(answer.no_comm_baseline)
    if answer.unverified:
        yield f"Not verified against training on one device: {format.listed(answer.unverified, MOST_NAMES)}."
    if answer.unknown:
        yield f"Not ranked (no measurement): {format.listed(answer.unknown, MOST_NAMES)}."


def notes(answer: Ranking) -> list[str]:
    """Return the sentences about bucket curves, racing, and links."""
    objective = OBJECTIVES[answer.objective]
    curves = curve_notes(answer.curves, answer.blocks, "" if objective is STEP else f" to {objective.head}")
    return [*curves, *race_note(answer.race), *([answer.links] if answer.links else [])]


def not_compared(answer: Ranking) -> str:
    """Return the configurations that are not compared, with their numbers; empty if there are none."""
    if not answer.not_compared:
        return ""
    objective = OBJECTIVES[answer.objective]
    measured = format.listed(
        (f"{each.label}: {number(each, objective)} ({each.status})" for each in answer.not_compared), MOST_NAMES
    )
    if answer.best is None:
        return f"Measured: {measured}."
    return f"Not compared, because no launch or repetition that counts connects them with these: {measured}."


def number(of: Any, objective: Objective) -> str:
    """Return the number of a candidate with its ±: '41.2 ms per step (±0.4 ms)'."""
    text = objective.say(of.value, of.unit)
    if not format.known(of.plus_minus):
        return text
    if of.plus_minus <= format.EXACT * of.value and objective.name == "memory":
        return f"{text} (identical in every launch)"
    return f"{text} ({format.plus_minus(objective.margin(of.plus_minus, of.value))})"


def nominal(answer: Ranking) -> str:
    """Return the name of the best if it is not proven to be the best."""
    return "Lowest mean" if _lowest(answer) is answer.best else "First in common launches"


def _lowest(answer: Ranking) -> Candidate | None:
    """Return the configuration with the best mean; at a tie, the best."""
    first, choose = answer.best, max if OBJECTIVES[answer.objective].inverse else min
    lowest = choose(answer.candidates, key=lambda each: each.value, default=None)
    tie = first is None or lowest is None or math.isclose(lowest.value, first.value, rel_tol=format.EXACT)
    return first if tie else lowest


def _order(answer: Ranking, best: Candidate, objective: Objective) -> str:
    """Explain that the best does not have the lowest mean; empty if it has."""
    lowest = _lowest(answer)
    if lowest is None or lowest is best:
        return ""
    means = " against ".join(objective.say(each.value, each.unit) for each in (lowest, best))
    return (
        f"In common launches and repetitions {lowest.label} {objective.worse(lowest.slower)} than {best.label}, "
        f"although its mean is better ({means}). The two means are not of the same repetitions."
    )


def _set(answer: Ranking, best: Candidate, objective: Objective) -> Iterator[str]:
    """Yield the best, or the set of the best, and how certain that is."""
    everything, following = format.count(len(answer.candidates), "configuration"), next(iter(answer.slower), None)
    names, tied, slower = [each.name for each in answer.members], len(answer.tied), len(answer.slower)
    worse = objective.worse(following.slower) if following else ""
    basis = f"{format.percent(CONFIDENCE)}, {format.count(answer.blocks, 'block')}"
    if tied and answer.half_width is not None:
        basis += f", {format.within(answer.half_width)}"
    open_set = answer.too_wide or (tied and not following)
    if open_set:
        listed = format.listed(names, MOST_NAMES)
        if following:
            yield f"{objective.first}: one of {tied + 1} of {everything} ({basis}): {listed}."
            yield f"The next, {following.label}, {worse}."
        else:
            yield f"No clear winner among {everything} ({basis}): {listed}."
    else:
        yield f"{objective.first}: {names[0]}: {_with_rate(best, objective)}."
        if others := [name for name in names[1:] if name not in answer.apart]:
            yield f"Not statistically distinguishable from it ({basis}): {format.listed(others, MOST_NAMES)}."
        elif tied > len(answer.apart):
            yield f"These bucket sizes are not statistically distinguishable ({basis})."
        elif not tied and following and slower == 1:
            yield f"{following.label} {worse} ({basis})."
        elif not tied and following:
            rest = format.count(slower, "other configuration")
            yield f"It is {objective.ahead} the {rest} ({basis}); the next, {following.label}, {worse}."
    if answer.apart:  # they shared no launch with the best, so little is known about them
        known = "" if answer.apart_half_width is None else f", within {format.within(answer.apart_half_width)}"
        listed = format.listed(answer.apart, MOST_NAMES)
        yield f"Compared in separate launches{known}, so possibly as fast: {listed}."
    if open_set:
        yield _nominally(answer, best, objective)
    yield _more_blocks(answer)


def _with_rate(best: Candidate, objective: Objective) -> str:
    """Return the best's number with its throughput, or with its step time if another number was ranked."""
    rate = "" if best.tokens_per_s is None else format.throughput(best.tokens_per_s, best.unit)
    beside = rate or f"{best.unit}/s unknown"
    if objective is not STEP:
        beside = f"{format.milliseconds(best.step_time_s)} per step"
    return f"{number(best, objective)}, {beside}"


def _nominally(answer: Ranking, best: Candidate, objective: Objective) -> str:
    return f"{nominal(answer)}: {best.label}: {_with_rate(best, objective)}."


def _more_blocks(answer: Ranking) -> str:
    """Return how many more blocks would resolve the set; empty if it is sharp enough."""
    if answer.more_blocks is None:
        return ""
    resolving = f"Resolving {100 * SHARP_ENOUGH:g}%"
    if answer.blocks + answer.more_blocks > MOST_BLOCKS:
        return f"{resolving} would take more than {MOST_BLOCKS} blocks: too noisy."
    takes = ""
    if len(answer.race) > 1:
        before, now = answer.race[-2:]
        takes = f" ({format.duration(answer.more_blocks * (now.seconds - before.seconds))})"
    return f"{resolving} needs about {format.count(answer.more_blocks, 'more block')}{takes}."


def _staleness(of: Candidate) -> str:
    if of.staleness_mean is None or of.staleness_max is None:
        return "by how many updates is unknown"
    return format.staleness(of.staleness_mean, of.staleness_max)


def _no_comm_baseline(of: NoCommBaseline) -> str:
    step = f"Without communication ({of.strategy}) a step takes {format.milliseconds(of.step_time_s)}"
    if of.share is None:
        return f"{step}; no launch or repetition that counts connects it with the fastest."
    between = ""
    if of.low is not None and of.high is not None:
        between = f" (95%: {format.percent(max(0.0, of.low))} to {format.percent(max(0.0, of.high))})"
    return f"{step}, {format.percent(max(0.0, of.share))} less than the fastest's{between}."
