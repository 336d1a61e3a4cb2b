"""The race of `parabench run`: how sharp the comparisons with the best are, and who is still in it, against time."""

from __future__ import annotations

import math

from parabench.analysis import format
from parabench.analysis.ranking.race import Look
from parabench.analysis.ranking.ranking import Answer
from parabench.analysis.stats.block_model import SHARP_ENOUGH
from parabench.report.figures.figures import Panel, lay_out, plain

_COLOUR = "#0072B2"
# A grey that is visible on white and on black.
_GREY = "#87909A"
# Names in the text of a point.
_MOST_NAMES = 4


def race_panel(answer: Answer) -> Panel | None:
    """Return a point for each look of a race; `None` if no look has a half-width.

    Dotted lines mark where cases left; on top is the number of those that stay.
    """
    sharp = [look for look in answer.race if look.half_width]
    if not sharp:
        return None
    labels = {each.case_id: each.label for each in answer.candidates}
    widths = [100 * (look.half_width or 0.0) for look in sharp]
    enough, end = 100 * SHARP_ENOUGH, answer.race[-1].seconds
    low, high = min(enough, *widths) / 1.5, 2 * max(enough, *widths)
    counted = [answer.race[0], *(look for look in answer.race[1:] if look.left)]
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [tick for power in powers for digit in (1, 2, 5) if low <= (tick := digit * 10.0**power) <= high]
    width = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "half-width",
        "x": [round(look.seconds, 1) for look in sharp],
        "y": widths,
        "line": {"color": _COLOUR},
        "marker": {"color": _COLOUR, "size": 8},
        "text": [_hover(look, labels) for look in sharp],
        "hovertemplate": "±%{y:.3~g} % %{text}<extra></extra>",
    }
    goal = {
        "type": "scatter",
        "mode": "lines",
        "name": f"{enough:g} %: sharp enough",
        "x": [0, end],
        "y": [enough, enough],
        "line": {"color": _GREY, "dash": "dash", "width": 1.5},
        "hoverinfo": "skip",
    }
    line = {"type": "line", "layer": "below", "yref": "paper", "y0": 0, "y1": 1}
    style = {"color": _GREY, "dash": "dot", "width": 1}
    count = {"y": 1, "yref": "paper", "xanchor": "left", "yanchor": "top", "xshift": 2, "showarrow": False}
    figure = lay_out(
        [width, goal],
        "seconds of launches",
        "half-width (%)",
        xaxis={"range": [0, 1.06 * end]},
        yaxis={
            "type": "log",
            "range": [math.log10(low), math.log10(high)],
            "tickvals": ticks,
            "ticktext": [f"{tick:g}" for tick in ticks],
        },
        shapes=[line | {"x0": look.seconds, "x1": look.seconds, "line": style} for look in answer.race if look.left],
        annotations=[count | {"x": look.seconds, "text": str(len(look.racing))} for look in counted],
    )
    return Panel(answer.heading, figure, 340)


def _hover(look: Look, labels: dict[str, str]) -> str:
    """Return the text of a point after its half-width."""
    parts = [f"after block {look.block + 1}", f"{format.count(len(look.racing), 'case')} still in the race"]
    if look.left:
        names = format.listed((plain(labels[each.case_id]) for each in look.left), _MOST_NAMES)
        parts.append(f"left: {names}; {format.percent(min(each.at_least for each in look.left))} or more behind")
    return "<br>".join(parts)
