"""Sections of pages with several variants: the fastest one, the differences, and the sources of the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.compare.comparison import STEP, Comparison
from parabench.analysis.compare.gate import ids as launch_range
from parabench.analysis.compare.overall import Overall, given, work_key
from parabench.analysis.environment.diff import HARDWARE, SOFTWARE, Fact
from parabench.analysis.numbers import launch_ids
from parabench.analysis.ranking.ranking import spots
from parabench.analysis.ranking.words import sentence
from parabench.report.figures import sides
from parabench.report.spec import WORDED, Column, Section, Tab, table_of
from parabench.store.results import records


def several_tabs(of: Comparison, works: Sequence[Overall], facts: Sequence[Fact]) -> list[Tab]:
    """Return the tabs of the page."""
    names, drawn = of.names, _drawn(of, works)
    per_gb = given_section(of, works, "per-gb", "per_gb", "Tokens/s per GB of memory")
    by_case = [{case: launch_ids(launches) for case, launches in side.by_case.items()} for side in of.sides]
    ids = [[there.get(id_, ()) for there, id_ in zip(by_case, row, strict=True)] for row in of.ids.to_numpy()]
    return [
        Tab("answer", "Answer", (drawn["ratios"],)),
        Tab("best", "Best per side", (best_section(of, works),)),
        Tab("buckets", "Buckets", (drawn["buckets"],)),
        Tab("scaling", "Scaling", (drawn["scaling"],)),
        Tab("memory", "Memory", (drawn["memory"], per_gb)),
        Tab("energy", "Energy", (given_section(of, works, "per-joule", "per_joule", "Tokens per joule"),)),
        Tab(
            "differs",
            "Differences",
            (
                _differing(facts, names, HARDWARE),
                _differing(facts, names, SOFTWARE),
                _agreeing(facts),
                side_section([vars(side.origin) for side in of.sides], names, "Sources"),
            ),
        ),
        Tab("trust", "Trust", (_missing(of), launch_section(zip(of.cases["label"], ids, strict=True), names))),
        Tab("data", "Data", ()),
    ]


def _drawn(of: Comparison, works: Sequence[Overall]) -> dict[str, Section]:
    """Return the sections that are figures, by id."""
    first = of.names[0]
    sections = (
        Section(
            "ratios",
            f"Every case relative to {first}",
            f"Left of the line is faster than {first}. Bars are 95% intervals.",
            f"No case has a step time both on {first} and on another side, so there is nothing to draw.",
            panels=sides.ratios(of, works, STEP),
            reading="They include the variation between sessions if the variants were not interleaved. A filled mark "
            "is slower or faster by the rule of `parabench compare`, with its defaults. The geometric mean is filled "
            "if its interval, with repetitions as units, excludes 1. The axis is logarithmic.",
        ),
        Section(
            "buckets",
            "Bucket size",
            "One curve per side, of cases that differ only in the bucket size. Bars span the fastest to the slowest "
            "launch.",
            "No case was measured with two bucket sizes.",
            panels=sides.buckets(of, works),
        ),
        Section(
            "scaling",
            "Scaling",
            "Throughput and efficiency against the world size: a color per variant, a dash per strategy.",
            "No side has a strategy that was measured at two world sizes.",
            panels=sides.scaling(of),
            reading="Each strategy shows the side's algorithm and bucket size with most world sizes, among equals the "
            "fastest at the largest, chosen from all cases; hover for its name. Efficiency is relative to one device "
            "or, if that was not measured, to the curve's smallest world size.",
        ),
        Section(
            "memory",
            "Peak memory",
            "Peak of the largest rank over all launches of a case. Cases with the largest difference come first.",
            "No peak memory is known.",
            panels=sides.memory(of, works),
        ),
    )
    return {section.id: section for section in sections}


def _differing(facts: Iterable[Fact], names: tuple[str, ...], kind: str) -> Section:
    """Return the section of the facts of a kind that differ, first the causes of another step time."""
    own = sorted((fact for fact in facts if fact.kind == kind and fact.differs), key=lambda fact: not fact.matters)
    matter = [fact.name for fact in own if fact.matters]
    verb = "can" if len(matter) == 1 else "can each"
    table = table_of(f"{kind} that differs", (Column("", "name"), *of_each(names, "values")), own, closed=False)
    return Section(
        kind,
        f"{kind.capitalize()} that differs",
        "",
        "Nothing that was recorded.",
        (table,),
        lead=f"{format.joined(matter)} {verb} explain a different step time." if matter else "",
    )


def _agreeing(facts: Iterable[Fact]) -> Section:
    same = [fact for fact in facts if not fact.differs]
    columns = (Column("", "name"), Column("On every side", "values.0"))
    table = table_of(format.count(len(same), "fact"), columns, same)
    return Section("agrees", "Equal on all sides", "", "Nothing.", (table,))


def _missing(of: Comparison) -> Section:
    """Return the section of the cases without a step time on some side, with the reasons."""
    texts = of.numbers.assign(text=[_ended(of, row) for row in records(of.numbers)])
    by_side = texts.pivot(index="row", columns="at", values="text")
    missing = of.cases.index[~of.timed.all(axis=1)]
    rows = [of.cases.loc[row, ["label", "case_id"]].to_dict() | {"sides": by_side.loc[row].tolist()} for row in missing]
    columns = (Column("Case", "label"), *of_each(of.names, "sides"))
    table = table_of(format.count(len(rows), "case"), columns, rows, closed=False)
    nothing = "None: every case succeeded on every side."
    return Section("missing", "Cases missing on a side", "", nothing, (table,))


def _ended(of: Comparison, row: Mapping[Any, Any]) -> str:
    """Return the step time of a configuration on a side, or how its launches ended, or why there are none."""
    if format.known(row["step_time_s"]):
        return format.milliseconds(row["step_time_s"])
    error = f": {row['error']}" if isinstance(row["error"], str) else ""
    return of.why_missing(row["row"], row["at"]) or f"{row['status']}{error}"


def given_section(of: Comparison, works: Sequence[Overall], at: str, name: str, title: str) -> Section:
    """Return the section of a quantity in `GIVES` relative to the first side, work by work."""
    lead = " ".join(": ".join(filter(None, (work.heading.capitalize(), given(work, name)))) for work in works)
    if all(mean.ratio is None for work in works for mean in work.means[name]):
        return Section(at, title, "", lead or f"{title}: unknown.")
    return Section(
        at,
        title,
        f"Right of the line is better than {works[0].names[0]}. The geometric mean is filled if its interval "
        "excludes 1.",
        "No case has this number on two sides, so there is nothing to draw.",
        lead=lead,
        panels=sides.ratios(of, works, name),
    )


def best_section(of: Comparison, works: Sequence[Overall]) -> Section:
    """Return the section of each side's fastest configuration of each workload."""
    headings = {work_key(work.work): work.heading for work in works}
    firsts = {work_key(answer.work): answer.best for answer in of.first.once(spots)}
    rows: list[dict[str, Any]] = []
    for name, seen in zip(of.names, of.sides, strict=True):
        for answer in seen.once(spots):
            best, first = answer.best, firsts.get(work_key(answer.work))
            row: dict[str, Any] = {"side": name, "answer": sentence(answer), "spot": answer.why_not or format.UNKNOWN}
            if best is not None:
                note = "undecided" if not answer.decided else "lowest mean" if answer.winner is None else ""
                label = ": ".join(filter(None, (headings.get(work_key(answer.work), ""), best.label)))
                row |= {
                    "spot": f"{label} ({note})" if note else label,
                    "step_s": best.step_time_s,
                    "throughput": format.throughput(best.tokens_per_s, best.unit),
                    "peak": seen.cases_by_id.loc[best.case_id, "peak_memory_bytes"],
                    "times": best.step_time_s / first.step_time_s if first is not None else None,
                }
            rows.append(row)
    columns = (
        Column("Side", "side"),
        Column("Sweet spot", "spot"),
        Column("Step ms", "step_s", "ms"),
        Column("Throughput", "throughput", WORDED),
        Column("Peak MiB", "peak", "mib"),
        Column(f"× {of.names[0]}", "times", "times"),
    )
    closed = table_of("In words", (Column("Side", "side"), Column("Answer", "answer")), rows)
    return Section(
        "best",
        "Best per side",
        "The fastest configuration of each side, as in its own report.",
        "Nothing was measured.",
        (table_of("Best per side", columns, rows, closed=False), closed),
        reading=f"The last column is its step time relative to the best of {of.names[0]} for the same workload, which "
        "may be another case.",
    )


