"""Sections of the answer: the fastest cases, and the trade between step time and peak memory."""

from __future__ import annotations

from parabench.analysis.ranking.answer import Answer
from parabench.analysis.ranking.ranking import spots
from parabench.analysis.session import SessionData
from parabench.analysis.text import format
from parabench.report.spec import Section, Table, ms, nothing_to_draw
from parabench.store.record import MIB


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
    rows: list[tuple[str, ...]] = [
        (
            point.label,
            ms(point.step_time_s),
            format.digits(point.peak_memory_bytes / MIB),
            format.percent(point.slower) if point is not answer.front[0] else "–",
            format.percent(point.less_memory) if point is not answer.front[0] else "–",
        )
        for point in answer.front
    ]
    head = ("Case", "Step, ms", "Peak, MiB", "Slower", "Less memory")
    title = " · ".join(filter(None, ("Beaten by no other in both", answer.heading)))
    ids = tuple(point.case_id for point in answer.front)
    return Table(title, head, rows, closed=False, note=answer.heading, cases=ids)
