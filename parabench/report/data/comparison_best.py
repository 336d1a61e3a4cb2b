"""What is fastest on each of several sides."""

from __future__ import annotations

from collections.abc import Sequence

from parabench.analysis.compare.overall import Overall, work_key
from parabench.analysis.compare.several import Several
from parabench.analysis.ranking.answer import Answer, Candidate
from parabench.analysis.ranking.ranking import spots
from parabench.analysis.text import across, format
from parabench.report.panels import ms
from parabench.report.spec import Section, Table
from parabench.store.record import MIB


def best_section(of: Several, works: Sequence[Overall], names: tuple[str, ...]) -> Section:
    """Each side's sweet spot of each work."""
    head = ("Side", "Sweet spot", "Step ms", "± ms", "Throughput", "Peak MiB", "As fast", f"× {names[0]}")
    headings = {work_key(work.work): work.heading for work in works}
    firsts = {work_key(answer.work): answer.best for answer in of.sides[0].once(spots)}
    rows: list[tuple[str, ...]] = []
    said: list[tuple[str, ...]] = []
    for name, seen in zip(names, of.sides, strict=True):
        peaks = dict(zip(seen.cases["case_id"], seen.cases["peak_memory_bytes"], strict=True))
        for answer in seen.once(spots):
            said.append((name, answer.sentence()))
            if answer.best is None:
                rows.append((name, answer.why_not or format.UNKNOWN, *["–"] * 6))
                continue
            work = work_key(answer.work)
            peak = peaks.get(answer.best.case_id)
            spot = _spot(answer, answer.best, headings.get(work, ""))
            rows.append((name, spot, *_numbers(answer, answer.best, peak, firsts.get(work))))
    table = Table("Best of each side", head, rows, texts=2, closed=False)
    closed = Table("In words", ("Side", "Answer"), said, texts=2)
    return Section(
        "best",
        "Best of each side",
        "What each side's own session says is fastest there, as its own report does. “As fast” counts what cannot be "
        f"told apart from it; the last column is its step beside that of {names[0]}’s best at the same work, which may "
        "be another case.",
        [],
        "Nothing was measured.",
        (table, closed),
    )


def _spot(answer: Answer, best: Candidate, heading: str) -> str:
    named = f"{heading}: {best.label}" if heading else best.label
    doubt = "undecided" if not answer.decided else "nominally first" if answer.winner is None else ""
    return f"{named} ({doubt})" if doubt else named


def _numbers(answer: Answer, best: Candidate, peak: float | None, first: Candidate | None) -> tuple[str, ...]:
    return (
        ms(best.latency_s),
        ms(best.plus_minus_s),
        format.throughput(best.tokens_per_s, best.unit),
        format.digits(peak / MIB) if peak is not None and format.known(peak) else "–",
        format.count(len(answer.equals), "other") if answer.decided else "–",
        across.times(best.latency_s / first.latency_s) if first is not None else "–",
    )
