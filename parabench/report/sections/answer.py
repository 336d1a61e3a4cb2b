"""Sections of the answer: the ranking, racing, the trade-off between step time and peak memory, and what a step costs
along each axis: bucket size, algorithm, ranks."""

from __future__ import annotations

import math
from collections.abc import Callable

from parabench.analysis import format
from parabench.analysis.ranking.race import Look, exits
from parabench.analysis.ranking.ranking import Candidate, Ranking, spots
from parabench.analysis.ranking.words import not_compared
from parabench.analysis.scaling import STRONG, WEAK, curves
from parabench.analysis.session import SessionData
from parabench.analysis.stats.contrasts import SHARP_ENOUGH
from parabench.report.figures.cases import front, ranking
from parabench.report.figures.curves import algorithms, buckets, heat
from parabench.report.figures.figures import GREY, Panel, lay_out, plain, round_numbers, unranked, vertical
from parabench.report.figures.scaling import scaling
from parabench.report.spec import WORDED, Column, Section, Table, nothing_to_draw, table_of

_BLUE = "#0072B2"
# Names in the text of a point of a race.
_MOST_NAMES = 4
# Text under the figures of bucket sizes.
_CAPS = "A list such as 1+4 has the cap of each bucket; the last cap applies to all further buckets."


def ranking_section(seen: SessionData) -> Section:
    """Return the ranking of the selected cases: relative to the best, or their step times if no interval is known."""
    answers = [answer for answer in seen.once(spots) if any(each.slower_low is not None for each in answer.candidates)]
    caption = (
        "How much slower than the best each selected case is, with 95% intervals; left is better. Filled marks are "
        "not statistically distinguishable from the best."
    )
    reading = [
        "The best is the case with the lowest mean of all. Intervals hold for all comparisons with it at once (Hsu's "
        "multiple comparisons with the best): a case may be the best if its interval reaches 0. They exclude changes "
        "that affect all configurations of a repetition or a shared launch. Step times, with the spread of "
        "launches, are in the "
        "table of all cases.",
        *filter(None, map(not_compared, answers)),
    ]
    if any(answer.race for answer in answers):
        reading.append(
            "An eliminated configuration was slower than the best by at least the bound next to its name. The fastest "
            "configuration is eliminated by mistake in at most 1 of 20 runs."
        )
    if not answers:
        caption = (
            "Step time of the fastest selected cases; lower is better. Filled marks are not statistically "
            "distinguishable from the fastest."
        )
        reading = [
            "The line spans the fastest to the slowest launch of a configuration. The axis does not start at zero."
        ]
    return Section(
        "ranking",
        "Ranking",
        caption,
        nothing_to_draw(seen) or "No selected case has a step time.",
        tuple(map(_relative, answers)),
        panels=ranking(seen),
        reading=" ".join(reading),
    )


def _relative(answer: Ranking) -> Table:
    left = {
        case: f"block {look.block + 1}, ≥ {format.percent(each.at_least)}"
        for case, (look, each) in exits(answer.race).items()
    }
    return table_of(
        " · ".join(filter(None, ("Behind the best", answer.heading))),
        (
            Column("Case", "label"),
            Column("Behind the best", "slower", "percent"),
            Column("95%", _interval, WORDED),
            *([Column("Left the race", lambda each: left.get(each.case_id), WORDED)] if left else []),
            Column("Launches", "launches", "count"),
        ),
        answer.candidates,
    )


def _interval(of: Candidate) -> str | None:
    if of.slower_low is None or of.slower_high is None:
        return None
    return f"{format.percent(of.slower_low)} to {format.percent(of.slower_high)}"


def race_section(seen: SessionData) -> Section | None:
    """Return how a race went; `None` if there was none, or it was over before two cases could be compared."""
    panels = [panel for answer in seen.once(spots) if (panel := _race_panel(answer))]
    if not panels:
        return None
    return Section(
        "race",
        "Race",
        "How sharp the comparisons with the best are, against the time that launches took: the widest half-width of "
        "the cases still in the race. At dotted lines, cases were eliminated.",
        panels=panels,
        reading=f"Half-widths are simultaneous, at 95%. The race ends when a difference of {100 * SHARP_ENOUGH:g}% "
        "would show, when one case is left, or when the time is over. The table of the ranking has the time and the "
        "bound of each elimination.",
    )


