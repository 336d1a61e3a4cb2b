"""What a session of trainings says: all that `best` prints, and the shorter lines that end a run."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from typing import Any

from parabench.analysis.carry_over import carry_over
from parabench.analysis.memory import case_states, compared
from parabench.analysis.noise_floor import noise_floor
from parabench.analysis.ranking.answer import Answer
from parabench.analysis.ranking.objectives import OBJECTIVES, STEP
from parabench.analysis.ranking.pareto import ParetoPoint
from parabench.analysis.ranking.ranking import spots
from parabench.analysis.ranking.stopping import blocks_begun, candidates_of_spots
from parabench.analysis.session import SessionData
from parabench.analysis.stats.block_model import MOST_BLOCKS
from parabench.analysis.step import summary
from parabench.analysis.text import format, ranking, scaling, turns
from parabench.store.record import MEASURED_ON_CPU, WATCHED
from parabench.store.store import STORE_NAME

# What is proposed where deciding looks hopeless and fewer candidates would help.
NARROWING_MIN = 30


def lines(seen: SessionData, answers: Sequence[Answer]) -> list[str]:
    """Return all answers of a session of training runs, by one objective.

    For step times also the scaling, what ranks hold, and the command that decides what is open.
    """
    parts = [_on_cpu(seen), *(part for answer in answers for part in _parts(answer))]
    parts.append([*_noise(seen), *_carried_over(seen, small=False)])
    bases = dict.fromkeys(answer.basis for answer in answers if answer.best is not None)
    parts.append([f"One number per launch: {basis}. All ± and comparisons are at 95 %." for basis in bases])
    if all(OBJECTIVES[answer.objective] is STEP for answer in answers):
        parts.append([*summary.lines(seen, instrumented=False), *scaling.lines(seen)])
        parts.insert(len(parts) if _decided(answers) else 1, _held(seen))
        parts.append(_settling(seen, answers))
    return [line for part in parts if part for line in (*part, "")][:-1]


def to_dicts(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Return the answers as JSON (docs/reference/json.md)."""
    return [ranking.to_dict(each) for each in answers]


def closing_lines(seen: SessionData) -> list[str]:
    """Return the last lines of a run.

    In order: why the CPU was measured (if no GPU could be used), the best configuration of each workload, the bucket
    curves, scaling, memory, noise, and the command that decides what is open. If no time is decided,
    memory comes first: it is the same in every launch.
    """
    answers = seen.once(spots)
    fastest = [line for answer in answers for line in (*ranking.lines(answer), *ranking.notes(answer))]
    fastest += [*summary.lines(seen), *scaling.lines(seen)]
    said = [fastest, _held(seen)] if _decided(answers) else [_held(seen), fastest]
    return [
        *_on_cpu(seen),
        *said[0],
        *said[1],
        *_noise(seen),
        *_carried_over(seen, small=False),
        *_settling(seen, answers),
    ]


def next_command(seen: SessionData, answers: Sequence[Answer], where: str | None = None) -> list[tuple[str, str]]:
    """What it is for, and the command that launches what is still open until it is decided; none where it would do
    nothing. Where that would take more than MOST_BLOCKS blocks, it has a budget, and promises less.

    Only the newest session of a store can be resumed. `where` stands for its folder in what others may see.
    """
    results, session, launches = seen.results, seen.session, seen.numbers
    newest = session.id == results.listed["id"].max()
    if session.interleaved or not newest or results.path.name != STORE_NAME:
        return []
    if WATCHED in results.finding["code"].tolist():
        return []
    left = candidates_of_spots(answers, launches)
    if not left.cases:
        return []
    far = left.more_blocks is not None and blocks_begun(launches) + left.more_blocks > MOST_BLOCKS
    budget = ["--budget", f"{NARROWING_MIN:g}"] if far else []
    command = ["parabench", "run", "--resume", "--until-decided", *budget, "--out", where or str(results.path.parent)]
    from parabench.analysis.environment.nodes import cluster_options

    command += cluster_options(session.environment)
    return [(f"To {'narrow it down' if far else 'settle it'}", shlex.join(command))]


def of_turns(seen: SessionData) -> list[str]:
    """What launches that cases shared say of themselves, a line each: the noise floor, and what turns carry over."""
    return [*_noise(seen), *_carried_over(seen)]


def _on_cpu(seen: SessionData) -> list[str]:
    """Say why the CPU was measured if no GPU could be used."""
    rows = seen.results.finding
    return [text for code, text in zip(rows["code"], rows["message"], strict=True) if code == MEASURED_ON_CPU]


def _settling(seen: SessionData, answers: Sequence[Answer]) -> list[str]:
    return [f"{aim}: {line}" for aim, line in next_command(seen, answers)]


def _decided(answers: Sequence[Answer]) -> bool:
    return any(answer.decided for answer in answers)


def _noise(seen: SessionData) -> list[str]:
    """How much two copies of a configuration differed, where one was measured twice."""
    floor = seen.once(noise_floor)
    return [turns.noise_sentence(floor, seen.labels)] if floor else []


def _carried_over(seen: SessionData, *, small: bool = True) -> list[str]:
    """What turns carry over; what is too `small` to matter only where that is asked for."""
    tested = seen.once(carry_over)
    if tested is None or not (small or tested.matters):
        return []
    return [turns.sentence(tested, seen.labels)]


def _held(seen: SessionData) -> list[str]:
    """Which strategy holds least on a rank, and whether theory says so."""
    return compared(seen.once(case_states))


def _parts(answer: Answer) -> list[list[str]]:
    """Everything of one answer, in the order in which a reader asks; a blank line will part them."""
    best = answer.best
    return [
        ranking.lines(answer),
        textwrap.indent(best.code, "    ").splitlines() if best is not None and best.code and answer.decided else [],
        ranking.notes(answer),
        _by_table(answer) if answer.by else [],
        ["Pareto-optimal in step time and peak memory:", *_front_table(answer.front)] if len(answer.front) > 1 else [],
    ]


def _by_table(answer: Answer) -> list[str]:
    objective = OBJECTIVES[answer.objective]
    candidates = {each.case_id: each for each in answer.candidates}
    axes = list(answer.by[0].values)
    rows = [[*axes, "best configuration", objective.head, "behind", "distinguishable", "configurations"]]
    for place in answer.by:
        own = candidates.get(place.case_id or "")
        if own is None:
            rows.append([*place.names, f"none ({place.status})", "–", "–", "–", "0"])
            continue
        first = ranking.nominal(answer).lower() if answer.winner is None else "best"
        apart = {True: "yes", False: "no", None: first if own is answer.best else "unknown"}[place.distinguishable]
        behind = "–" if own is answer.best else format.percent(own.slower)
        rows.append(
            [*place.names, own.label, ranking.said_value(own, objective), behind, apart, str(place.configurations)]
        )
    return format.aligned(rows, texts=len(axes) + 1)


def _front_table(front: Sequence[ParetoPoint]) -> list[str]:
    rows = [["configuration", "step", "peak memory", "slower", "less memory"]]
    for point in front:
        apart = [format.percent(value) if point is not front[0] else "–" for value in (point.slower, point.less_memory)]
        rows.append(
            [point.label, format.milliseconds(point.step_time_s), format.mebibytes(point.peak_memory_bytes), *apart]
        )
    return format.aligned(rows)
