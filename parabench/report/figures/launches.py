"""Figures of launches: their spread around the step time of their configuration, their drift, and their order."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.launch_number import STATISTIC
from parabench.analysis.session import SessionData
from parabench.analysis.warnings.launches import AA_SPREAD, DRIFTS
from parabench.report.cases import page_cases, page_launches
from parabench.report.figures.figures import ALL, BAND, GREY, Panel, Trace, in_rows, lay_out, marks, plain
from parabench.report.palette import strategy_style

# With more strategies, a legend would take the room of the figure.
_MOST_NAMES = 4
_FROM = "from its case's step time"
_IN_ORDER = "launches, as they ran"
_ZERO_LINE = {"zeroline": True, "zerolinewidth": 1}


def _launches(seen: SessionData) -> pd.DataFrame:
    """Return the launches of `page_launches` with fields of their configurations, and where they differ from these."""
    cases = seen.once(page_cases)[["case_id", "shown", "strategy", "device", "statistic", "spread"]]
    return seen.once(page_launches).merge(cases, on="case_id")


def _deviating(seen: SessionData) -> pd.DataFrame:
    """Return the launches whose configuration has several, with their places and texts in the figures."""
    own = seen.once(_launches).dropna(subset=["from_case"]).reset_index(drop=True)
    return own.assign(
        place=own.index + 1,
        percent=100 * own["from_case"],
        text=[f"{format.signed(share)} {_FROM}" for share in own["from_case"]],
    )


def spread(seen: SessionData) -> list[Panel]:
    """Return the launches around the step time of their configuration, with the largest differences on top."""
    own = _deviating(seen)
    if own.empty:
        return []
    widest = own.drop_duplicates("case_id", keep="last").sort_values("spread", ascending=False, kind="stable")
    rows = {case: row for row, case in enumerate(widest["case_id"])}
    traces = _marks(own.assign(y=own["case_id"].map(rows)), "percent", "y")
    title = f"{format.count(len(own), 'launch')} of {format.count(len(widest), 'case')}"
    look: dict[str, Any] = {"showlegend": False, "xaxis": _ZERO_LINE, "shapes": _band(own, "x")}
    return [in_rows(title, widest["shown"], f"{_FROM} (%)", traces, head=60, which="that differ most", **look)]


def drift(seen: SessionData) -> list[Panel]:
    """Return the last third of each launch relative to its first third, in the order in which launches ran."""
    own = seen.once(_launches)
    own = own[(own["counts"] > 0) & own["drift"].notna()].reset_index(drop=True)
    if own.empty:
        return []
    limits = own["device"].map(DRIFTS).astype(float)
    texts = [f"drift {format.signed(share)}" for share in own["drift"]]
    traces = _marks(own.assign(place=own.index + 1, percent=100 * own["drift"], text=texts), "place", "percent")
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "line": {"color": GREY, "width": 1.2, "dash": "dash"}}
    ends = [sign * 100 * limit for limit in limits.dropna().unique() for sign in (-1, 1)]
    shapes = [line | {"y0": end, "y1": end} for end in ends]
    beyond = int((own["drift"].abs() > limits).sum())
    title = f"{format.count(len(own), 'launch')} in all · {beyond:,} beyond the dashed lines"
    return [_in_order(title, traces, "last third over first (%)", len(own), shapes)]


def order(seen: SessionData) -> list[Panel]:
    """Return the launches in the order in which they ran, and the median of each block."""
    own = _deviating(seen)
    if own.empty:
        return []
    blocks = own.groupby("block", sort=False)
    levels = blocks.agg(first=("place", "first"), last=("place", "last"), level=("percent", "median"))
    # A line for each block, and a gap after it.
    x = [at for first, last in zip(levels["first"], levels["last"], strict=True) for at in (first, last, math.nan)]
    y = [at for level in levels["level"] for at in (level, level, None)]
    texts = [f"block {block}: median {format.signed(level / 100)}" for block, level in levels["level"].items()]
    hovers = [at for text in texts for at in (text, text, "")]
    look = {"mode": "lines+markers", "line": {"color": GREY, "width": 2}, "showlegend": _has_legend(own), "meta": ALL}
    medians = marks(x, y, "median of a block", hovers, {"color": GREY, "size": 5}, **look)
    title = f"{format.count(len(own), 'launch')} in all"
    traces = [*_marks(own, "place", "percent"), medians]
    return [_in_order(title, traces, f"{_FROM} (%)", len(own), _band(own, "y"))]


def _in_order(title: str, traces: list[Trace], y: str, launches: int, shapes: list[dict[str, Any]]) -> Panel:
    whole = {"dtick": 1} if launches <= 12 else {}  # no fractions of a launch on a short axis
    return Panel(title, lay_out(traces, _IN_ORDER, y, xaxis=whole, yaxis=_ZERO_LINE, shapes=shapes), 340, wide=True)


def _has_legend(launches: pd.DataFrame) -> bool:
    return 1 < launches["strategy"].nunique() <= _MOST_NAMES


def _marks(launches: pd.DataFrame, x: str, y: str) -> list[Trace]:
    """Return a trace of each strategy with marks at the columns `x` and `y`."""
    look = {"size": 4, "opacity": 0.6} if len(launches) > 400 else {"size": 7, "opacity": 0.9}
    names = ("label", "block", "launch_step_s", "text")
    hovers = [
        f"<b>{plain(label)}</b><br>block {block}: {format.milliseconds(step_s)} per step<br>{text}"
        for label, block, step_s, text in launches[list(names)].itertuples(index=False)
    ]
    traces = []
    for strategy, own in launches.assign(hover=hovers).groupby("strategy", sort=False):
        style = strategy_style(str(strategy))
        more = {"customdata": own["case_id"].to_list(), "showlegend": _has_legend(launches)}
        marker = look | {"color": style.color, "symbol": style.symbol}
        traces.append(marks(own[x], own[y].to_list(), plain(str(strategy)), own["hover"].to_list(), marker, **more))
    return traces


def _band(own: pd.DataFrame, axis: str) -> list[dict[str, Any]]:
    """Return the variation of launches of the same configuration, if it is known for the statistic of all of them."""
    shares = {STATISTIC[device]: share for device, share in AA_SPREAD.items()}
    statistics = set(own["statistic"])
    if len(statistics) > 1 or not statistics <= shares.keys():
        return []
    share, other = 100 * shares[statistics.pop()], "y" if axis == "x" else "x"
    ends = {f"{axis}0": -share, f"{axis}1": share, f"{other}ref": "paper", f"{other}0": 0, f"{other}1": 1}
    return [BAND | ends]
