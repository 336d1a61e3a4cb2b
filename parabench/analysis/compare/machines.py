"""Two machines side by side (`compare --across-hardware`): ratios and their means, without a verdict."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from msgspec import to_builtins

from parabench.analysis import format
from parabench.analysis.compare.gate import SCHEMA
from parabench.analysis.compare.overall import GIVES, Overall, given, interval, overall, sentences
from parabench.analysis.compare.several import NUMBERS, Row, Several
from parabench.analysis.compare.sides import check_two
from parabench.analysis.compare.warnings import across_findings, unfinished
from parabench.analysis.environment.diff import Difference, hardware_differences, hardware_name, software_differences
from parabench.analysis.session import Origin, SessionData
from parabench.errors import UsageError
from parabench.store.record import Finding

TITLES = {"step_time": "step", "per_joule": "per joule", "per_gb": "per GB"}


@dataclass(frozen=True)
class Machines:
    """Two machines. `names`, `origins` and `hardware_names` are of base and candidate.

    `works` are the answers by work, `rows` the ratios by configuration, fastest first.
    """

    names: tuple[str, ...]
    origins: tuple[Origin, ...]
    hardware_names: tuple[str, ...]
    works: tuple[Overall, ...]
    rows: tuple[Row, ...]
    hardware: tuple[Difference, ...]
    software: tuple[Difference, ...]
    findings: tuple[Finding, ...]


def compared(base: SessionData, candidate: SessionData) -> Several:
    """Return two machines side by side.

    Raises UsageError if both sides are the same session, or if they have no configuration in common.
    """
    check_two(base, candidate)
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
    """Return the sentences about all works."""
    said = []
    for work in works:
        own = [*sentences(work), *(given(work, name) for name in GIVES if work.others)]
        said.append(f"{work.heading[0].upper()}{work.heading[1:]}: {own[0]}" if work.heading else own[0])
        said += own[1:]
    return said


def lines(of: Machines) -> list[str]:
    """Return the comparison as lines of text."""
    return [
        *(f"{name}: {hardware}" for name, hardware in zip(of.names, of.hardware_names, strict=True)),
        *format.in_lines(answers(of.works)),
        *(f"hardware: {difference}" for difference in of.hardware),
        *(f"software: {difference}" for difference in of.software),
        *format.warnings(of.findings),
        *(f"{row.label}: {_line(of, row)}" for row in of.rows),
    ]


def _line(of: Machines, row: Row) -> str:
    """Return '50.0 ms -> 20.0 ms; step 0.40 times (95 %: 0.39 to 0.41); per joule ...', or why there is no ratio."""
    if alone := alone_on(of, row):
        return f"only in {alone[0]}: {alone[1]}"
    step = row.step_time[0]
    assert step is not None
    if step.ratio is None:
        return step.note
    said = [f"{format.milliseconds(step.base_step_time_s)} -> {format.milliseconds(step.candidate_step_time_s)}"]
    for name in NUMBERS:
        found = row.ratio(name, 1)
        if found is None or found.ratio is None:
            said.append(f"{TITLES[name]} unknown ({getattr(found, 'reason', '')})")
        else:
            ends = f" (95 %: {interval(found)})" if found.low is not None else " (no interval)"
            said.append(f"{TITLES[name]} {format.times(found.ratio)} times{ends}")
    return "; ".join(said)


def alone_on(of: Machines, row: Row) -> tuple[str, str] | None:
    """Return the only side that has a row, and why the other does not; None if both have it."""
    if None not in row.cases:
        return None
    at = row.cases.index(None)
    return of.names[1 - at], row.missing[at]


def command(origins: Iterable[Origin]) -> str:
    """Return the command that repeats this comparison."""
    return shlex.join(["parabench", "compare", *(origin.at for origin in origins), "--across-hardware"])


def to_dict(of: Machines) -> dict[str, Any]:
    """Return the comparison as JSON can hold it (docs/reference/json.md); unknown is null."""
    fields: dict[str, Any] = to_builtins(of)
    return {"schema": SCHEMA, "kind": "across hardware", "sentence": " ".join(answers(of.works))} | fields
