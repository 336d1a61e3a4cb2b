"""Sections of the answer: the fastest cases, and the trade between step time and peak memory."""

from __future__ import annotations

from collections.abc import Callable

from parabench.analysis.ranking.answer import Answer
from parabench.analysis.ranking.pareto import Point
from parabench.analysis.ranking.ranking import spots
from parabench.analysis.session import SessionData
from parabench.report.spec import Column, Section, Table, nothing_to_draw, table_of


def ranking_section(seen: SessionData) -> Section:
    """The fastest of the selected cases."""
    return Section(
        "ranking",
        "The fastest",
        "Step latency of the fastest selected cases; lower is better. The line reaches from the fastest to the slowest "
        "launch; a filled mark cannot be told apart from the fastest. The axis does not begin at zero.",
        nothing_to_draw(seen) or "No selected case has a step time.",
        draw="ranking",
    )


def front_section(seen: SessionData) -> Section | None:
    """Only where there is a trade: one configuration that is best in both needs no section."""
    answers = [answer for answer in seen.once(spots) if len(answer.front) > 1]
    if not answers:
        return None
    return Section(
        "front",
        "Step time against peak memory",
        "Left and down is better. Filled marks, joined by the line, are the configurations that no other beats in "
        "both: one beats another when it is told apart as better in one of them and not as worse in the other. That "
        "is decided among all cases, whatever is selected. Means over launches; memory is the fullest rank's. The axes "
        "do not begin at zero.",
        "The selected cases show no trade: none has both a step time and a peak memory, or one configuration is best "
        "in both.",
        tuple(_table(answer) for answer in answers),
        draw="front",
    )


def _table(answer: Answer) -> Table:
    def beside(name: str) -> Callable[[Point], float | None]:
        """A share beside the first of the front, which has none."""
        return lambda point: None if point is answer.front[0] else getattr(point, name)

    return table_of(
        " · ".join(filter(None, ("Beaten by no other in both", answer.heading))),
        (
            Column("Case", "label"),
            Column("Step, ms", "step_time_s", "ms"),
            Column("Peak, MiB", "peak_memory_bytes", "mib"),
            Column("Slower", beside("slower"), "percent"),
            Column("Less memory", beside("less_memory"), "percent"),
        ),
        answer.front,
        closed=False,
        note=answer.heading,
        cases=tuple(point.case_id for point in answer.front),
    )
