"""Sections of the answer: the fastest cases, the trade between step time and peak memory, and what a step costs along
each axis: bucket size, algorithm, ranks."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from parabench.analysis.ranking.answer import Answer
from parabench.analysis.ranking.pareto import ParetoPoint
from parabench.analysis.ranking.ranking import spots
from parabench.analysis.scaling import STRONG, WEAK, curves
from parabench.analysis.session import SessionData
from parabench.analysis.tables import WORK
from parabench.report.figures.figures import headroom, measured
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
    def beside(name: str) -> Callable[[ParetoPoint], float | None]:
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


_EACH_KIND = {
    STRONG: "Strong scaling: the work of a step stays the same at every world size.",
    WEAK: "Weak scaling: the batch of a rank stays the same, so the work grows with the ranks, and efficiency is the "
    "step time of the base over that of the ranks.",
}


def by_bucket_section(seen: SessionData) -> Section:
    """Step time along the bucket size."""
    cases, sizes = seen.cases, _sizes(seen.cases)
    return Section(
        "bucket",
        "Step latency against bucket size",
        "Lower is better. Bars reach from the fastest to the slowest launch; the axis does not begin at zero. "
        "“default” is PyTorch's own bucket setting. A filled mark cannot be told apart from the fastest of all "
        "configurations that do the same work; shaded are the bucket sizes at which some mark is filled."
        + _standing_for(cases),
        nothing_to_draw(seen)
        or _why(
            bool((sizes["bucket_mib"] > 1).any()),
            "No strategy was measured with more than one bucket size.",
            "No selected strategy has more than one bucket size at one world size.",
        ),
        draw="buckets",
    )


def heat_section(seen: SessionData) -> Section:
    """Step time along algorithm and bucket size at once."""
    cases, sizes = seen.cases, _sizes(seen.cases)
    return Section(
        "heat",
        "Algorithm and bucket size together",
        "Step latency in ms; the deeper the blue, the faster, and lightest what is a quarter slower than the fastest "
        "cell or more. Outlined: what cannot be told apart from the fastest of all configurations that do the same "
        "work. An empty cell was not measured, or is not selected." + _standing_for(cases),
        nothing_to_draw(seen)
        or _why(
            bool(((sizes["bucket_mib"] > 1) & (sizes["algorithm"] > 1)).any()),
            "This needs at least two algorithms and two bucket sizes of one strategy and world size.",
            "The selected cases have no strategy and world size with two algorithms and two bucket sizes.",
        ),
        draw="heat",
    )


def algorithms_section(seen: SessionData) -> Section:
    """What an algorithm costs in a step."""
    own = measured(seen.cases)
    native = own["algorithm"] == "native"
    keys = [*_PLACE, "bucket_mib"]
    kinds = own.assign(native=native, other=~native).groupby(keys, dropna=False)[["native", "other"]].any()
    return Section(
        "algorithms",
        "What an algorithm costs in a step",
        "The step latency of an algorithm's fastest case over that of native's at the same strategy, ranks and bucket "
        "size: left of the line it is faster than native. Bars reach from the algorithm's fastest to its slowest "
        "launch, over that same latency of native, whose own launches spread as its bar shows.",
        nothing_to_draw(seen)
        or _why(
            bool(kinds.all(axis=1).any()),
            "No algorithm was measured beside native at the same strategy, world size and bucket size.",
            "No selected algorithm was measured beside native at the same strategy, world size and bucket size.",
        ),
        draw="algorithms",
    )


def scaling_section(seen: SessionData) -> Section:
    """Throughput and efficiency along the ranks."""
    table = seen.once(curves)
    kinds = " ".join(said for kind, said in _EACH_KIND.items() if (table["kind"] == kind).any())
    return Section(
        "scaling",
        "More ranks",
        f"{kinds} Efficiency is throughput over that of one rank times the ranks; where one rank was not measured, "
        "the smallest world size is the base. Of a strategy the selected curve with most world sizes, then the "
        "fastest, is drawn; where one strategy is selected, that of each algorithm. A line joins neighbouring world "
        "sizes; the ideal one may leave the figure." + headroom(table["strategy"], dashed=True),
        nothing_to_draw(seen)
        or _why(
            len(table) > 0,
            "Only one world size was measured, so nothing can be said about scaling."
            if measured(seen.cases)["world_size"].nunique() == 1
            else "No strategy was measured at two world sizes with the same work, algorithm and bucket size.",
            "No selected strategy has two world sizes with the same work, algorithm and bucket size.",
        ),
        draw="scaling",
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


def _standing_for(cases: pd.DataFrame) -> str:
    """That a point is the fastest of several, where it is so."""
    alike = measured(cases).duplicated([*_PLACE, "algorithm", "bucket_mib"])
    return " Where cases differ in more, the fastest stands for them." if alike.any() else ""
