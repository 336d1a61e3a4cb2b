"""Figures of memory: peaks against the training state by formula, and what the training state consists of."""

from __future__ import annotations

from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.report.cases import page_cases
from parabench.report.figures.figures import (
    FROM_ZERO,
    GREY,
    LEGEND_NAME,
    PARTS_LEGEND,
    Panel,
    Trace,
    by_work,
    case_bars,
    cut,
    in_rows,
    lay_out,
    listed,
    marks,
    measured,
    plain,
    titled,
)
from parabench.report.palette import PEAK, STATE, strategy_style
from parabench.store.record import MIB

# Dark with a light edge, so that it is visible on bars and pages of any color.
_THEORY = {"symbol": "diamond-tall", "size": 15, "color": "#111111", "line": {"width": 1.5, "color": "#ffffff"}}


def peak_memory(seen: SessionData) -> list[Panel]:
    """Return the largest peaks of a rank, with its training state by formula."""
    cases = measured(seen.once(page_cases)).dropna(subset=list(PEAK), how="all")
    return [_peaks(own) for own in by_work(cases)]


def _peaks(own: pd.DataFrame) -> Panel:
    names = {column: name for column, (_, name) in PEAK.items() if own[column].notna().any()}
    if own["device"].iloc[0] == "cpu" and "peak_memory_bytes" in names:
        names["peak_memory_bytes"] = "resident set"
    traces = [_bars(own, column, name, PEAK[column][0]) for column, name in names.items()]
    traces += _theory(own, "training state, theory")
    title = "peak memory (MiB)" if len(names) > 1 else f"peak {next(iter(names.values()))} of a rank (MiB)"
    look: dict[str, Any] = {"barmode": "group", "bargap": 0.35, "legend": PARTS_LEGEND, "xaxis": FROM_ZERO}
    look["showlegend"] = len(traces) > 1
    return in_rows(titled(own), own["shown"], title, traces, head=110, least=1 + len(names), **look)


def _bars(own: pd.DataFrame, column: str, name: str, color: str) -> Trace:
    texts = [f"{name}: {format.mebibytes(size)}" for size in own[column]]
    return case_bars(own, own[column].astype(float) / MIB, name, color, texts)


def _theory(own: pd.DataFrame, name: str) -> list[Trace]:
    """Return marks at the training states by formula; none if no formula is known."""
    if own["state_theory_bytes"].isna().all():
        return []
    x, ids = listed(own["state_theory_bytes"], 1 / MIB), own["case_id"].to_list()
    return [marks(x, [*range(len(own))], name, _state_texts(own), _THEORY, customdata=ids)]


def _state_texts(own: pd.DataFrame) -> list[str]:
    return [
        f"training state by theory: {format.mebibytes(theory)}<br>measured: {format.mebibytes(size)}<br>{hover}"
        for theory, size, hover in zip(own["state_theory_bytes"], own["state_bytes"], own["hover"], strict=True)
    ]


def states(seen: SessionData) -> list[Panel]:
    """Return the training state of a rank against the world size, and what it consists of, by world size."""
    cases = seen.once(page_cases)
    cases = cases[cases["state_bytes"].notna()]
    several = cases["model"].nunique() > 1
    panels = []
    for model, own in cases.groupby("model", sort=False):
        once, apart = _together(own), f" · {plain(str(model))}" if several else ""
        sizes = [*once.groupby("world_size")]
        if len(sizes) > 1:
            panels.append(_against_world_size(once, f"Against the world size{apart}"))
        panels += [_made_of(group, f"{format.count(int(size), 'rank')}{apart}") for size, group in sizes]
    return panels


def _together(cases: pd.DataFrame) -> pd.DataFrame:
    """Return one row for all configurations of a strategy that hold the same, with all their ids. Least is first."""
    key = ["strategy", "world_size", *STATE]
    groups = cases.groupby(key, sort=False)
    rows = cases.drop_duplicates(key).assign(
        case_id=groups["case_id"].agg("|".join).to_list(),
        hover=groups["label"].agg(lambda labels: f"<b>{plain(format.listed(labels, most=4))}</b>").to_list(),
        shown=groups["shown"].agg(lambda names: format.listed(names, most=1)).to_list(),
    )
    return rows.sort_values("state_bytes", kind="stable")


def _against_world_size(once: pd.DataFrame, title: str) -> Panel:
    """Return a line for each strategy, through the options that hold least."""
    traces: list[Trace] = []
    ring = {"size": 15, "symbol": "circle-open", "color": GREY, "line": {"width": 1.5}}
    for strategy, own in once.groupby("strategy", sort=False):
        style, own = strategy_style(str(strategy)), own.sort_values("world_size", kind="stable")
        marker, again = {"size": 8, "symbol": style.symbol, "color": style.color}, own.duplicated("world_size")
        traces.append(_at_sizes(own[~again], marker, mode="lines+markers", line=style.line, showlegend=True))
        if again.any():
            traces.append(_at_sizes(own[again], marker))
        traces.append(_at_sizes(own, ring | {"color": style.color}, "state_theory_bytes"))
    if once["state_theory_bytes"].notna().any():
        legend = {"type": "scatter", "mode": "markers", "name": "theory", "x": [None], "y": [None], "marker": ring}
        traces.append(legend)
    sizes = sorted(map(int, once["world_size"].unique()))
    axis = {"type": "log", "tickvals": sizes, "ticktext": [*map(str, sizes)]}
    figure = lay_out(traces, "world size (ranks)", "training state (MiB)", xaxis=axis, yaxis=FROM_ZERO)
    return Panel(title, figure, 340 + 20 * (once["strategy"].nunique() + 1))


def _at_sizes(own: pd.DataFrame, marker: dict[str, Any], column: str = "state_bytes", **more: Any) -> Trace:
    strategy, y = str(own["strategy"].iloc[0]), listed(own[column], 1 / MIB)
    more = {"showlegend": False, "legendgroup": strategy, "customdata": own["case_id"].to_list()} | more
    return marks(own["world_size"], y, cut(strategy, LEGEND_NAME), _state_texts(own), marker, **more)


def _made_of(own: pd.DataFrame, title: str) -> Panel:
    traces = [_bars(own, column, name, color) for column, (color, name) in STATE.items()]
    look: dict[str, Any] = {"barmode": "stack", "bargap": 0.35, "legend": PARTS_LEGEND, "xaxis": FROM_ZERO}
    traces += _theory(own, "theory")
    look |= {"wide": False, "which": "that hold least"}
    return in_rows(title, own["shown"], "training state (MiB)", traces, head=140, least=2, **look)
