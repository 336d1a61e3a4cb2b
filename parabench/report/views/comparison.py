"""Make the pages of comparisons: a gate, sessions or machines, and traces of other tools."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.answer import Answer
from parabench.analysis.compare import gate, machines, recordings
from parabench.analysis.compare.comparison import STEP, Outcome, compare_sessions
from parabench.analysis.compare.gate import Verdict
from parabench.analysis.compare.sides import read_several
from parabench.analysis.environment.diff import hardware_name
from parabench.analysis.ranking.best import answered
from parabench.analysis.session import SessionData
from parabench.files import write_whole
from parabench.report.figures import GREY, Panel, band, cut, error_bars, in_rows, marks, plain, side_style, vertical
from parabench.report.spec import FORMATS, WORDED, Column, Section, Table, table_of
from parabench.report.views.answer import AnswerView
from parabench.store.results import records

_LABEL = Column("Configuration", "label")
_TONE = {Verdict.REGRESSION: "bad", Verdict.NO_REGRESSION: "good", Verdict.INCONCLUSIVE: "open"}
_MARK = {Verdict.REGRESSION: "✗", Verdict.NO_REGRESSION: "✓", Verdict.INCONCLUSIVE: "?"}
# Rows of the figure of ratios that are shown at once.
_MOST_ROWS = 30
# Characters of a session's name in a legend.
_NAME = 32
# The axis reaches at most this many times as far as its points: an interval of two launches would flatten the rest.
_REACH = 2.5


# ---- the gate


def gate_view(of: Answer) -> AnswerView:
    """Return the view of `compare` and `ab`."""
    verdict, sides = gate.the_verdict(of), records(of.tables["sides"])
    tolerance = verdict["tolerance"]
    cases = of.tables["cases"]
    same = cases["outcome"] == Outcome.SAME
    ruled_out = f"{format.count(int(same.sum()), 'configuration')} without slowdowns above {gate.tolerated(tolerance)}"
    changes = Section(
        "changes",
        "Change of each configuration",
        f"Step time of {verdict['candidate']} relative to {verdict['base']}, with 95% confidence intervals: right of 1 "
        "is slower. The shaded band is the tolerance. Slowdowns beyond the upper bound (one-sided, 95%) are ruled out.",
        panels=gate_figure(of),
        tables=(
            table_of("Other outcomes", _GATE, cases[~same], closed=False),
            table_of(ruled_out, _GATE, cases[same]),
        ),
        reading="A gray tick is the upper bound. The gate passes if all upper bounds are in the band. A filled mark is "
        f"slower or faster. The figure shows the {_MOST_ROWS} largest changes. Step times are geometric means. "
        "The results databases have the launch ids.",
    )
    return AnswerView(
        question=f"Did {verdict['candidate']} get slower than {verdict['base']}?",
        heading=f"{_MARK[verdict['verdict']]} {verdict['verdict'].capitalize()}",
        answer=of,
        sections=(changes, _differences([of], ("base", "candidate")), _sources([of])),
        argv=["parabench", "compare", *of.tables["sides"]["at"], *gate.options(of)],
        headlines=1,
        tone=_TONE[verdict["verdict"]],
        kicker=f"parabench compare · {sides[1]['suite']} · {format.when(sides[1]['started_utc'])}",
    )


def gate_figure(of: Answer) -> list[Panel]:
    """Return the figure of all changes, with the tolerance and the upper bounds."""
    return ratios("base", [("candidate", of.tables["cases"])], gate.the_verdict(of)["tolerance"])


_GATE = (
    Column("Configuration", lambda row: f"{row['label']}: {row['note']}" if row["note"] else row["label"]),
    Column("Outcome", "outcome"),
    Column("Base ms", "base_step_time_s", "ms"),
    Column("Candidate ms", "candidate_step_time_s", "ms"),
    Column("Change", lambda row: row["ratio"] - 1, "signed"),
    Column("95% interval", lambda row: gate.interval(row) or None, WORDED),
    Column("Upper bound", lambda row: row["upper"] - 1, "signed"),
    Column("Base launches", lambda row: gate.ids(row["base_launches"]), WORDED),
    Column("Candidate launches", lambda row: gate.ids(row["candidate_launches"]), WORDED),
)


# ---- sessions and machines


def write_comparison(stores: list[tuple[Path, str | None]], out: Path) -> Path:
    """Write the page of two or more sessions to the file `out`, completely or not at all.

    A session of None is the newest of its database. Raises UsageError if sessions cannot be compared, or if `out`
    cannot be written.
    """
    sides = read_several(stores)
    answers = [machines.answer(compare_sessions(sides[0], other)) for other in sides[1:]]
    argv = ["parabench", "report", *(side.origin.at for side in sides)]
    write_whole(out, sessions_view(sides, answers, argv).html(), "page", "give another file for the report")
    return out


def machines_view(sides: Sequence[SessionData], answer: Answer) -> AnswerView:
    """Return the view of `compare --across-hardware`."""
    argv = ["parabench", "compare", *(side.origin.at for side in sides), "--across-hardware"]
    return sessions_view(sides, [answer], argv)


def sessions_view(sides: Sequence[SessionData], answers: Sequence[Answer], argv: Sequence[str]) -> AnswerView:
    """Return the view of sessions. `answers` compare each session but the first with it."""
    names = [side.role for side in sides]
    first, *others = names
    newest = max(side.session.started_utc for side in sides)
    texts = [*(each.sentences[0] for each in answers), *chain.from_iterable(each.sentences[1:] for each in answers)]
    warnings = dict.fromkeys(chain.from_iterable(each.warnings for each in answers))
    steps = Section(
        "ratios",
        f"Configurations relative to {first}",
        f"Times are relative to {first}, with 95% confidence intervals. Less is better for step times, and more for "
        "tokens per joule and tokens/s per GB of peak memory.",
        f"No configuration was launched both in {first} and in another session.",
        panels=ratios(first, [(name, each.tables["step_times"]) for name, each in zip(others, answers, strict=True)]),
        tables=(_cases_table(sides, answers), _missing(others, answers)),
        reading="Intervals include the variation between sessions if they were not interleaved. A filled mark is "
        "slower or faster by the rule of `parabench compare`, with its defaults. The axis is logarithmic.",
    )
    return AnswerView(
        question=f"How do {format.joined(names)} compare?",
        heading=" against ".join(hardware_name(side) for side in reversed(sides)),
        answer=Answer(tuple(dict.fromkeys(texts)), warnings=tuple(warnings)),
        sections=(steps, _best(sides), _differences(answers, names), _sources(answers)),
        argv=argv,
        headlines=len(answers),
        kicker=f"parabench · {sides[-1].session.suite} · {format.when(newest)}",
    )


def _cases_table(sides: Sequence[SessionData], answers: Sequence[Answer]) -> Table:
    """Return the table of step times, ratios to the first session, and peak memory of all configurations."""
    numbers = [{row["case_id"]: row for row in records(side.cases)} for side in sides]
    quantities = {STEP: "times", "per_joule": "per joule", "per_gb": "per GB"}
    rows: dict[str, dict[str, str]] = {}
    for at, answer in enumerate(answers, 1):
        for case in records(answer.tables["cases"]):
            row = rows.setdefault(case["label"], {"label": case["label"]})
            for place, case_id in ((0, case["base_case_id"]), (at, case["candidate_case_id"])):
                if case_id in numbers[place]:
                    own, name = numbers[place][case_id], sides[place].role
                    step_s = own["step_time_s"]
                    row[f"{name}, ms"] = FORMATS["ms"](step_s) if format.known(step_s) else str(own["status"])
                    row[f"{name}, peak MiB"] = FORMATS["mib"](own["peak_memory_bytes"])
        steps = (each | {"quantity": STEP} for each in records(answer.tables["step_times"]))
        for each in (*steps, *records(answer.tables["ratios"])):
            if format.known(each["ratio"]):
                ends = f" ({format.times_between(each['low'], each['high'])})" if format.known(each["low"]) else ""
                name = f"{sides[at].role}, {quantities[each['quantity']]}"
                rows[each["label"]][name] = f"{format.times(each['ratio'])}{ends}"
    names = [side.role for side in sides]
    ratios = [f"{name}, {quantity}" for quantity in quantities.values() for name in names[1:]]
    columns = [
        _LABEL,
        *(Column(f"{name}, ms", f"{name}, ms", WORDED, "not measured") for name in names),
        *(Column(name, name, WORDED) for name in ratios if any(name in row for row in rows.values())),
        *(Column(f"{name}, peak MiB", f"{name}, peak MiB", WORDED) for name in names),
    ]
    return table_of("All configurations", columns, rows.values(), closed=False)


def _missing(names: Sequence[str], answers: Sequence[Answer]) -> Table:
    pairs = zip(names, answers, strict=True)
    rows = [(label, name, why) for name, answer in pairs for label, why in machines.without_ratio(answer)]
    columns = (Column("Configuration", 0), Column("Session", 1), Column("Why it has no ratio", 2))
    return table_of(f"{format.count(len(rows), 'configuration')} without a ratio", columns, rows, closed=False)


def _best(sides: Sequence[SessionData]) -> Section:
    """Return the section of each session's fastest configuration of each workload."""
    rows: list[dict[str, Any]] = []
    for side in sides:
        for work in side.once(answered):
            workload = work["workloads"][0]
            row: dict[str, Any] = {"side": side.role, "hardware": hardware_name(side)}
            if workload["best"] is None:
                rows.append(row | {"best": workload["why_not"] or format.UNKNOWN})
                continue
            (fastest,) = (each for each in work["candidates"] if each["place"] == "best")
            note = "" if workload["winner"] else " (lowest mean)" if workload["decided"] else " (undecided)"
            row |= {"best": ": ".join(filter(None, (workload["workload"], fastest["label"]))) + note}
            row |= {"step_s": fastest["step_time_s"]}
            row |= {"throughput": format.throughput(fastest["tokens_per_s"], fastest["unit"])}
            rows.append(row | {"peak": side.cases_by_id.loc[workload["best"], "peak_memory_bytes"]})
    columns = (
        Column("Session", "side"),
        Column("Hardware", "hardware"),
        Column("Fastest", "best"),
        Column("Step ms", "step_s", "ms"),
        Column("Throughput", "throughput", WORDED),
        Column("Peak MiB", "peak", "mib"),
    )
    table = table_of("Best per session", columns, rows, closed=False)
    return Section("best", "Best per session", "As in the report of each session.", "", (table,))


