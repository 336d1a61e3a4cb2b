"""What sections have in common: figures of each work apart, and how their words are said."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pandas as pd

from parabench.analysis.tables import same_work
from parabench.analysis.text import format
from parabench.report.figures.figures import Panel
from parabench.strategies import entry_of

Draw = Callable[[pd.DataFrame], list[Panel]]


def each_work(cases: pd.DataFrame, draw: Draw) -> list[Panel]:
    """What `draw` makes of the cases of each work, with the work in the heading where there are several."""
    works = same_work(cases)
    drawn = [(work, panel) for work, group in works for panel in draw(group)]
    if len(works) < 2:
        return [panel for _, panel in drawn]
    return [replace(panel, title=" · ".join(filter(None, (panel.title, work_name(work))))) for work, panel in drawn]


def work_name(work: dict[str, Any]) -> str:
    """What sets a work apart from others: model, data, batch, precision and device."""
    data = f"{work['data']} ({work['vocabulary']})" if work["vocabulary"] else work["data"]
    batch = f"{work['global_batch']} × {work['seq_len']}" if work["seq_len"] > 1 else work["global_batch"]
    return f"{work['model']}, {data}, batch {batch}, {work['precision']}, {work['device']}"


def headroom(strategies: Iterable[str], *, dashed: bool = False) -> str:
    """What a mark in a figure means, where one is there; `dashed` where it is a line's dashes."""
    unranked = [name for name in dict.fromkeys(strategies) if not entry_of(name).ranked]
    mark = " (dashed)" if dashed else ""
    return f" {', '.join(unranked)}{mark} exchanges nothing: headroom, no answer." if unranked else ""


def ms(seconds: float | None) -> str:
    """Milliseconds in a table whose head says so; a dash where they are unknown."""
    return format.digits(seconds * 1e3) if format.known(seconds) else "–"
