"""Sections of the answer: the ranking, step time against peak memory, and against bucket size, algorithm and ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parabench.analysis.ranking.best import answered
from parabench.analysis.ranking.sentences import sentences
from parabench.analysis.scaling import STRONG, WEAK, curves
from parabench.analysis.session import SessionData
from parabench.report.cases import page_cases
from parabench.report.details import numbers_of
from parabench.report.figures.cases import front, ranking
from parabench.report.figures.curves import algorithms, buckets, scaling
from parabench.report.figures.figures import Panel, unranked
from parabench.report.spec import Section, nothing_to_draw
from parabench.store.results import records


def verdicts(seen: SessionData) -> list[dict[str, Any]]:
    """Return the answer of each workload for the first tab of the page.

    - `heading`: the name of the workload if there are several.
    - `verdict`: the first sentences; `leads`: the others; `decided`: whether something is distinguishable.
    - `numbers`: the results of the best (`details.numbers_of`); `label` and `code`: its name, and its lines of Python.
    - `clear`: whether the best is the winner.
    """
    cases = {row["case_id"]: row for row in records(seen.once(page_cases))}
    found = []
    for work in seen.once(answered):
        workload, texts = work["workloads"][0], sentences(work)
        named = "" if workload["winner"] or not workload["decided"] else "best estimate: "
        first = next((row for row in work["candidates"] if row["place"] == "best"), None)
        found.append(
            {
                "heading": workload["workload"],
                "verdict": " ".join(texts[:2]),
                "leads": texts[2:],
                "decided": workload["decided"],
                "numbers": numbers_of(cases[first["case_id"]], named) if first else [],
                "label": first["label"] if first else "",
                "code": first["code"] if first and workload["decided"] else "",
                "clear": workload["winner"] is not None,
            }
        )
    return found


def ranking_section(seen: SessionData) -> Section:
    """Return the ranking of the selected cases: relative to the best, or their step times if no interval is known."""
    caption = (
        "Slowdown of each selected configuration relative to the best, with 95% intervals; left is better. Filled "
        "marks are not statistically distinguishable from the best."
    )
    reading = (
        "Intervals hold for all comparisons with the best at once (Hsu's multiple comparisons with the best). A "
        "configuration may be the best if its interval reaches 0. Intervals exclude changes that affect all "
        "configurations of a repetition or a shared launch. An eliminated configuration was slower than the best by at "
        "least the bound next to its name. The fastest configuration is eliminated by mistake in at most 1 of 20 runs."
    )
    if not seen.once(page_cases)["compared"].any():
        caption = (
            "Step time of the fastest selected configurations; lower is better. Filled marks are not statistically "
            "distinguishable from the fastest."
        )
        reading = (
            "The line spans the fastest to the slowest launch of a configuration. The axis does not start at zero."
        )
    empty = nothing_to_draw(seen) or "No selected configuration has a step time."
    return Section("ranking", "Ranking", caption, empty, panels=ranking(seen), reading=reading)


def front_section(seen: SessionData) -> Section | None:
    """Return the Pareto front; `None` if one configuration is best in both."""
    if not seen.once(page_cases)["front"].any():
        return None
    return Section(
        "front",
        "Step time against peak memory",
        "Left and down is better. Filled marks, joined by the line, are Pareto-optimal.",
        "The selected configurations have no trade-off between step time and peak memory.",
        panels=front(seen),
        reading="A configuration is Pareto-optimal unless another is significantly better in one of the two, and not "
        "significantly worse in the other. Filters do not change this. Points are means over launches. Memory is from "
        "the rank with the highest peak. The axes do not start at zero.",
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
    "“default” is PyTorch's own bucket setting. A list such as 1+4 has the cap of each bucket; the last cap applies to "
    "all further buckets. The axis does not start at zero.",
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
        reading="Efficiency in strong scaling is throughput over the ranks times the throughput of one rank. In weak "
        "scaling, it is the step time of one rank over the step time of the ranks. If one rank was not measured, the "
        "smallest world size is the base. Each strategy has its curve with most world sizes, then the fastest. A "
        "single strategy has a curve for each algorithm, or else bucket size. The ideal line may leave the figure."
        + unranked(table["strategy"], dashed=True),
    )