# ---- recordings


def recordings_view(of: Answer, argv: Sequence[str]) -> AnswerView:
    """Return the view of `compare --from`."""
    table = table_of("Base and candidate", _RECORDED, of.tables["compared"], closed=False)
    compared = Section(
        "compared",
        "Base and candidate",
        "Medians over the steps, and their ranges. Collectives and kernels are means over ranks: one call, and "
        "all its runs in a step. A kernel is listed if it is among the longest of its rank.",
        "Nothing can be compared.",
        (table,),
    )
    return AnswerView("How do these traces differ?", "Two folders of traces", of, (compared,), argv, headlines=1)


def _ranges(row: Mapping[str, Any]) -> str:
    """Return whether the steps of the variants overlap, or the variant that lacks the quantity."""
    if format.known(row["ratio"]):
        return {True: "apart", False: "overlap", None: "one step"}[row["apart"]]
    lacks = [side for side in recordings.SIDES if not format.known(row[f"{side}_median_s"])]
    where = "among the longest of" if row["what"] == "kernel" else "in"
    return f"not {where} {lacks[0]}" if lacks else "zero"


_RECORDED = (
    Column("What", lambda row: f"{row['what']}: {row['name']}"),
    Column("Base, ms", "base_median_s", "ms"),
    Column("Candidate, ms", "candidate_median_s", "ms"),
    Column("Times", "ratio", "ratio"),
    Column("Ranges", _ranges, WORDED),
    Column("Base steps", lambda row: recordings.range_ms(row, "base"), WORDED),
    Column("Candidate steps", lambda row: recordings.range_ms(row, "candidate"), WORDED),
)


