"""What `best` prints: the answer, the lines of code, the tables that were asked for, and what is behind the numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from parabench.analysis.memory import compared, state_table
from parabench.analysis.ranking.answer import Answer
from parabench.analysis.ranking.objectives import OBJECTIVES, STEP
from parabench.analysis.ranking.pareto import ParetoPoint
from parabench.analysis.session import SessionData
from parabench.analysis.text import format
from parabench.analysis.text.progress import settling
from parabench.analysis.text.ranking import said_value


def lines(seen: SessionData, answers: Sequence[Answer]) -> list[str]:
    """All answers of a session of trainings, by one objective; for a step's time also what ranks hold, and the command
    that would settle what is open."""
    parts = [part for answer in answers for part in _parts(answer)]
    bases = dict.fromkeys(answer.basis for answer in answers if answer.best is not None)
    parts.append([f"One number per launch: {basis}. All ± and comparisons are at 95 %." for basis in bases])
    if all(OBJECTIVES[answer.objective] is STEP for answer in answers):
        held = compared(state_table(seen.launches, seen.results.whole))
        parts.insert(len(parts) if any(answer.decided for answer in answers) else 0, held)
        parts.append(settling(seen.results, seen.session, seen.launches, answers))
    return [line for part in parts if part for line in (*part, "")][:-1]


def _parts(answer: Answer) -> list[list[str]]:
    """Everything of one answer, in the order in which a reader asks; a blank line will part them."""
    best = answer.best
    return [
        [answer.sentence()],
        textwrap.indent(best.code, "    ").splitlines() if best is not None and best.code and answer.decided else [],
        answer.notes(),
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
        first = "lowest mean" if answer.winner is None else "best"
        apart = {True: "yes", False: "no", None: first if own is answer.best else "unknown"}[place.distinguishable]
        behind = "–" if own is answer.best else format.percent(own.slower)
        rows.append([*place.names, own.label, said_value(own, objective), behind, apart, str(place.configurations)])
    return format.aligned(rows, texts=len(axes) + 1)


def _front_table(front: Sequence[ParetoPoint]) -> list[str]:
    rows = [["configuration", "step", "peak memory", "slower", "less memory"]]
    for point in front:
        apart = [format.percent(value) if point is not front[0] else "–" for value in (point.slower, point.less_memory)]
        rows.append(
            [point.label, format.milliseconds(point.step_time_s), format.mebibytes(point.peak_memory_bytes), *apart]
        )
    return format.aligned(rows)
