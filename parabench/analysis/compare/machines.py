"""Two machines side by side (`compare --across-hardware`): ratios and their means, without a verdict."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from parabench.analysis import format
from parabench.analysis.answer import Answer, columns, keyed, tables
from parabench.analysis.compare.cases import CaseResult, Outcome
from parabench.analysis.compare.overall import GIVES, Overall, given, interval, overall, sentences
from parabench.analysis.compare.several import Ratio, Row, Several
from parabench.analysis.compare.sides import check_distinct
from parabench.analysis.compare.warnings import across_findings, unfinished
from parabench.analysis.environment.diff import Difference, hardware_differences, hardware_name, software_differences
from parabench.analysis.numbers import work_text
from parabench.analysis.session import Origin, SessionData
from parabench.analysis.stats.contrasts import Mean
from parabench.errors import UsageError
from parabench.store.record import Finding

TITLES = {"step_time": "step", "per_joule": "per joule", "per_gb": "per GB"}


@dataclass(frozen=True)
class Machines:
    """Two machines. `names`, `origins` and `hardware_names` are of base and candidate.

    `works` are the answers by workload, `rows` the ratios by configuration, fastest first.
    """

    names: tuple[str, ...]
    origins: tuple[Origin, ...]
    hardware_names: tuple[str, ...]
    works: tuple[Overall, ...]
    rows: tuple[Row, ...]
    hardware: tuple[Difference, ...]
    software: tuple[Difference, ...]
    findings: tuple[Finding, ...]


_QUANTITY = Literal["step_time", "per_joule", "per_gb"]
# The tables of the answer.
TABLES = {
    "sides": columns(Origin, side=str, hardware=str),
    "workloads": columns(
        Overall,
        "heading",
        "names",
        "compared",
        workload=str,
        work=str,
        best=str | None,
        tied=tuple[str, ...],
        lost=int,
        mended=int,
    ),
    "means": columns(Mean, workload=str, quantity=_QUANTITY),
    "outcomes": {"workload": str, "outcome": Outcome, "cases": int},
    "cases": {"label": str, "base_case_id": str | None, "candidate_case_id": str | None, "missing": str},
    "step_times": columns(CaseResult),
    "ratios": columns(Ratio, label=str, quantity=_QUANTITY),
    "differences": columns(Difference, kind=Literal["hardware", "software"]),
}


def compared(base: SessionData, candidate: SessionData) -> Several:
    """Return two machines side by side.

    Raises UsageError if both sides are the same session, or if they have no configuration in common.
    """
    check_distinct((base, candidate))
    of = Several((base, candidate))
    if not of.common(1):
        raise UsageError(
            f"no case of {base.session.name} of {base.results.path} has the same workload as one of "
            f"{candidate.session.name} of {candidate.results.path}; measure the same suite with the same --set on both"
        )
    return of


def machines(of: Several) -> Machines:
    """Return the comparison of two machines."""
    base, candidate = of.sides
    return Machines(
        names=of.names,
        origins=of.origins,
        hardware_names=(hardware_name(base), hardware_name(candidate)),
        works=overall(of),
        rows=tuple(sorted(of.rows, key=lambda row: (row.step_time[0] and row.step_time[0].ratio) or float("inf"))),
        hardware=tuple(hardware_differences(base, candidate)),
        software=tuple(software_differences(base, candidate)),
        findings=(*across_findings(base, candidate, of.common(1)), *unfinished(base, candidate)),
    )


def answers(works: Iterable[Overall]) -> list[str]:
    """Return the sentences about all workloads."""
    said = []
    for work in works:
        own = [*sentences(work), *(given(work, name) for name in GIVES if work.others)]
        said.append(f"{work.heading[0].upper()}{work.heading[1:]}: {own[0]}" if work.heading else own[0])
        said += own[1:]
    return said


def lines(of: Machines) -> list[str]:
    """Return the comparison as lines of text."""
    rows = table(of)
    return [
        *(f"{name}: {hardware}" for name, hardware in zip(of.names, of.hardware_names, strict=True)),
        *format.in_lines(answers(of.works)),
        *(f"hardware: {difference}" for difference in of.hardware),
        *(f"software: {difference}" for difference in of.software),
        *format.warnings(of.findings),
        *(format.aligned(rows) if len(rows) > 1 else ()),
        *(f"{label}: {why}" for label, why in without_ratio(of)),
    ]


def table(of: Machines) -> list[list[str]]:
    """Return the head, then the cells of each configuration with a ratio, candidate / base."""
    ratios = chain.from_iterable((title, "95%") for title in TITLES.values())
    rows = [["Case", *(f"{name}, ms" for name in of.names), *ratios]]
    for row in of.rows:
        step = row.step_time[0]
        if step is not None and step.ratio is not None:
            times = (step.base_step_time_s, step.candidate_step_time_s)
            cells = ["–" if time_s is None else format.digits(time_s * 1e3) for time_s in times]
            for name in TITLES:
                found = row.ratio(name, 1)
                if found is not None and found.ratio is not None:
                    cells += [format.times(found.ratio), interval(found)]
                else:
                    cells += ["–", "–"]
            rows.append([row.label, *cells])
    return rows


def without_ratio(of: Machines) -> list[tuple[str, str]]:
    """Return the label of each configuration without a ratio, and the reason."""
    found = []
    for row in of.rows:
        step = row.step_time[0]
        if step is None:
            at = row.cases.index(None)
            found.append((row.label, f"only in {of.names[1 - at]}: {row.missing[at]}"))
        elif step.ratio is None:
            found.append((row.label, step.note))
    return found


def command(origins: Iterable[Origin]) -> str:
    """Return the command that repeats this comparison."""
    return shlex.join(["parabench", "compare", *(origin.at for origin in origins), "--across-hardware"])


def answer(of: Machines) -> Answer:
    """Return the answer of a comparison of two machines."""
    rows: dict[str, list[Any]] = {name: [] for name in TABLES}
    for name, hardware, origin in zip(of.names, of.hardware_names, of.origins, strict=True):
        rows["sides"].append((origin, {"side": name, "hardware": hardware}))
    for work in of.works:
        key = {"workload": work.heading}
        text = work_text(work.work)
        named = {"best": None if work.best is None else of.names[work.best], "tied": [of.names[at] for at in work.tied]}
        rows["workloads"].append((work, key | named | {"lost": work.lost[0], "mended": work.mended[0], "work": text}))
        for quantity, means in {"step_time": work.means, **work.gives}.items():
            rows["means"] += keyed(means, quantity=quantity, **key)
        rows["outcomes"] += [key | {"outcome": outcome, "cases": n} for outcome, n in work.changes[0].items()]
    for row in of.rows:
        base, candidate = row.cases
        missing = next(filter(None, row.missing), "")
        rows["cases"].append((row, {"base_case_id": base, "candidate_case_id": candidate, "missing": missing}))
        rows["step_times"] += filter(None, row.step_time)
        for quantity in GIVES:
            ratio = row.ratio(quantity, 1)
            rows["ratios"] += keyed(filter(None, [ratio]), label=row.label, quantity=quantity)
    for kind, found in (("hardware", of.hardware), ("software", of.software)):
        rows["differences"] += keyed(found, kind=kind)
    return Answer(tuple(answers(of.works)), tables(TABLES, rows), warnings=of.findings)
