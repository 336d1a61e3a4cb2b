"""Two machines side by side (`compare --across-hardware`): ratios and their means, without a verdict."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from msgspec import to_builtins

from parabench.analysis import format
from parabench.analysis.compare.gate import SCHEMA
from parabench.analysis.compare.overall import GIVES, Overall, given, interval, overall, sentences
from parabench.analysis.compare.several import Row, Several
from parabench.analysis.compare.sides import check_distinct
from parabench.analysis.compare.warnings import across_findings, unfinished
from parabench.analysis.environment.diff import Difference, hardware_differences, hardware_name, software_differences
from parabench.analysis.session import Origin, SessionData
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
    ratios = chain.from_iterable((title, "95 %") for title in TITLES.values())
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


def to_dict(of: Machines) -> dict[str, Any]:
    """Return the comparison as JSON can hold it (docs/reference/json.md); unknown is null."""
    fields: dict[str, Any] = to_builtins(of)
    return {"schema": SCHEMA, "kind": "across hardware", "sentence": " ".join(answers(of.works))} | fields