def _race_panel(answer: Ranking) -> Panel | None:
    """Return a point for each look of a race, and a dotted line if it eliminated cases; `None` without half-widths."""
    sharp = [look for look in answer.race if look.half_width]
    if not sharp:
        return None
    labels = {each.case_id: each.label for each in answer.candidates}
    widths = [100 * (look.half_width or 0.0) for look in sharp]
    enough, end = 100 * SHARP_ENOUGH, answer.race[-1].seconds
    low, high = min(enough, *widths) / 1.5, 2 * max(enough, *widths)
    ticks = round_numbers(low, high)
    width = {
        "type": "scatter", "mode": "lines+markers", "name": "half-width", "y": widths,
        "x": [round(look.seconds, 1) for look in sharp], "line": {"color": _BLUE},
        "marker": {"color": _BLUE, "size": 8}, "text": [_hover(look, labels) for look in sharp],
        "hovertemplate": "±%{y:.3~g}% %{text}<extra></extra>",
    }  # fmt: skip
    goal = {
        "type": "scatter", "mode": "lines", "name": f"{enough:g}%: sharp enough", "x": [0, end], "y": [enough, enough],
        "line": {"color": GREY, "dash": "dash", "width": 1.5}, "hoverinfo": "skip",
    }  # fmt: skip
    logarithmic = {"type": "log", "range": [math.log10(low), math.log10(high)]}
    figure = lay_out(
        [width, goal],
        "seconds of launches",
        "half-width (%)",
        xaxis={"range": [0, 1.06 * end]},
        yaxis=logarithmic | {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]},
        shapes=[vertical(look.seconds, dash="dot", width=1) for look in answer.race if look.left],
    )
    return Panel(answer.heading, figure, 340)


def _hover(look: Look, labels: dict[str, str]) -> str:
    """Return the text of a point after its half-width."""
    parts = [f"after block {look.block + 1}", f"{format.count(len(look.racing), 'case')} still in the race"]
    if look.left:
        names = format.listed((plain(labels[each.case_id]) for each in look.left), _MOST_NAMES)
        bound = format.percent(min(each.at_least for each in look.left))
        parts.append(f"eliminated: {names}; slower than the best by {bound} or more")
    return "<br>".join(parts)


def front_section(seen: SessionData) -> Section | None:
    """Return the Pareto front; `None` if one configuration is best in both."""
    answers = [answer for answer in seen.once(spots) if len(answer.front) > 1]
    if not answers:
        return None
    return Section(
        "front",
        "Step time against peak memory",
        "Left and down is better. Filled marks, joined by the line, are Pareto-optimal.",
        "The selected configurations have no trade-off: none has both a step time and a peak memory, or one "
        "configuration is best "
        "in both.",
        tuple(map(_front, answers)),
        panels=front(seen),
        reading="A configuration is Pareto-optimal unless another is significantly better in one of the two and not "
        "significantly worse in the other. Filters do not change this. Points are means over "
        "launches; memory is from the rank with the highest peak. The axes do not start at zero.",
    )


def _front(answer: Ranking) -> Table:
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
    )


def _figures(
    at: str, draw: Callable[[SessionData], list[Panel]], title: str, caption: str, empty: str, reading: str
) -> Callable[[SessionData], Section]:
    """Return a function that makes a section from the figures of `draw`."""
    return lambda seen: Section(at, title, caption, nothing_to_draw(seen) or empty, panels=draw(seen), reading=reading)


by_bucket_section = _figures(
    "bucket",
    buckets,
    "Step time against bucket size",
    "Lower is better. Filled marks are not statistically distinguishable from the fastest configuration of the same "
    "workload.",
    "No strategy has more than one bucket size at one world size.",
    "Bars span the fastest to the slowest launch. The shaded range covers the bucket sizes with a filled mark; "
    "“default” "
    f"is PyTorch's own bucket setting. The axis does not start at zero. {_CAPS}",
)
heat_section = _figures(
    "heat",
    heat,
    "Step time by algorithm and bucket size",
    "Step time in ms; darker is faster. Outlined cells are not statistically distinguishable from the fastest "
    "configuration of the same workload.",
    "No strategy has two algorithms and two bucket sizes at one world size.",
    "The lightest cells are at least 25% slower than the fastest one. Empty cells were not measured, or are not "
    f"selected. {_CAPS}",
)
algorithms_section = _figures(
    "algorithms",
    algorithms,
    "Step time vs native all-reduce",
    "Step time of an algorithm divided by the step time of native, at the same strategy, ranks and bucket size. "
    "Left of the line is "
    "faster than native.",
    "No algorithm was measured along with native at the same strategy, world size and bucket size.",
    "Bars span the fastest to the slowest launch of an algorithm, over the mean step time of native; native's own bar "
    "shows the spread of its launches.",
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
        nothing_to_draw(seen) or "No strategy has two world sizes with the same workload, algorithm and bucket size.",
        panels=scaling(seen),
        reading="Efficiency in strong scaling is throughput over that of one rank times the ranks; in weak scaling, "
        "the step time of one rank over that of the ranks. If one rank was not measured, the smallest world size is "
        "the base. Each strategy has its curve with most world sizes, then the fastest. A strategy with several "
        "algorithms, or else bucket sizes, has further figures with such a curve for each. The ideal line may leave "
        "the figure." + unranked(table["strategy"], dashed=True),
    )
