"""Sections of the answer: the ranking, the race, the trade between step time and peak memory, and what a step costs
along each axis: bucket size, algorithm, ranks."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from parabench.analysis.numbers import WORK
from parabench.analysis.ranking.pareto import ParetoPoint
from parabench.analysis.ranking.race import exits
from parabench.analysis.ranking.ranking import Answer, Candidate, spots
from parabench.analysis.ranking.words import not_compared
from parabench.analysis.scaling import STRONG, WEAK, curves
from parabench.analysis.session import SessionData
from parabench.analysis.stats.block_model import SHARP_ENOUGH
from parabench.analysis.text import format
from parabench.report.figures.figures import measured, unranked
from parabench.report.figures.race import race_panel
from parabench.report.spec import DASH, MOST_CASES, WORDED, Column, Section, Table, nothing_to_draw, table_of


def ranking_section(seen: SessionData) -> Section:
    """The fastest of the selected cases: relative to the best, or by their step times where no interval is known."""
    answers = [answer for answer in seen.once(spots) if any(each.slower_low is not None for each in answer.candidates)]
    empty = nothing_to_draw(seen) or "No selected case has a step time."
    if not answers:
        return Section(
            "ranking",
            "Ranking",
            "Step time of the fastest selected cases; lower is better. Filled marks are not statistically "
            "distinguishable from the fastest.",
            empty,
            draw="ranking",
            reading="The line spans the fastest to the slowest launch of a case. The axis does not start at zero.",
        )
    raced = any(answer.race for answer in answers)
    return Section(
        "ranking",
        "Ranking",
        "How much slower than the best each selected case is, with 95 % intervals; left is better. Filled marks are "
        "not statistically distinguishable from the best.",
        empty,
        tuple(_relative(answer) for answer in answers),
        draw="ranking",
        reading="The best is the case with the lowest mean of all. Intervals hold for all comparisons with it at once "
        "(Hsu's multiple comparisons with the best): a case may be the best where its interval reaches 0. What blocks, "
        "or launches that cases share, have in common is not in them. Step times, with the spread of launches, are in "
        "the table of all cases."
        + "".join(f" {text}" for answer in answers if (text := not_compared(answer)))
        + (
            " A case that left the race was slower than the best by at least the bound beside its name, at a "
            "confidence by which the fastest leaves wrongly in one race of twenty at most."
            if raced
            else ""
        ),
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
    """How a race went; None where there was none, or where it was over before two cases could be compared."""
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
    """Only where there is a trade: one configuration that is best in both needs no section."""
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
    def beside(name: str) -> Callable[[ParetoPoint], float | None]:
        """A share beside the first of the front, which has none."""
        return lambda point: None if point is answer.front[0] else getattr(point, name)

    return table_of(
        " · ".join(filter(None, ("Pareto-optimal", answer.heading))),
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


_EACH_KIND = {
    STRONG: "Strong scaling: the same global batch at every world size.",
    WEAK: "Weak scaling: the same batch per rank at every world size.",
}


def by_bucket_section(seen: SessionData) -> Section:
    """Step time along the bucket size."""
    cases, sizes = seen.cases, _sizes(seen.cases)
    return Section(
        "bucket",
        "Step time against bucket size",
        "Lower is better. Filled marks are not statistically distinguishable from the fastest configuration of the "
        "same workload.",
        nothing_to_draw(seen)
        or _why(
            bool((sizes["bucket_mib"] > 1).any()),
            "No strategy was measured with more than one bucket size.",
            "No selected strategy has more than one bucket size at one world size.",
        ),
        draw="buckets",
        reading="Bars span the fastest to the slowest launch. Shaded are the bucket sizes at which some mark is "
        "filled; “default” is PyTorch's own bucket setting. The axis does not start at zero."
        + _lists(cases)
        + _standing_for(cases),
    )


def heat_section(seen: SessionData) -> Section:
    """Step time along algorithm and bucket size at once."""
    cases, sizes = seen.cases, _sizes(seen.cases)
    return Section(
        "heat",
        "Step time by algorithm and bucket size",
        "Step time in ms; darker is faster. Outlined cells are not statistically distinguishable from the fastest "
        "configuration of the same workload.",
        nothing_to_draw(seen)
        or _why(
            bool(((sizes["bucket_mib"] > 1) & (sizes["algorithm"] > 1)).any()),
            "This needs at least two algorithms and two bucket sizes of one strategy and world size.",
            "The selected cases have no strategy and world size with two algorithms and two bucket sizes.",
        ),
        draw="heat",
        reading="The lightest cells are at least 25 % slower than the fastest one. Empty cells were not measured, or "
        "are not selected." + _lists(cases) + _standing_for(cases),
    )


def algorithms_section(seen: SessionData) -> Section:
    """Step time of each algorithm relative to native."""
    own = measured(seen.cases)
    native = own["algorithm"] == "native"
    keys = [*_PLACE, "bucket_mib"]
    kinds = own.assign(native=native, other=~native).groupby(keys, dropna=False)[["native", "other"]].any()
    return Section(
        "algorithms",
        "Step time vs native all-reduce",
        "Step time of an algorithm over that of native, at the same strategy, ranks and bucket size. Left of the line "
        "is faster than native.",
        nothing_to_draw(seen)
        or _why(
            bool(kinds.all(axis=1).any()),
            "No algorithm was measured along with native at the same strategy, world size and bucket size.",
            "No selected algorithm was measured along with native at the same strategy, world size and bucket size.",
        ),
        draw="algorithms",
        reading="Of each algorithm the fastest case is drawn. Bars span its fastest to its slowest launch, over the "
        "mean step time of native; native's own bar shows the spread of its launches.",
    )


def scaling_section(seen: SessionData) -> Section:
    """Throughput and efficiency along the ranks."""
    table = seen.once(curves)
    kinds = " ".join(said for kind, said in _EACH_KIND.items() if (table["kind"] == kind).any())
    return Section(
        "scaling",
        "Scaling",
        kinds,
        nothing_to_draw(seen)
        or _why(
            len(table) > 0,
            "Only one world size was measured, so scaling is unknown."
            if measured(seen.cases)["world_size"].nunique() == 1
            else "No strategy was measured at two world sizes with the same workload, algorithm and bucket size.",
            "No selected strategy has two world sizes with the same workload, algorithm and bucket size.",
        ),
        draw="scaling",
        reading="Efficiency in strong scaling is throughput over that of one rank times the ranks; in weak scaling, "
        "the step time of one rank over that of the ranks. Where one rank was not measured, the smallest world size is "
        "the base. Each strategy shows its curve with most world sizes, then the fastest; a single selected strategy "
        "shows one curve per algorithm. The ideal line may leave the figure."
        + unranked(table["strategy"], dashed=True),
    )


# Where algorithms and bucket sizes can be compared.
_PLACE = [*WORK, "strategy", "world_size"]


def _sizes(cases: pd.DataFrame) -> pd.DataFrame:
    """How many algorithms and bucket sizes were measured of each strategy and world size."""
    places = measured(cases).groupby(_PLACE, dropna=False)
    return places[["algorithm", "bucket_mib"]].nunique(dropna=False)


def _why(some: bool, never: str, not_here: str) -> str:
    """Why there is no figure: nothing that was measured makes one, or nothing that is selected."""
    return not_here if some else never


def _lists(cases: pd.DataFrame) -> str:
    """What a list of caps is, where there is one: a text in a column of numbers."""
    listed = measured(cases)["bucket_mib"].map(lambda size: isinstance(size, str))
    return " A list, as 1+4, caps each bucket in turn, and the last cap is for the rest." if listed.any() else ""


def _standing_for(cases: pd.DataFrame) -> str:
    """That a point is the fastest of several, where it is so."""
    alike = measured(cases).duplicated([*_PLACE, "algorithm", "bucket_mib"])
    return " Where cases differ in other axes too, the fastest is drawn." if alike.any() else ""