# ---- the figure of ratios: a color and a symbol for each session


def ratios(first: str, sides: Sequence[tuple[str, pd.DataFrame]], tolerance: float | None = None) -> list[Panel]:
    """Return the figure of step times relative to the session `first`, or an empty list without ratios.

    Args:
        first: Its name.
        sides: The name of each other session, and the table `cases` or `step_times` of its comparison.
        tolerance: The tolerance of a gate. The figure then has the upper bounds.
    """
    known = [(name, table[table["ratio"].notna()]) for name, table in sides]
    every = pd.concat([table for _, table in known])
    if every.empty:
        return []
    logs = every[["ratio", "low", "high"]].astype(float).apply(np.log)
    far = logs["ratio"].abs().groupby(every["label"], sort=False).max()
    place = {label: at for at, label in enumerate(far.index)}
    traces = []
    for at, (name, own) in enumerate(known, 1):
        style, y = side_style(at), own["label"].map(place)
        y = y + (at - (len(known) + 1) / 2) * min(0.22, 0.7 / len(known))
        judged = own["outcome"].isin((Outcome.FASTER, Outcome.SLOWER))
        symbols = [style.symbol + ("" if filled else "-open") for filled in judged]
        marker = {"color": style.color, "symbol": symbols, "size": 9, "line": {"width": 1.5, "color": style.color}}
        bars = error_bars(own["ratio"], own["low"], own["high"], thickness=1.5, width=3, color=style.color)
        hovers = [_hover(name, row) for row in records(own)]
        more = {"error_x": bars, "showlegend": True}
        traces.append(marks(own["ratio"], y, cut(name, _NAME), hovers, marker, **more))
    shapes, also = [vertical(1)], [-0.01, 0.01]
    if tolerance is not None:
        bounds = every[every["upper"].notna()]
        hovers = [f"slowdowns above {format.signed(upper - 1)} are ruled out (95%)" for upper in bounds["upper"]]
        tick = {"symbol": "line-ns-open", "size": 13, "color": GREY, "line": {"width": 2}}
        traces.append(marks(bounds["upper"], bounds["label"].map(place), "upper bound", hovers, tick))
        shapes.append(band(1 / (1 + tolerance), 1 + tolerance))
        also += [-math.log1p(tolerance), math.log1p(tolerance)]
    reach = _REACH * max(far.max(), *also)
    ends = [*also, *logs.clip(-reach, reach).stack()]
    margin = 0.04 * (max(ends) - min(ends))
    look: dict[str, Any] = {
        "most": _MOST_ROWS,
        "which": "most changed",
        "order": (far.rank(method="first", ascending=False).astype(int) - 1).tolist(),
        "least": math.ceil((2 + 13 * len(known)) / 16),
        "shapes": shapes,
        "xaxis": {
            "type": "log",
            "range": [(min(ends) - margin) / math.log(10), (max(ends) + margin) / math.log(10)],
            "tickformat": "~g",
        },
    }
    return [in_rows("", list(place), f"step time, {cut(first, 16)} = 1", traces, head=110, **look)]


