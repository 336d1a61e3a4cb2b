"""The report's section of predictions for more ranks, if the database has compute-only launches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from parabench.analysis import format
from parabench.analysis.prediction.base import base_of
from parabench.analysis.prediction.predict import Prediction, Predictor, interval, predicted, refusals
from parabench.analysis.prediction.question import grown
from parabench.analysis.session import SessionData
from parabench.errors import UsageError
from parabench.plan.case import Case, ranks_in_words
from parabench.report.figures import FROM_ZERO, Panel, error_bars, lay_out, marks, plain, strategy_style
from parabench.report.spec import WORDED, Column, Section, table_of

# Multiples of the measured ranks that are predicted.
TIMES = (1, 2, 4, 8)

_READING = (
    "A step is the computation of a rank and exposed collectives. The computation is from compute-only launches, "
    "corrected by measured training runs. Collectives are from the latency and bandwidth of measured links. Each "
    "strategy has the algorithm and bucket cap of its fastest training run. Use `parabench predict` for other ones."
)
_NOTE = "A step consists of a rank's computation, its wait for the slowest rank, and exposed communication."
_TABLE = (
    Column("Configuration", lambda each: each.case.label),
    Column("Predicted", "step_s", "ms"),
    Column("90%", lambda each: format.milliseconds_between(each.low_s, each.high_s), WORDED),
    Column("Measured", "measured_s", "ms"),
    Column("Compute", "compute_s", "ms"),
    Column("Slowest rank", "slowest_s", "ms"),
    Column("In a node", "exposed_within_s", "ms"),
    Column("Between nodes", "exposed_between_s", "ms"),
    Column("Memory, MiB", "peak_bytes", "mib"),
)


def prediction_section(seen: SessionData) -> Section | None:
    """Return the section; None without compute-only launches."""
    try:
        base = base_of([seen.results.whole_store])
    except UsageError:
        return None
    trained = _fastest(seen)
    if not trained:
        return None
    predictor = Predictor(base, {})
    curves = {name: [predictor.predict(of)] for name, of in trained.items()}
    for curve, of in zip(curves.values(), trained.values(), strict=True):
        for world_size in (times * of.world_size for times in TIMES[1:]):
            if world_size <= base.per_node or world_size % base.per_node == 0:
                more = grown(of, world_size, max(1, world_size // base.per_node), {})
                curve.append(predictor.predict(more))
    every = [each for curve in curves.values() for each in curve]
    known = {name: own for name, curve in curves.items() if (own := predicted(curve))}
    rows = [each for curve in known.values() for each in curve]
    most = max(case.world_size for case in trained.values())
    beyond = any(each.case.world_size > most for each in rows)
    return Section(
        "prediction",
        "Prediction",
        "Predicted throughput of a rank with 90% intervals; a level line is linear scaling. Marks are measured."
        if beyond
        else "",
        " ".join(["Nothing could be predicted.", *refusals(every)]),
        (table_of("Predicted steps, in ms", _TABLE, rows, closed=beyond, note=_NOTE),),
        panels=[_panel(known)] if beyond else [],
        lead=_lead(seen, rows, most),
        reading=" ".join([_READING, *refusals(every)]),
    )


def _fastest(seen: SessionData) -> dict[str, Case]:
    """Return {name of a curve: the strategy's fastest configuration with the most ranks}."""
    several = len({case.model for case in seen.planned.values()}) > 1
    found: dict[str, Case] = {}
    steps = [(case, seen.step_times[key]) for key, case in seen.planned.items() if key in seen.step_times]
    for case, _ in sorted(steps, key=lambda each: (-each[0].world_size, each[1] / each[0].global_batch)):
        if case.world_size > 1:
            found.setdefault(f"{case.strategy}, {case.model}" if several else case.strategy, case)
    return found


def _lead(seen: SessionData, rows: Sequence[Prediction], most: int) -> str:
    found = [f"Measured up to {ranks_in_words(most, 1)}."]
    largest = max((each.case.world_size for each in rows), default=0)
    if largest > most:
        of_largest = [each for each in rows if each.case.world_size == largest]
        best = min(of_largest, key=lambda each: each.sample_s)
        found.append(f"{best.case.label} is expected to be the fastest: {interval(best)} per step.")
    else:
        sizes = ",".join(str(times * most) for times in TIMES[1:])
        found.append(
            f"For more ranks: `parabench predict {seen.results.path.name} --world-size {sizes} --link node=25GB/s,20us`"
        )
    return " ".join(found)


def _panel(curves: dict[str, list[Prediction]]) -> Panel:
    """Return the figure: a line with 90% intervals for each strategy, and marks for measured steps."""
    sizes = sorted({each.case.world_size for curve in curves.values() for each in curve})
    unit = format.unit_of(next(iter(curves.values()))[0].case.seq_len)
    ranks = {"type": "log", "tickvals": sizes, "ticktext": [str(size) for size in sizes],
             "range": [math.log10(sizes[0] / 1.2), math.log10(sizes[-1] * 1.2)]}  # fmt: skip
    traces = []
    for name, curve in curves.items():
        style, own = strategy_style(curve[0].case.strategy), {"legendgroup": name}
        times = pd.DataFrame([(each.step_s, each.high_s, each.low_s, each.measured_s) for each in curve], dtype=float)
        # The tokens or samples that each rank trains in a second.
        tokens = pd.Series([each.case.global_batch * each.case.seq_len / each.case.world_size for each in curve])
        rate, low, high, measured = (tokens / times[at] for at in times)
        x = pd.Series([each.case.world_size for each in curve])
        texts = [f"{plain(each.case.label)}<br>predicted: {interval(each)}" for each in curve]
        look = {"mode": "lines", "line": style.line | {"width": 2}, "error_y": error_bars(rate, low, high)}
        traces.append(marks(x, rate, plain(name), texts, {}, **look, **own))
        texts = [
            f"{plain(each.case.label)}<br>measured: {format.milliseconds(each.measured_s)}"
            for each in curve
            if each.measured_s is not None
        ]
        marker = {"color": style.color, "symbol": style.symbol, "size": 9}
        there = measured.notna()
        traces.append(marks(x[there], measured[there], "", texts, marker, showlegend=False, **own))
    figure = lay_out(traces, "ranks", f"{unit}/s of a rank", xaxis=ranks, yaxis=FROM_ZERO, showlegend=True)
    return Panel("", figure, 360 + 20 * len(curves))
