"""The views of comparisons: a gate, sessions or machines, and recordings of other tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

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
from parabench.report.figures.comparison import MOST_ROWS, ratios, scaling
from parabench.report.spec import DASH, FORMATS, WORDED, Column, Section, table_of
from parabench.report.views.answer import AnswerView
from parabench.store.results import records

_LABEL = Column("Configuration", "label")
_TONE = {Verdict.REGRESSION: "bad", Verdict.NO_REGRESSION: "good", Verdict.INCONCLUSIVE: "open"}
_MARK = {Verdict.REGRESSION: "✗", Verdict.NO_REGRESSION: "✓", Verdict.INCONCLUSIVE: "?"}


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
        f"slower or faster. The figure shows the {MOST_ROWS} largest changes. Step times are geometric means. "
        "The results databases have the launch ids.",
    )
    return AnswerView(
        question=f"Did {verdict['candidate']} get slower than {verdict['base']}?",
        heading=f"{_MARK[verdict['verdict']]} {verdict['verdict'].capitalize()}",
        answer=of,
        sections=(changes, _differences([of], ("base", "candidate")), _sources([of])),
        argv=["parabench", "compare", *of.tables["sides"]["at"], *gate.options(of)],
        tone=_TONE[verdict["verdict"]],
        kicker=f"parabench compare · {sides[1]['suite']} · {format.when(sides[1]['started_utc'])}",
    )


def gate_figure(of: Answer) -> list[Any]:
    """Return the figure of all changes, with the tolerance and the upper bounds."""
    return ratios("base", [("candidate", of.tables["cases"])], gate.the_verdict(of)["tolerance"])


def _signed(name: str) -> Any:
    return lambda row: format.signed(row[name] - 1) if format.known(row[name]) else DASH


_GATE = (
    Column("Configuration", lambda row: f"{row['label']}: {row['note']}" if row["note"] else row["label"]),
    Column("Outcome", "outcome"),
    Column("Base ms", "base_step_time_s", "ms"),
    Column("Candidate ms", "candidate_step_time_s", "ms"),
    Column("Change", _signed("ratio"), WORDED),
    Column("95% interval", lambda row: gate.interval(row) or DASH, WORDED),
    Column("Upper bound", _signed("upper"), WORDED),
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
        tables=(_table(sides, answers), _missing(others, answers)),
        reading="Intervals include the variation between sessions if they were not interleaved. A filled mark is "
        "slower or faster by the rule of `parabench compare`, with its defaults. The axis is logarithmic.",
    )
    scales = Section(
        "scaling",
        "Scaling",
        "Throughput and efficiency against the world size: a color per session, a dash per strategy.",
        panels=scaling(sides),
        reading="A strategy has the algorithm and bucket size with the most world sizes in that session, then the "
        "fastest; hover for its name. Efficiency is relative to one device or, if that was not measured, to the "
        "curve's smallest world size.",
    )
    sections = [steps, _best(sides), scales, _differences(answers, names), _sources(answers)]
    return AnswerView(
        question=f"How do {format.joined(names)} compare?",
        heading=" against ".join(hardware_name(side) for side in reversed(sides)),
        answer=Answer(tuple(dict.fromkeys(texts)), warnings=tuple(warnings)),
        sections=[section for section in sections if section.panels or section.tables or section.empty],
        argv=argv,
        headlines=len(answers),
        kicker=f"parabench · {sides[-1].session.suite} · {format.when(newest)}",
    )


def _table(sides: Sequence[SessionData], answers: Sequence[Answer]) -> Any:
    """Return the table of all configurations: step times, ratios to the first session, and peak memory."""
    rows: dict[str, dict[str, Any]] = {}
    for at, answer in enumerate(answers, 1):
        for case in records(answer.tables["cases"]):
            row = rows.setdefault(case["label"], {"label": case["label"]})
            for place, id_ in ((0, case["base_case_id"]), (at, case["candidate_case_id"])):
                if id_ is not None:
                    row[f"id.{place}"] = id_
        for step in records(answer.tables["step_times"]):
            rows[step["label"]][f"{STEP}.{at}"] = step
        for given in records(answer.tables["ratios"]):
            rows[given["label"]][f"{given['quantity']}.{at}"] = given
    numbers = [{row["case_id"]: row for row in records(side.cases)} for side in sides]
    for row in rows.values():
        for at, own in enumerate(numbers):
            row[f"numbers.{at}"] = own.get(row.get(f"id.{at}"))
    every = list(rows.values())
    columns = [_LABEL]
    columns += [Column(f"{side.role}, ms", _step_ms(at), WORDED) for at, side in enumerate(sides)]
    for quantity, title in {STEP: "times", "per_joule": "per joule", "per_gb": "per GB"}.items():
        for at, side in enumerate(sides[1:], 1):
            times = _times(f"{quantity}.{at}")
            if any(times(row) != DASH for row in every):
                columns.append(Column(f"{side.role}, {title}", times, WORDED))
    columns += [Column(f"{side.role}, peak MiB", _peak_mib(at), WORDED) for at, side in enumerate(sides)]
    return table_of("All configurations", columns, every, closed=False)


def _step_ms(at: int) -> Any:
    """Return the function of a row for the step time in a session, or for the end of its launches."""

    def text(row: Mapping[str, Any]) -> str:
        numbers = row[f"numbers.{at}"]
        if numbers is None:
            return "not measured"
        return FORMATS["ms"](numbers["step_time_s"]) if format.known(numbers["step_time_s"]) else str(numbers["status"])

    return text


def _peak_mib(at: int) -> Any:
    return lambda row: FORMATS["mib"](row[f"numbers.{at}"]["peak_memory_bytes"]) if row[f"numbers.{at}"] else DASH


def _times(name: str) -> Any:
    """Return the function of a row for a ratio and its interval: '0.80 (0.78 to 0.82)'."""

    def text(row: Mapping[str, Any]) -> str:
        own = row.get(name)
        if own is None or not format.known(own["ratio"]):
            return DASH
        ends = f" ({format.times_between(own['low'], own['high'])})" if format.known(own["low"]) else ""
        return f"{format.times(own['ratio'])}{ends}"

    return text


def _missing(names: Sequence[str], answers: Sequence[Answer]) -> Any:
    rows = [
        {"label": label, "side": name, "why": why}
        for name, answer in zip(names, answers, strict=True)
        for label, why in machines.without_ratio(answer)
    ]
    columns = (_LABEL, Column("Session", "side"), Column("Why it has no ratio", "why"))
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
        "Medians over the steps, and their least and most. Collectives and kernels are means over ranks: one call, and "
        "all its runs in a step. A kernel is listed if it is among the longest of its rank.",
        "Nothing can be compared.",
        (table,),
    )
    return AnswerView("How do these traces differ?", "Two folders of traces", of, (compared,), argv)


def _ranges(row: Mapping[str, Any]) -> str:
    """Return how the steps of both sides lie, or which side lacks the quantity."""
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


# ---- sections of several views


def _differences(answers: Sequence[Answer], names: Sequence[str]) -> Section:
    """Return the facts that differ from the first session. Facts that can explain another step time come first."""
    rows: dict[str, dict[str, Any]] = {}
    for at, answer in enumerate(answers, 1):
        for each in records(answer.tables["differences"]):
            row = rows.setdefault(each["name"], each | dict.fromkeys(_places(names), each["base"]))
            row |= {str(at): each["candidate"], "matters": row["matters"] or each["matters"]}
    found = sorted(rows.values(), key=lambda row: not row["matters"])
    matter = [row["name"] for row in found if row["matters"]]
    columns = [Column("", "name"), *(Column(name, str(at)) for at, name in enumerate(names))]
    table = table_of(f"{format.count(len(found), 'difference')} of hardware and software", columns, found, closed=False)
    verb = "can" if len(matter) == 1 else "can each"
    lead = f"{format.joined(matter)} {verb} explain a different step time." if matter else ""
    return Section("differs", "Differences", "", "No recorded fact differs.", (table,), lead=lead)


def _places(names: Sequence[str]) -> Iterator[str]:
    return map(str, range(len(names)))


def _sources(answers: Sequence[Answer]) -> Section:
    """Return the sessions that the numbers are from."""
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