def _hover(name: str, row: dict[Any, Any]) -> str:
    ends = "no interval: it needs two launches per variant"
    if format.known(row["low"]):
        ends = f"95%: {format.times_between(row['low'], row['high'])}"
    return f"<b>{plain(row['label'])}</b><br>{plain(name)}: {format.times(row['ratio'])} times ({ends})"


# ---- sections of several views


def _differences(answers: Sequence[Answer], names: Sequence[str]) -> Section:
    """Return the section of environment facts that differ. Facts that can change step times come first."""
    rows: dict[str, dict[Any, Any]] = {}
    for at, answer in enumerate(answers, 1):
        for each in records(answer.tables["differences"]):
            row = rows.setdefault(each["name"], {**each, **dict.fromkeys(range(len(names)), each["base"])})
            row |= {at: each["candidate"], "matters": row["matters"] or each["matters"]}
    found = sorted(rows.values(), key=lambda row: not row["matters"])
    matter = [row["name"] for row in found if row["matters"]]
    columns = [Column("", "name"), *(Column(name, at) for at, name in enumerate(names))]
    table = table_of(f"{format.count(len(found), 'difference')} of hardware and software", columns, found, closed=False)
    verb = "can" if len(matter) == 1 else "can each"
    lead = f"{format.joined(matter)} {verb} explain a different step time." if matter else ""
    return Section("differs", "Differences", "", "No recorded fact differs.", (table,), lead=lead)


def _sources(answers: Sequence[Answer]) -> Section:
    """Return the section of the compared sessions."""
    sides = pd.concat([answer.tables["sides"] for answer in answers]).drop_duplicates("at")
    columns = (
        Column("Variant", "side"),
        Column("Session", "at"),
        Column("Suite", "suite"),
        Column("Started", lambda row: format.when(row["started_utc"])),
        Column("Launches", lambda row: f"{row['valid']} of {row['launches']} succeeded"),
        Column("Command", "command"),
    )
    return Section("sources", "Sources", "", "", (table_of("Sessions", columns, sides),))
