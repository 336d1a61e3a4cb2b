"""The trade between step time and peak memory, as a part of the report."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from parabench.analysis import words
from parabench.analysis.evidence import Evidence
from parabench.analysis.sweet_spot.answer import Answer
from parabench.analysis.sweet_spot.best import spots
from parabench.pages.figures import Panel, lay_out, listed, plain
from parabench.pages.palette import strategy_line, symbol_of
from parabench.pages.panels import ms
from parabench.pages.section import Section, Table
from parabench.record import MIB

# Seen on light and dark pages.
_EDGE = "#888888"


def front_section(seen: Evidence) -> Section | None:
    """Only where there is a trade: one configuration that is best in both needs no section."""
    answers = [answer for answer in seen.once(spots) if len(answer.front) > 1]
    if not answers:
        return None
    peaks = _peaks(seen)
    return Section(
        "front",
        "Step time against peak memory",
        "Left and down is better. The line joins the configurations that no other beats in both: one beats another "
        "when it is told apart as better in one of them and not as worse in the other. Means over launches; memory is "
        "the fullest rank's.",
        [_panel(answer, peaks) for answer in answers],
        "",
        tuple(_table(answer) for answer in answers),
    )


def _peaks(seen: Evidence) -> pd.Series[float]:
    """Each case's peak memory in bytes, mean over launches on the log scale."""
    logs: pd.Series[float] = np.log(seen.good["peak_memory_bytes"])
    return logs.groupby(seen.good["case_id"]).mean().map(np.exp)


def _panel(answer: Answer, peaks: pd.Series[float]) -> Panel:
    figure = go.Figure()
    figure.add_scatter(
        x=[point.latency_s * 1e3 for point in answer.front],
        y=[point.peak_memory_bytes / MIB for point in answer.front],
        name="beaten by none",
        mode="lines",
        line={"color": _EDGE, "width": 1.5, "shape": "hv"},
        hoverinfo="skip",
    )
    rows = pd.DataFrame(
        [(each.strategy, each.label, each.latency_s * 1e3, peaks[each.case_id] / MIB) for each in answer.candidates],
        columns=["strategy", "label", "ms", "mib"],
    ).dropna()
    for strategy, own in rows.groupby("strategy", sort=False):
        figure.add_scatter(
            x=listed(own["ms"]),
            y=listed(own["mib"]),
            name=str(strategy),
            mode="markers",
            marker={"color": strategy_line(str(strategy))["color"], "symbol": symbol_of(str(strategy)), "size": 9},
            customdata=[plain(label) for label in own["label"]],
            hovertemplate="%{customdata}: %{x:.3~f} ms, %{y:,.0f} MiB<extra></extra>",
        )
    lay_out(figure, "step latency (ms)", "peak memory of a rank (MiB)")
    return Panel(answer.heading, figure, 340 + 20 * (rows["strategy"].nunique() + 1))


def _table(answer: Answer) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            point.label,
            ms(point.latency_s),
            words.digits(point.peak_memory_bytes / MIB),
            words.percent(point.slower) if point is not answer.front[0] else "–",
            words.percent(point.less_memory) if point is not answer.front[0] else "–",
        )
        for point in answer.front
    ]
    head = ("Beaten by no other in both", "Step, ms", "Peak, MiB", "Slower", "Less memory")
    return Table(" · ".join(filter(None, (head[0], answer.heading))), head, rows, closed=False)
