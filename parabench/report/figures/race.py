"""The race of `parabench run`: how sharp the comparisons with the best are, and who is still in it, against time."""

from __future__ import annotations

import math
from collections.abc import Iterable

from parabench.analysis.ranking.race import Look
from parabench.analysis.ranking.ranking import Answer
from parabench.analysis.stats.block_model import SHARP_ENOUGH
from parabench.analysis.text import format
from parabench.report.figures.figures import Figure, Panel, lay_out, plain

_COLOUR = "#0072B2"
# A grey that is seen on white and on black.
_GREY = "#87909A"
# Names in what hovering says.
_MOST_NAMES = 4


def race_panel(answer: Answer) -> Panel | None:
    """A point for each look at a race of several; where cases left, a dotted line, and where their number changes, how
    many are in the race. None where no look has a half-width."""
    sharp = [(look, 100 * look.half_width) for look in answer.race if look.half_width]
    return Panel(answer.heading, _figure(answer, sharp), 340) if sharp else None


def _figure(answer: Answer, sharp: list[tuple[Look, float]]) -> Figure:
    labels = {each.case_id: each.label for each in answer.candidates}
    widths, enough, end = [width for _, width in sharp], 100 * SHARP_ENOUGH, answer.race[-1].seconds
    low, high = min(enough, *widths) / 1.5, 2 * max(enough, *widths)
    exits = [look for look in answer.race if look.left]
    # A case may come back, where the others turn out slower.
    before = [None, *(len(look.racing) for look in answer.race)]
    counted = [look for look, many in zip(answer.race, before, strict=False) if len(look.racing) != many]
    return lay_out(
        [
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": "half-width",
                "x": [round(look.seconds, 1) for look, _ in sharp],
                "y": widths,
                "line": {"color": _COLOUR},
                "marker": {"color": _COLOUR, "size": 8},
                "text": [_said(look, labels) for look, _ in sharp],
                "hovertemplate": "±%{y:.3~g} % %{text}<extra></extra>",
            },
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"{enough:g} %: sharp enough",
                "x": [0, end],
                "y": [enough, enough],
                "line": {"color": _GREY, "dash": "dash", "width": 1.5},
                "hoverinfo": "skip",
            },
        ],
        "seconds of launches",
        "half-width (%)",
        xaxis={"range": [0, 1.06 * end]},
        yaxis={"type": "log", "range": [math.log10(low), math.log10(high)], **_ticks(low, high)},
        shapes=[
            {
                "type": "line",
                "layer": "below",
                "x0": look.seconds,
                "x1": look.seconds,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": _GREY, "dash": "dot", "width": 1},
            }
            for look in exits
        ],
        annotations=[
            {
                "x": look.seconds,
                "y": 1,
                "yref": "paper",
                "xanchor": "left",
                "yanchor": "top",
                "xshift": 2,
                "showarrow": False,
                "text": str(len(look.racing)),
            }
            for look in counted
        ],
    )


def _said(look: Look, labels: dict[str, str]) -> str:
    """What hovering over a look says after its half-width."""
    said = [f"after block {look.block + 1}", f"{format.count(len(look.racing), 'case')} still in the race"]
    if look.left:
        names = format.listed((plain(labels[each.case_id]) for each in look.left), _MOST_NAMES)
        said.append(f"left: {names}; {format.percent(min(each.at_least for each in look.left))} or more behind")
    return "<br>".join(said)


def _ticks(low: float, high: float) -> dict[str, Iterable[object]]:
    """1, 2 and 5 of every power of ten between the ends."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [tick for power in powers for digit in (1, 2, 5) if low <= (tick := digit * 10.0**power) <= high]
    return {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
