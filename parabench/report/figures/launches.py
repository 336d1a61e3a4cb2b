"""Figures of launches: their spread around the step time of their configuration, and their drift."""

from __future__ import annotations

from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.launch_number import STATISTIC
from parabench.analysis.session import SessionData
from parabench.analysis.warnings.launches import AA_SPREAD, DRIFTS
from parabench.report.cases import page_cases, page_launches
from parabench.report.figures.figures import BAND, GREY, Panel, Trace, in_rows, lay_out, marks, plain
from parabench.report.palette import strategy_style

# A legend of more strategies leaves no room for the figure.
_MOST_NAMES = 4
_FROM = "from its configuration's step time"
_ZERO_LINE = {"zeroline": True, "zerolinewidth": 1}


def _launches(seen: SessionData, column: str) -> pd.DataFrame:
    """Return the counted launches with a value in `column`, and fields of their configurations."""
    cases = seen.once(page_cases)[["case_id", "shown", "strategy", "device", "statistic", "spread"]]
    launches = seen.once(page_launches).merge(cases, on="case_id")
    return launches[(launches["counts"] > 0) & launches[column].notna()].reset_index(drop=True)


def spread(seen: SessionData) -> list[Panel]:
    """Return the launches around the step time of their configuration, with the largest differences on top."""
    own = _launches(seen, "from_case")
    if own.empty:
        return []
    widest = own.drop_duplicates("case_id", keep="last").sort_values("spread", ascending=False, kind="stable")
    rows = {case: row for row, case in enumerate(widest["case_id"])}
    texts = [f"{format.signed(share)} {_FROM}" for share in own["from_case"]]
    traces = _marks(own.assign(x=100 * own["from_case"], y=own["case_id"].map(rows), text=texts))
    title = f"{format.count(len(own), 'launch')} of {format.count(len(widest), 'configuration')}"
    look: dict[str, Any] = {"showlegend": False, "xaxis": _ZERO_LINE, "shapes": _band(own)}
    return [in_rows(title, widest["shown"], f"{_FROM} (%)", traces, head=60, which="that differ most", **look)]


def drift(seen: SessionData) -> list[Panel]:
    """Return the last third of each launch relative to its first third, in run order."""
    own = _launches(seen, "drift")
    if own.empty:
        return []
    limits = own["device"].map(DRIFTS).astype(float)
    texts = [f"drift {format.signed(share)}" for share in own["drift"]]
    traces = _marks(own.assign(x=own.index + 1, y=100 * own["drift"], text=texts))
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "line": {"color": GREY, "width": 1.2, "dash": "dash"}}
    ends = [sign * 100 * limit for limit in limits.dropna().unique() for sign in (-1, 1)]
    beyond = int((own["drift"].abs() > limits).sum())
    figure = lay_out(
        traces,
        "launches, in run order",
        "last third over first (%)",
        xaxis={"dtick": 1} if len(own) <= 12 else {},  # no fractions of a launch on a short axis
        yaxis=_ZERO_LINE,
        shapes=[line | {"y0": end, "y1": end} for end in ends],
    )
    title = f"{format.count(len(own), 'launch')} in all · {beyond:,} beyond the dashed lines"
    return [Panel(title, figure, 340, wide=True)]


def _marks(launches: pd.DataFrame) -> list[Trace]:
    """Return a trace of each strategy with marks at the columns `x` and `y`, and `text` for hovering."""
    look = {"size": 4, "opacity": 0.6} if len(launches) > 400 else {"size": 7, "opacity": 0.9}
    legend = 1 < launches["strategy"].nunique() <= _MOST_NAMES
    names = ["label", "block", "launch_step_s", "text"]
    hovers = [
        f"<b>{plain(label)}</b><br>block {block}: {format.milliseconds(step_s)} per step<br>{text}"
        for label, block, step_s, text in launches[names].itertuples(index=False)
    ]
    traces = []
    for strategy, own in launches.assign(hover=hovers).groupby("strategy", sort=False):
        style = strategy_style(str(strategy))
        more = {"customdata": own["case_id"].to_list(), "showlegend": legend}
        marker = look | {"color": style.color, "symbol": style.symbol}
        traces.append(marks(own["x"], own["y"].to_list(), plain(str(strategy)), own["hover"].to_list(), marker, **more))
    return traces


def _band(own: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the variation between launches of a configuration, if it is known for the statistic of all of them."""
    shares = {STATISTIC[device]: share for device, share in AA_SPREAD.items()}
    statistics = set(own["statistic"])
    if len(statistics) > 1 or not statistics <= shares.keys():
        return []
    share = 100 * shares[statistics.pop()]
    return [BAND | {"x0": -share, "x1": share, "yref": "paper", "y0": 0, "y1": 1}]
