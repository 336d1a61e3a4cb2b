"""Sections of pages with several variants: the fastest one, the differences, and the sources of the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.compare.comparison import STEP, Comparison
from parabench.analysis.compare.gate import ids as launch_range
from parabench.analysis.compare.overall import Overall, given, work_key
from parabench.analysis.environment.diff import HARDWARE, SOFTWARE, Fact
from parabench.analysis.numbers import launch_ids
from parabench.analysis.ranking.best import answered
from parabench.report.figures import sides
from parabench.report.spec import WORDED, Column, Section, Tab, table_of
from parabench.store.results import records

TWO = ("Base", "Candidate")
_CASE = Column("Configuration", "label")


def several_tabs(of: Comparison, works: Sequence[Overall], facts: Sequence[Fact]) -> list[Tab]:
    """Return the tabs of the page of several sessions."""
    first = of.names[0]
    ratios = Section(
        "ratios",
        f"Every configuration relative to {first}",
        f"Left of the line is faster than {first}. Bars are 95% intervals.",
        f"No configuration has a step time both on {first} and on another side, so nothing is drawn.",
        panels=sides.ratios(of, works, STEP),
        reading="Intervals include the variation between sessions if the variants were not interleaved. A filled mark "
        "is slower or faster by the rule of `parabench compare`, with its defaults. The geometric mean is filled if "
        "its interval, with repetitions as units, excludes 1. The axis is logarithmic.",
    )
    buckets = Section(
        "buckets",
        "Bucket size",
        "One curve per side, of configurations that differ only in the bucket size. Bars span the fastest to the "
        "slowest launch.",
        "No configuration was measured with two bucket sizes.",
        panels=sides.buckets(of, works),
    )
    scaling = Section(
        "scaling",
        "Scaling",
        "Throughput and efficiency against the world size: a color per side, a dash per strategy.",
        "No side has a strategy that was measured at two world sizes.",
        panels=sides.scaling(of),
        reading="A strategy has the algorithm and bucket size with the most world sizes on that side, then the "
        "fastest; hover for its name. Efficiency is relative to one device or, if that was not measured, to the "
        "curve's smallest world size.",
    )
    memory = Section(
        "memory",
        "Peak memory",
        "Peak of the largest rank over all launches. Configurations with the largest difference come first.",
        "No peak memory is known.",
        panels=sides.memory(of, works),
    )
    per_gb = _given_section(of, works, "per-gb", "per_gb", "Tokens/s per GB of memory")
    per_joule = _given_section(of, works, "per-joule", "per_joule", "Tokens per joule")
    origins = side_section([vars(side.origin) for side in of.sides], of.names, "Sources")
    differs = (_differing(facts, of.names, HARDWARE), _differing(facts, of.names, SOFTWARE), _agreeing(facts), origins)
    return [
        Tab("answer", "Answer", (ratios,)),
        Tab("best", "Best per side", (_best_section(of, works),)),
        Tab("buckets", "Buckets", (buckets,)),
        Tab("scaling", "Scaling", (scaling,)),
        Tab("memory", "Memory", (memory, per_gb)),
        Tab("energy", "Energy", (per_joule,)),
        Tab("differs", "Differences", differs),
        Tab("trust", "Trust", (_missing(of), launch_section(_launches(of), of.names))),
        Tab("data", "Data", ()),
    ]


def _given_section(of: Comparison, works: Sequence[Overall], at: str, name: str, title: str) -> Section:
    """Return the section of a quantity in `GIVES` relative to the first side, for each workload."""
    lead = " ".join(": ".join(filter(None, (work.heading.capitalize(), given(work, name)))) for work in works)
    if all(mean.ratio is None for work in works for mean in work.means[name]):
        return Section(at, title, "", lead or f"{title}: unknown.")
    return Section(
        at,
        title,
        f"Right of the line is better than {of.names[0]}. The geometric mean is filled if its interval excludes 1.",
        "No configuration has this number on two sides, so nothing is drawn.",
        lead=lead,
        panels=sides.ratios(of, works, name),
    )


def _best_section(of: Comparison, works: Sequence[Overall]) -> Section:
    """Return the section of each side's fastest configuration of each workload."""
    headings = {work_key(work.work): work.heading for work in works}
    firsts: dict[tuple[Any, ...], float] = {}
    rows: list[dict[str, Any]] = []
    for name, seen in zip(of.names, of.sides, strict=True):
        for work in seen.once(answered):
            workload = work["workloads"][0]
            row: dict[str, Any] = {"side": name, "best": workload["why_not"] or format.UNKNOWN}
            if workload["best"] is not None:
                (fastest,) = (each for each in work["candidates"] if each["place"] == "best")
                (case,) = records(seen.cases[seen.cases["case_id"] == workload["best"]])
                key, step_s = work_key(case), fastest["step_time_s"]
                note = "" if workload["winner"] else "best estimate" if workload["decided"] else "undecided"
                label = ": ".join(filter(None, (headings.get(key, ""), fastest["label"])))
                if seen is of.first:
                    firsts[key] = step_s
                row |= {
                    "best": f"{label} ({note})" if note else label,
                    "step_s": step_s,
                    "throughput": format.throughput(fastest["tokens_per_s"], fastest["unit"]),
                    "peak": case["peak_memory_bytes"],
                    "times": step_s / firsts[key] if key in firsts else None,
                }
            rows.append(row)
    columns = (
        Column("Side", "side"),
        Column("Fastest", "best"),
        Column("Step ms", "step_s", "ms"),
        Column("Throughput", "throughput", WORDED),
        Column("Peak MiB", "peak", "mib"),
        Column(f"× {of.names[0]}", "times", "times"),
    )
    return Section(
        "best",
        "Best per side",
        "The fastest configuration of each side, as in the report of that session.",
        "Nothing was measured.",
        (table_of("Best per side", columns, rows, closed=False),),
        reading=f"The last column is its step time relative to the best of {of.names[0]} for the same workload, which "
        "may be another configuration.",
    )


