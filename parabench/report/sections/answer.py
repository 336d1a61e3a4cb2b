"""Sections of the answer: the ranking, the race, the trade between step time and peak memory, and what a step costs
along each axis: bucket size, algorithm, ranks."""

from __future__ import annotations

from collections.abc import Callable

from parabench.analysis import format
from parabench.analysis.ranking.race import exits
from parabench.analysis.ranking.ranking import Answer, Candidate, spots
from parabench.analysis.ranking.words import not_compared
from parabench.analysis.scaling import STRONG, WEAK, curves
from parabench.analysis.session import SessionData
from parabench.analysis.stats.block_model import SHARP_ENOUGH
from parabench.report.figures.figures import unranked
from parabench.report.figures.race import race_panel
from parabench.report.spec import DASH, MOST_CASES, WORDED, Column, Section, Table, nothing_to_draw, table_of

# Text under the figures of bucket sizes.
_CAPS = (
    "A list, as 1+4, caps each bucket in turn, and the last cap is for the rest. If cases differ in other axes too, "
    "the fastest is drawn."
)


def ranking_section(seen: SessionData) -> Section:
    """Return the ranking of the selected cases: relative to the best, or their step times if no interval is known."""
    answers = [answer for answer in seen.once(spots) if any(each.slower_low is not None for each in answer.candidates)]
    caption = (
        "How much slower than the best each selected case is, with 95 % intervals; left is better. Filled marks are "
        "not statistically distinguishable from the best."
    )
    reading = [
        "The best is the case with the lowest mean of all. Intervals hold for all comparisons with it at once (Hsu's "
        "multiple comparisons with the best): a case may be the best if its interval reaches 0. They leave out changes "
        "that affect all cases of a block or a shared launch. Step times, with the spread of launches, are in the "
        "table of all cases.",
        *filter(None, map(not_compared, answers)),
    ]
    if any(answer.race for answer in answers):
        reading.append(
            "A case that left the race was slower than the best by at least the bound beside its name; the fastest "
            "leaves wrongly in at most one race of twenty."
        )
    if not answers:
        caption = (
            "Step time of the fastest selected cases; lower is better. Filled marks are not statistically "
            "distinguishable from the fastest."
        )
        reading = ["The line spans the fastest to the slowest launch of a case. The axis does not start at zero."]
    return Section(
        "ranking",
        "Ranking",
        caption,
        nothing_to_draw(seen) or "No selected case has a step time.",
        tuple(map(_relative, answers)),
        draw="ranking",
        reading=" ".join(reading),
    )


def _relative(answer: Answer) -> Table:
    left = {
        case: f"block {look.block + 1}, ≥ {format.percent(each.at_least)}"
        for case, (look, each) in exits(answer.race).items()
    }
    shown = answer.candidates[:MOST_CASES]
    return table_of(
        " · ".join(filter(None, ("Behind the best", answer.heading))),
        (
            Column("Case", "label"),
            Column("Behind the best", "slower", "percent"),
            Column("95 %", _interval, WORDED),
            *([Column("Left the race", lambda each: left.get(each.case_id, DASH), WORDED)] if left else []),
            Column("Launches", "launches", "count"),
        ),
        shown,
        note=f"The {MOST_CASES} fastest of {len(answer.candidates):,}." if len(shown) < len(answer.candidates) else "",
        cases=tuple(each.case_id for each in shown),
    )


def _interval(of: Candidate) -> str:
    if of.slower_low is None or of.slower_high is None:
        return DASH
    return f"{format.percent(of.slower_low)} to {format.percent(of.slower_high)}"


def race_section(seen: SessionData) -> Section | None:
    """Return how a race went; `None` if there was none, or it was over before two cases could be compared."""
    panels = [panel for answer in seen.once(spots) if (panel := race_panel(answer))]
    if not panels:
        return None
    return Section(
        "race",
        "Race",
        "How sharp the comparisons with the best are, against the time that launches took: the widest half-width of "
        "the cases still in the race. Dotted lines: cases left; on top: how many race on.",
        panels=panels,
        reading=f"Half-widths are simultaneous, at 95 %. The race ends when a difference of {100 * SHARP_ENOUGH:g} % "
        "would show, when one case is left, or when the time is over. When and by which bound each case left is in the "
        "table of the ranking.",
    )