TWO = ("Base", "Candidate")


def of_each(names: Sequence[str], field: str) -> list[Column]:
    """Return a column for each side, with the value of `field` at the side's place."""
    return [Column(name, f"{field}.{at}") for at, name in enumerate(names)]


def difference_section(title: str, differences: pd.DataFrame) -> Section:
    """Return the section of the differences between two sides."""
    columns = (Column("", "name"), *(Column(name, name.lower()) for name in TWO))
    table = table_of(title, columns, differences, closed=False)
    return Section("differs", title, "", "Nothing that was recorded.", (table,))


def launch_section(cases: Iterable[tuple[str, Sequence[tuple[int, ...]]]], names: tuple[str, ...] = TWO) -> Section:
    """Return the launches behind the numbers, of (label, launch ids of each side)."""
    rows = [{"label": label, "ids": [*map(launch_range, sides)]} for label, sides in cases]
    table = table_of(format.count(len(rows), "case"), (Column("Case", "label"), *of_each(names, "ids")), rows)
    return Section("launches", "Launches behind the numbers", "Launch ids in each side's store.", "None.", (table,))


def side_section(
    origins: Sequence[Mapping[Any, Any]], names: tuple[str, ...] = TWO, title: str = "The two sides"
) -> Section:
    """Return the section of the sessions that the sides' numbers are from."""
    facts: dict[str, Callable[[Mapping[Any, Any]], str]] = {
        "session": lambda each: each["session"],
        "suite": lambda each: each["suite"],
        "store": lambda each: each["at"],
        "command": lambda each: each["command"],
        "started": lambda each: format.when(each["started_utc"]),
        "finished": lambda each: (
            format.when(each["finished_utc"]) if each["finished_utc"] else "not finished: more launches were planned"
        ),
        "launches": lambda each: f"{each['valid']} of {each['launches']} succeeded",
    }
    rows = [[name, *map(fact, origins)] for name, fact in facts.items()]
    columns = [Column(name, str(at)) for at, name in enumerate(("", *names))]
    table = table_of(title, columns, rows, closed=False)
    return Section("sides", title, "", "", (table,))
