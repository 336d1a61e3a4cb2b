"""What a rank is predicted to train in a second, over the number of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from parabench.analysis.prediction.predict import Prediction
from parabench.analysis.text import format
from parabench.plan.case import Case
from parabench.report.figures.figures import Panel, Trace, lay_out, plain
from parabench.report.palette import strategy_line, symbol_of

# How much of the figure shows through a band.
_BAND = 0.15
# How many times more ranks than the most, and fewer than the fewest, there is room for.
_ASIDE = 1.2


def prediction_panel(title: str, curves: Mapping[str, Sequence[Prediction]]) -> Panel:
    """A line with its 90 % band for each strategy, of predictions by rising ranks, of one prediction a dash with its
    interval; measured steps as marks, and as thin dashes the rate of the most ranks that were measured."""
    traces = [trace for strategy, found in curves.items() for trace in _curve(strategy, found)]
    sizes = sorted({each.case.world_size for found in curves.values() for each in found})
    case = next(iter(curves.values()))[0].case
    figure = lay_out(
        traces,
        "ranks",
        f"{format.unit_of(case.seq_len)}/s of a rank",
        xaxis={
            "type": "log",
            "tickvals": sizes,
            "ticktext": list(map(str, sizes)),
            "range": [math.log10(sizes[0] / _ASIDE), math.log10(sizes[-1] * _ASIDE)],
        },
        yaxis={"rangemode": "tozero"},
        showlegend=True,
    )
    return Panel(title, figure, 360 + 20 * len(curves))


def _curve(strategy: str, found: Sequence[Prediction]) -> Iterator[Trace]:
    colour, sizes = strategy_line(strategy)["color"], [each.case.world_size for each in found]
    style = {"type": "scatter", "legendgroup": strategy}
    unnamed = style | {"showlegend": False}
    rates = [_rate(each.case, each.step_s) for each in found]
    low, high = ([_rate(each.case, end) for each, end in ends] for ends in _ends(found))
    line = style | {
        "x": sizes,
        "y": rates,
        "mode": "lines",
        "name": plain(strategy),
        "line": {"color": colour, "width": 2},
        "customdata": [_hovered(each) for each in found],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    if len(found) == 1:  # which makes no line
        beyond = {"array": [high[0] - rates[0]], "arrayminus": [rates[0] - low[0]]}
        yield line | {
            "mode": "markers",
            "marker": {"color": colour, "symbol": "line-ew-open", "size": 14, "line": {"width": 2}},
            "error_y": {"type": "data", "symmetric": False, "thickness": 1.5, "width": 0} | beyond,
        }
    else:
        yield unnamed | {
            "x": [*sizes, *reversed(sizes)],
            "y": [*high, *reversed(low)],
            "mode": "lines",
            "fill": "toself",
            "fillcolor": _faint(colour),
            "line": {"width": 0},
            "hoverinfo": "skip",
        }
        yield line
    measured = [(each.case, each.measured_s) for each in found if each.measured_s is not None]
    if not measured:
        return
    yield unnamed | {
        "x": [case.world_size for case, _ in measured],
        "y": [_rate(case, step_s) for case, step_s in measured],
        "mode": "markers",
        "marker": {"color": colour, "symbol": symbol_of(strategy), "size": 9},
        "customdata": [f"{plain(case.label)}<br>measured: {format.milliseconds(step_s)}" for case, step_s in measured],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    last, step_s = measured[-1]
    kept = [(last.world_size, _rate(last, step_s))]
    kept += [
        (each.case.world_size, _rate(each.case, each.constant_s))
        for each in found
        if each.case.world_size > last.world_size and each.constant_s is not None
    ]
    if len(kept) > 1:
        yield unnamed | {
            "x": [ranks for ranks, _ in kept],
            "y": [rate for _, rate in kept],
            "mode": "lines",
            "line": {"color": colour, "width": 1, "dash": "dash"},
            "hoverinfo": "skip",
        }


def _ends(found: Sequence[Prediction]) -> tuple[list[tuple[Prediction, float]], list[tuple[Prediction, float]]]:
    """Each prediction with the longest step of its interval, then with the shortest."""
    return [(each, each.high_s) for each in found], [(each, each.low_s) for each in found]


def _rate(case: Case, step_s: float) -> float:
    """What each of its ranks trains in a second: tokens, or samples where there are none."""
    return case.global_batch * case.seq_len / step_s / case.world_size


def _hovered(each: Prediction) -> str:
    low, high = (format.digits(seconds * 1e3) for seconds in (each.low_s, each.high_s))
    return f"{plain(each.case.label)}<br>predicted: {format.milliseconds(each.step_s)} (90 %: {low} to {high})"


def _faint(colour: str) -> str:
    """A colour as #rrggbb that lets what is behind it show."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{_BAND})"