def front_section(seen: SessionData) -> Section | None:
    """Return the Pareto front; `None` if one configuration is best in both."""
    answers = [answer for answer in seen.once(spots) if len(answer.front) > 1]
    if not answers:
        return None
    return Section(
        "front",
        "Step time against peak memory",
        "Left and down is better. Filled marks, joined by the line, are Pareto-optimal.",
        "The selected cases show no trade: none has both a step time and a peak memory, or one configuration is best "
        "in both.",
        tuple(_table(answer) for answer in answers),
        draw="front",
        reading="A configuration is Pareto-optimal unless another is significantly better in one of the two and not "
        "significantly worse in the other. All cases decide that, whatever is selected. Points are means over "
        "launches; memory is that of the largest rank. The axes do not start at zero.",
    )


def _table(answer: Answer) -> Table:
    return table_of(
        " · ".join(filter(None, ("Pareto-optimal", answer.heading))),
        (
            Column("Case", "label"),
            Column("Step, ms", "step_time_s", "ms"),
            Column("Peak, MiB", "peak_memory_bytes", "mib"),
            Column("Slower", lambda point: point.slower or None, "percent"),
            Column("Less memory", lambda point: point.less_memory or None, "percent"),
        ),
        answer.front,
        closed=False,
        note=answer.heading,
        cases=tuple(point.case_id for point in answer.front),
    )


def _drawn(at: str, draw: str, title: str, caption: str, empty: str, reading: str) -> Callable[[SessionData], Section]:
    """Return what makes a section whose figure the page draws of the selected cases."""
    return lambda seen: Section(at, title, caption, nothing_to_draw(seen) or empty, draw=draw, reading=reading)


by_bucket_section = _drawn(
    "bucket",
    "buckets",
    "Step time against bucket size",
    "Lower is better. Filled marks are not statistically distinguishable from the fastest configuration of the same "
    "workload.",
    "No selected strategy has more than one bucket size at one world size.",
    "Bars span the fastest to the slowest launch. Shaded are the bucket sizes at which some mark is filled; “default” "
    f"is PyTorch's own bucket setting. The axis does not start at zero. {_CAPS}",
)
heat_section = _drawn(
    "heat",
    "heat",
    "Step time by algorithm and bucket size",
    "Step time in ms; darker is faster. Outlined cells are not statistically distinguishable from the fastest "
    "configuration of the same workload.",
    "The selected cases have no strategy and world size with two algorithms and two bucket sizes.",
    "The lightest cells are at least 25 % slower than the fastest one. Empty cells were not measured, or are not "
    f"selected. {_CAPS}",
)
algorithms_section = _drawn(
    "algorithms",
    "algorithms",
    "Step time vs native all-reduce",
    "Step time of an algorithm over that of native, at the same strategy, ranks and bucket size. Left of the line is "
    "faster than native.",
    "No selected algorithm was measured along with native at the same strategy, world size and bucket size.",
    "The fastest case of each algorithm is drawn. Bars span its fastest to its slowest launch, over the mean step time "
    "of native; native's own bar shows the spread of its launches.",
)


def scaling_section(seen: SessionData) -> Section:
    """Return the section of throughput and efficiency against the world size."""
    table = seen.once(curves)
    kinds = {
        STRONG: "Strong scaling: the same global batch at every world size.",
        WEAK: "Weak scaling: the same batch per rank at every world size.",
    }
    return Section(
        "scaling",
        "Scaling",
        " ".join(text for kind, text in kinds.items() if (table["kind"] == kind).any()),
        nothing_to_draw(seen)
        or "No selected strategy has two world sizes with the same workload, algorithm and bucket size.",
        draw="scaling",
        reading="Efficiency in strong scaling is throughput over that of one rank times the ranks; in weak scaling, "
        "the step time of one rank over that of the ranks. If one rank was not measured, the smallest world size is "
        "the base. Each strategy shows its curve with most world sizes, then the fastest; a single selected strategy "
        "shows one curve per algorithm. The ideal line may leave the figure."
        + unranked(table["strategy"], dashed=True),
    )
