"""The section of the variation between launches of a configuration."""

from __future__ import annotations

from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.launch_number import STATISTIC
from parabench.analysis.session import SessionData
from parabench.analysis.warnings.launches import AA_SPREAD, NOISY
from parabench.machine import accelerator
from parabench.report.cases import page_cases, page_launches
from parabench.report.figures.figures import BAND, Panel, in_rows, marks, plain
from parabench.report.palette import strategy_style
from parabench.report.spec import Section
from parabench.store.results import records

_FROM = "from its configuration's step time"


def spread_section(seen: SessionData) -> Section:
    """Return the section of the launches around the step times of their configurations."""
    cases = seen.once(page_cases)[["case_id", "shown", "strategy", "device", "statistic", "spread"]]
    launches = seen.once(page_launches).merge(cases, on="case_id")
    own = launches[(launches["counts"] > 0) & launches["from_case"].notna()]
    return Section(
        "spread",
        "Launch-to-launch variation",
        "Each launch relative to the step time of its configuration. The narrower the range, the smaller the "
        "differences that can be detected.",
        "No configuration has two valid launches, so their variation is unknown.",
        panels=[_spread(own)] if len(own) else [],
        reading="Outliers are never deleted: a launch that succeeded counts. A warning names configurations "
        f"whose launches differ by more than {format.percent(NOISY['cpu'])} on a CPU, or "
        f"{format.percent(NOISY[accelerator.TYPE])} on GPUs. On a CPU, ±{format.percent(AA_SPREAD['cpu'])} is shaded: "
        f"the variation of the {STATISTIC['cpu']} of equal launches.",
    )


def _spread(own: pd.DataFrame) -> Panel:
    """Return the launches around the step time of their configuration, with the largest differences on top."""
    widest = own.drop_duplicates("case_id", keep="last").sort_values("spread", ascending=False, kind="stable")
    own = own.assign(row=own["case_id"].map({case: row for row, case in enumerate(widest["case_id"])}))
    traces = []
    for strategy, group in own.groupby("strategy", sort=False):
        style = strategy_style(str(strategy))
        texts = [
            f"<b>{plain(one['label'])}</b><br>repetition {one['repetition']}: "
            f"{format.milliseconds(one['launch_step_s'])}<br>"
            f"{format.signed(one['from_case'])} {_FROM}"
            for one in records(group[["label", "repetition", "launch_step_s", "from_case"]])
        ]
        marker = {"size": 7, "opacity": 0.9, "color": style.color, "symbol": style.symbol}
        more = {"customdata": group["case_id"].to_list(), "showlegend": False}
        x, y = 100 * group["from_case"], group["row"].to_list()
        traces.append(marks(x, y, plain(str(strategy)), texts, marker, **more))
    title = f"{format.count(len(own), 'launch')} of {format.count(len(widest), 'configuration')}"
    zero = {"zeroline": True, "zerolinewidth": 1}
    look: dict[str, Any] = {"showlegend": False, "xaxis": zero, "shapes": _band(own), "which": "that differ most"}
    return in_rows(title, widest["shown"], f"{_FROM} (%)", traces, head=60, **look)


def _band(own: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the variation between launches of a configuration, if it is known for the statistic of all of them."""
    shares = {STATISTIC[device]: share for device, share in AA_SPREAD.items()}
    statistics = set(own["statistic"])
    if len(statistics) > 1 or not statistics <= shares.keys():
        return []
    share = 100 * shares[statistics.pop()]
    return [BAND | {"x0": -share, "x1": share, "yref": "paper", "y0": 0, "y1": 1}]