def _differing(facts: Iterable[Fact], names: Sequence[str], kind: str) -> Section:
    """Return the section of the facts of a kind that differ; the causes of another step time come first."""
    own = sorted((fact for fact in facts if fact.kind == kind and fact.differs), key=lambda fact: not fact.matters)
    matter = [fact.name for fact in own if fact.matters]
    verb = "can" if len(matter) == 1 else "can each"
    title = f"{kind.capitalize()} that differs"
    table = table_of(title, (Column("", "name"), *_of_each(names, "values")), own, closed=False)
    lead = f"{format.joined(matter)} {verb} explain a different step time." if matter else ""
    return Section(kind, title, "", "Nothing that was recorded.", (table,), lead=lead)


def _agreeing(facts: Iterable[Fact]) -> Section:
    same = [fact for fact in facts if not fact.differs]
    columns = (Column("", "name"), Column("On every side", "values.0"))
    table = table_of(format.count(len(same), "fact"), columns, same)
    return Section("agrees", "Equal on all sides", "", "Nothing.", (table,))


def _missing(of: Comparison) -> Section:
    """Return the section of the configurations without a step time on some side, with the reasons."""
    texts = of.numbers.assign(text=[_ended(of, row) for row in records(of.numbers)])
    by_side = texts.pivot(index="row", columns="at", values="text")
    missing = of.cases.index[~of.timed.all(axis=1)]
    rows = [of.cases.loc[row, ["label", "case_id"]].to_dict() | {"sides": by_side.loc[row].tolist()} for row in missing]
    table = table_of(
        format.count(len(rows), "configuration"), (_CASE, *_of_each(of.names, "sides")), rows, closed=False
    )
    nothing = "None: every configuration succeeded on every side."
    return Section("missing", "Configurations missing on a side", "", nothing, (table,))


def _ended(of: Comparison, row: Mapping[Any, Any]) -> str:
    """Return the step time of a configuration on a side, the result of its launches, or why there are none."""
    if format.known(row["step_time_s"]):
        return format.milliseconds(row["step_time_s"])
    error = f": {row['error']}" if isinstance(row["error"], str) else ""
    return of.why_missing(row["row"], row["at"]) or f"{row['status']}{error}"


def _launches(of: Comparison) -> Iterable[tuple[str, Sequence[tuple[int, ...]]]]:
    by_case = [{case: launch_ids(launches) for case, launches in side.by_case.items()} for side in of.sides]
    for label, row in zip(of.cases["label"], of.ids.to_numpy(), strict=True):
        yield label, [launches.get(case, ()) for launches, case in zip(by_case, row, strict=True)]


def _of_each(names: Sequence[str], field: str) -> list[Column]:
    """Return a column for each side, with the value of `field` at the side's place."""
    return [Column(name, f"{field}.{at}") for at, name in enumerate(names)]


def difference_section(title: str, differences: pd.DataFrame) -> Section:
    """Return the section of the differences between two sides."""
    columns = (Column("", "name"), *(Column(name, name.lower()) for name in TWO))
    table = table_of(title, columns, differences, closed=False)
    return Section("differs", title, "", "Nothing that was recorded.", (table,))


def launch_section(cases: Iterable[tuple[str, Sequence[tuple[int, ...]]]], names: Sequence[str] = TWO) -> Section:
    """Return the launches behind the numbers, from (label, launch ids of each side)."""
    rows = [{"label": label, "ids": [*map(launch_range, sides)]} for label, sides in cases]
    table = table_of(format.count(len(rows), "configuration"), (_CASE, *_of_each(names, "ids")), rows)
    caption = "Launch ids in each side's results database."
    return Section("launches", "Launches behind the numbers", caption, "None.", (table,))


def side_section(
    origins: Sequence[Mapping[Any, Any]], names: Sequence[str] = TWO, title: str = "The two sides"
) -> Section:
    """Return the section of the sessions that the sides' numbers are from."""
    unfinished = "not finished: more launches were planned"
    facts = [
        ("session", [each["session"] for each in origins]),
        ("suite", [each["suite"] for each in origins]),
        ("results database", [each["at"] for each in origins]),
        ("command", [each["command"] for each in origins]),
        ("started", [format.when(each["started_utc"]) for each in origins]),
        ("finished", [format.when(each["finished_utc"]) if each["finished_utc"] else unfinished for each in origins]),
        ("launches", [f"{each['valid']} of {each['launches']} succeeded" for each in origins]),
    ]
    columns = [Column(name, str(at)) for at, name in enumerate(("", *names))]
    table = table_of(title, columns, [[name, *values] for name, values in facts], closed=False)
    return Section("sides", title, "", "", (table,))
