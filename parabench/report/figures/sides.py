"""Figures of several sides, which are compared with the first; a color and a symbol for each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from parabench.analysis import format
from parabench.analysis.compare.cases import CaseResult, Outcome
from parabench.analysis.compare.overall import Overall, interval
from parabench.analysis.compare.several import SHARED_WORK, Ratio, Row, Several
from parabench.analysis.numbers import same_work
from parabench.analysis.stats.contrasts import Mean
from parabench.plan.case import Case
from parabench.report.figures.figures import (
    ALL,
    ERROR_BARS,
    FROM_ZERO,
    Panel,
    Trace,
    cut,
    in_rows,
    marked,
    marks,
    plain,
    round_numbers,
    vertical,
)
from parabench.report.palette import side_style
from parabench.store.record import MIB

# Rows of a figure that are shown at once.
MOST_DOTS = 30
# Characters of a side's name in a legend.
SIDE_NAME = 32
# The axis reaches at most this many times as far as its points: an interval of two launches would flatten the rest.
_REACH = 2.5
_NUMBERS = ["step_time_s", "low_s", "high_s", "peak_memory_bytes", "n_ok", "n_launches"]


@dataclass(frozen=True)
class SideCase:
    """A configuration: its id on the page, `case` on the first side that has it, and its numbers on each side."""

    id: str
    row: Row
    case: Case
    sides: tuple[Mapping[str, float], ...]

    def known(self, name: str) -> dict[int, float]:
        """Return a number by side, without unknown ones."""
        found = {at: numbers.get(name) for at, numbers in enumerate(self.sides)}
        return {at: value for at, value in found.items() if format.known(value)}


def cases_by_work(of: Several, works: Sequence[Overall]) -> Iterator[tuple[Overall, list[SideCase]]]:
    """Yield the configurations of each workload."""
    tables: list[dict[Any, Any]] = [side.cases_by_id[_NUMBERS].to_dict("index") for side in of.sides]
    for work, (_, group) in zip(works, same_work(of.cases, SHARED_WORK), strict=True):
        rows = [of.rows[at] for at in group.index]
        yield work, [_case(of, tables, str(id_), row) for id_, row in zip(group["case_id"], rows, strict=True)]


def _case(of: Several, tables: list[dict[Any, Any]], id_: str, row: Row) -> SideCase:
    case = next(side.case(own) for side, own in zip(of.sides, row.cases, strict=True) if own is not None)
    return SideCase(id_, row, case, tuple(table.get(own, {}) for table, own in zip(tables, row.cases, strict=True)))


def side_points(of: Several, at: int, x: Any, y: Any, hovers: Iterable[str], ids: list[str], **more: Any) -> Trace:
    """Return the points of a side; `hovers` follow its name."""
    style = side_style(at)
    marker = {"color": style.color, "size": 9, "symbol": style.symbol, "opacity": 1} | more.pop("marker", {})
    own = {"customdata": ids, "legendgroup": str(at), "showlegend": True} | more
    return marks(x, y, cut(of.names[at], SIDE_NAME), [*hovers], marker, **own)


# -- ratios to the first side -----------------------------------------------------------------------------------------

Result = CaseResult | Ratio | Mean
# By number: the name of it on the axis.
_AXES = {"step_time": "step time", "per_joule": "tokens per joule", "per_gb": "tokens/s per GB"}


def ratios(of: Several, works: Sequence[Overall], name: str) -> list[Panel]:
    """Return a number of each configuration relative to the first side, from the smallest ratio to the largest, and
    below them the geometric mean."""
    panels = []
    for work, cases in cases_by_work(of, works):
        found = [(one, _results(one.row, name)) for one in cases]
        if own := [(one, results) for one, results in found if results]:
            means = work.means if name == "step_time" else work.gives[name]
            panels.append(_ratios(of, work.heading, f"{_AXES[name]}, {cut(of.names[0], 16)} = 1", own, means))
    return panels


def _results(row: Row, name: str) -> dict[int, Result]:
    found = {at: row.ratio(name, at) for at in range(1, len(row.cases))}
    return {at: each for at, each in found.items() if each is not None and each.ratio}


def _ratios(
    of: Several, title: str, axis: str, cases: list[tuple[SideCase, dict[int, Result]]], means: Sequence[Mean]
) -> Panel:
    logs = {one.id: [math.log(each.ratio or 1) for each in results.values()] for one, results in cases}
    cases = sorted(cases, key=lambda own: -max(map(abs, logs[own[0].id])))
    place = {one.id: at for at, (one, _) in enumerate(cases)}
    cases = sorted(cases, key=lambda own: fmean(logs[own[0].id]))
    rows = [(one.row.label, one.id, results) for one, results in cases]
    order = [place[one.id] for one, _ in cases]
    known: dict[int, Result] = {at: mean for at, mean in enumerate(means, 1) if mean.ratio}
    sizes = sorted({mean.cases for mean in means if mean.ratio})
    if any(size > 1 for size in sizes):
        rows.append((f"geometric mean of {' or '.join(f'{size:,}' for size in sizes)} cases", ALL, known))
        order.append(-1)
    traces = []
    others = range(1, len(of.names))
    for at in others:
        drawn = [(y, label, id_, each) for y, (label, id_, results) in enumerate(rows) if (each := results.get(at))]
        if drawn:
            aside = (at - len(of.names) / 2) * min(0.22, 0.7 / len(others))
            traces.append(_ratio_points(of, at, drawn, aside))
    every = [each for _, _, results in rows for each in results.values()]
    return in_rows(
        title,
        [label for label, _, _ in rows],
        axis,
        traces,
        head=110,
        least=math.ceil((2 + 13 * len(others)) / 16),
        which="most changed",
        most=MOST_DOTS,
        order=order,
        xaxis=_ratio_axis(every),
        shapes=[vertical(1)],
    )


def _ratio_points(of: Several, at: int, drawn: list[tuple[int, str, str, Result]], aside: float) -> Trace:
    color, symbol = side_style(at).color, side_style(at).symbol
    x = [each.ratio or 1 for *_, each in drawn]
    ends = [(each.low or x, each.high or x) for x, (*_, each) in zip(x, drawn, strict=True)]
    bars = {
        "array": [high - x for x, (_, high) in zip(x, ends, strict=True)],
        "arrayminus": [x - low for x, (low, _) in zip(x, ends, strict=True)],
    }
    marker = {
        "size": [13 if id_ == ALL else 9 for _, _, id_, _ in drawn],
        "symbol": [symbol if _filled(each) else f"{symbol}-open" for *_, each in drawn],
        "line": {"width": 1.5, "color": color},
    }
    hovers = [f"<b>{plain(label)}</b><br>{plain(of.names[at])}: {_in_words(each)}" for _, label, _, each in drawn]
    ids = [id_ for _, _, id_, _ in drawn]
    error_x = ERROR_BARS | {"thickness": 1.5, "width": 3, "color": color} | bars
    return side_points(of, at, x, [y + aside for y, *_ in drawn], hovers, ids, marker=marker, error_x=error_x)


def _in_words(each: Result) -> str:
    ends = f"95%: {interval(each)}" if each.low is not None else "no interval: it needs two launches per side"
    return f"{format.times(each.ratio or 1)} times ({ends})"


def _filled(each: Result) -> bool:
    """Return whether a step time or a mean differs; other numbers of a configuration are not judged."""
    if isinstance(each, CaseResult):
        return each.outcome in (Outcome.FASTER, Outcome.SLOWER)
    return isinstance(each, Ratio) or (each.low or 0) > 1 or (each.high or 2) < 1


def _ratio_axis(drawn: list[Result]) -> dict[str, Any]:
    logs = [0.0, *(math.log(each.ratio or 1) for each in drawn)]
    far = _REACH * max(map(abs, logs)) or 0.1
    ends = [math.log(end) for each in drawn for end in (each.low, each.high) if end]
    reached = [*logs, *(max(-far, min(far, end)) for end in ends)]
    margin = max(0.04 * (max(reached) - min(reached)), 0.01)
    low, high = min(reached) - margin, max(reached) + margin
    ticks = ratio_ticks(math.exp(low), math.exp(high))
    return {
        "type": "log", "range": [low / math.log(10), high / math.log(10)], "tickvals": ticks,
        "ticktext": [f"{tick:g}" for tick in ticks],
    }  # fmt: skip


def ratio_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from `low` to `high`, evenly spaced if these are near each other."""
    ticks = round_numbers(low, high)
    if len(ticks) >= 4:
        return ticks
    rough = (high - low) / 6
    step = round_numbers(rough, 10 * rough)[0]
    return [float(f"{i * step:.12g}") for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


# -- numbers of each side ---------------------------------------------------------------------------------------------


def memory(of: Several, works: Sequence[Overall]) -> list[Panel]:
    """Return the peak memory of each configuration on each side, by how much the sides differ."""
    return [
        _memory(of, work.heading, own)
        for work, cases in cases_by_work(of, works)
        if (own := [one for one in cases if one.known("peak_memory_bytes")])
    ]


def _memory(of: Several, title: str, cases: list[SideCase]) -> Panel:
    peaks = {one.id: one.known("peak_memory_bytes") for one in cases}

    def first(one: SideCase) -> tuple[float, float]:
        largest = max(peaks[one.id].values())
        return -largest / (min(peaks[one.id].values()) or 1), -largest

    cases = sorted(cases, key=first)
    traces = []
    for at, name in enumerate(of.names):
        own = [(y, one, peaks[one.id][at]) for y, one in enumerate(cases) if at in peaks[one.id]]
        hovers = [f"<b>{plain(one.row.label)}</b><br>{plain(name)}: {format.mebibytes(peak)}" for _, one, peak in own]
        x, y = [peak / MIB for *_, peak in own], [y for y, *_ in own]
        traces.append(side_points(of, at, x, y, hovers, [one.id for _, one, _ in own]))
    names = [marked(one.row.label, one.case.strategy) for one in cases]
    look: dict[str, Any] = {"which": "that differ most", "most": MOST_DOTS, "xaxis": FROM_ZERO}
    return in_rows(title, names, "peak memory (MiB)", traces, head=80, **look)
