"""The sections of a page of several sides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from parabench.analysis.compare.overall import Overall
from parabench.analysis.compare.several import Several
from parabench.analysis.environment.diff import HARDWARE, SOFTWARE, Fact
from parabench.analysis.text import format
from parabench.report.data.comparison_best import best_section
from parabench.report.data.comparison_given import given_section
from parabench.report.sections.sides import launch_section, side_section
from parabench.report.spec import Section, Table

# More rows than these nobody reads in a page; the table of all cases has the others.
MOST_ROWS = 300


def several_sections(of: Several, works: Sequence[Overall], told: Sequence[Fact]) -> list[Section]:
    """All of them, each by its id in a tab of the page."""
    names = tuple(side.role for side in of.sides)
    rows = of.rows
    return [
        _ratios(of),
        best_section(of, works, names),
        Section(
            "buckets", "Bucket size", "One curve a side: cases that differ in the bucket size alone. Bars span the "
            "fastest and the slowest launch.", [], "No case of the selected ones was measured with two bucket sizes.",
            draw="sides_buckets",
        ),
        Section(
            "scaling", "Scaling", "Of each strategy a side's algorithm and bucket size with most world sizes, among "
            "equals the fastest at the largest; hovering names it. Efficiency is beside one device, or, where that was "
            "not measured, beside the curve's own smallest world size. A side has a colour, a strategy a dash.", [],
            "No side has a strategy that was measured at two world sizes.", draw="sides_scaling",
        ),
        Section(
            "memory", "Peak memory", "The peak of the rank that holds most, the largest of a case's launches. Cases "
            "whose peak differs most between sides come first.", [], "No peak of memory is known.",
            draw="sides_memory",
        ),
        given_section(works, "per-gb", "per_gb", "Tokens/s per GB of memory", "GB of peak memory", "/s"),
        given_section(works, "per-joule", "per_joule", "Tokens per joule", "joule"),
        _differing(told, names, HARDWARE),
        _differing(told, names, SOFTWARE),
        _agreeing(told),
        side_section(of.origins, names, "Where the numbers are from"),
        _missing(of, names),
        launch_section(
            (
                (label, [tuple(map(int, side.by_case[case]["launch_id"])) if case in side.by_case else ()
                         for side, case in zip(of.sides, row, strict=True)])
                for label, row in zip(of.cases["label"], rows, strict=True)
            ), names, MOST_ROWS,
        ),
    ]  # fmt: skip


def _ratios(of: Several) -> Section:
    first = of.first.role
    return Section(
        "ratios",
        f"Every case beside {first}",
        f"Left of the line a step takes less time than on {first}; the axis is logarithmic. Bars are 95 % intervals of "
        "that case alone, with what sessions differ by themselves in them where two sides did not take turns on one "
        "machine. A filled mark is slower or faster by the rule of `parabench compare`, as its defaults are. "
        "The geometric mean is filled where its interval, which takes blocks of launches for its unit, tells it from "
        "1.",
        [],
        f"No case has a step time both on {first} and on another side, so there is nothing to draw.",
        draw="sides_ratios",
    )


def _differing(told: Iterable[Fact], names: tuple[str, ...], kind: str) -> Section:
    """The facts of a kind that are not the same everywhere, those that can explain another latency first."""
    own = sorted((fact for fact in told if fact.kind == kind and fact.differs), key=lambda fact: not fact.matters)
    matter = [fact.name for fact in own if fact.matters]
    verb = "can" if len(matter) == 1 else "can each"
    table = Table(
        f"{kind} that differs", ("", *names), [(fact.name, *fact.values) for fact in own], 1 + len(names), False
    )
    return Section(
        kind,
        f"{kind.capitalize()} that differs",
        "",
        [],
        "Nothing that was recorded.",
        (table,) if own else (),
        lead=f"Of this {format.joined(matter)} {verb} explain another latency." if matter else "",
    )


def _agreeing(told: Iterable[Fact]) -> Section:
    rows: list[tuple[str, ...]] = [(fact.name, fact.values[0]) for fact in told if not fact.differs]
    table = Table(format.count(len(rows), "fact"), ("", "On every side"), rows, texts=2)
    return Section("agrees", "What agrees", "", [], "Nothing.", (table,) if rows else ())


def _missing(of: Several, names: tuple[str, ...]) -> Section:
    """The cases that not every side has with a number: each side's number, how it ended, or why it is not there."""
    rows, ids = [], []
    numbers = [set(known.launches["case_id"]) for known in of.known["latency"]]
    for label, at, row in zip(of.cases["label"], of.cases["case_id"], of.rows, strict=True):
        if all(case in there for case, there in zip(row, numbers, strict=True)):
            continue
        rows.append((str(label), *(_said(of, row, side) for side in range(len(names)))))
        ids.append(str(at))
    more = len(rows) - MOST_ROWS
    return Section(
        "missing",
        "Cases that not every side has",
        f"Listed are {MOST_ROWS} of {len(rows):,}; the table of all cases has the others." if more > 0 else "",
        [],
        "None: every case ended well on every side.",
        (Table(format.count(len(rows), "case"), ("Case", *names), rows[:MOST_ROWS], 1 + len(names), False,
               cases=tuple(ids[:MOST_ROWS])),) if rows else (),
    )  # fmt: skip


def _said(of: Several, row: tuple[str | None, ...], side: int) -> str:
    case = row[side]
    if case is None:
        there = next(at for at, other in enumerate(row) if other is not None)
        return of.partners.why_alone(there, row[there] or "", side)
    found = of.sides[side].cases_by_id.loc[case].to_dict()
    if format.known(found["latency_s"]):
        return format.milliseconds(float(found["latency_s"]))
    error = found["error"] if isinstance(found["error"], str) else ""
    return f"{found['status']}: {error}" if error else str(found["status"])
