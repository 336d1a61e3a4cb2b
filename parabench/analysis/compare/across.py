"""How two machines compare: step time, tokens per joule, tokens/s per GB. No pass and no fail.

Cases are the same work where all fields agree but `device` and `backend`. One number a launch, as everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from parabench.analysis.compare.ratios import Ratio
from parabench.analysis.compare.several import NUMBERS, Matches, Several, several
from parabench.analysis.compare.sides import check_two
from parabench.analysis.compare.warnings import across_findings, unfinished
from parabench.analysis.environment.diff import Difference, hardware_differences, hardware_name, software_differences
from parabench.analysis.session import Origin, SessionData
from parabench.analysis.stats.geometric import Mean
from parabench.errors import UsageError
from parabench.store.record import Finding


@dataclass(frozen=True)
class Common:
    """A case that both sides have. `step_time` is of a step, in s: a ratio below 1 is a faster candidate. `per_joule`
    is in tokens/J of all its devices, `per_gb` in tokens/s per GB of peak memory of the largest rank: above 1
    the candidate gives more. Models without sequences count samples."""

    label: str
    base_case: str
    candidate_case: str
    base_device: str
    candidate_device: str
    step_time: Ratio
    per_joule: Ratio
    per_gb: Ratio


@dataclass(frozen=True)
class Alone:
    """A case that only one side has, or that has no single partner."""

    label: str
    case: str
    side: str
    reason: str


@dataclass(frozen=True)
class Across:
    """Two machines. The means are over the common cases, as `geometric.geometric_mean` makes them."""

    base: str
    candidate: str
    origins: tuple[Origin, Origin]
    base_hardware: str
    candidate_hardware: str
    step_time: Mean
    per_joule: Mean
    per_gb: Mean
    cases: tuple[Common, ...]
    alone: tuple[Alone, ...]
    hardware: tuple[Difference, ...]
    software: tuple[Difference, ...]
    findings: tuple[Finding, ...]


def machines(base: SessionData, candidate: SessionData) -> Several:
    """Put two machines beside each other by the cases that both measured.

    Raises UsageError when both sides are the same session, or when no case of one is the work of one of the other.
    """
    check_two(base, candidate)
    of = several((base, candidate), launches_alone=True)
    if not of.against[0].step_time.of:
        raise UsageError(
            f"no case of {base.session.name} of {base.results.path} has the same workload as one of "
            f"{candidate.session.name} of {candidate.results.path}; measure the same suite with the same --set on both"
        )
    return of


def across(of: Several) -> Across:
    """What `machines` found, as text and files tell it."""
    base, candidate = of.sides
    step_time, per_joule, per_gb = (of.ratios_of(1, name) for name in NUMBERS)
    cases = [
        Common(
            label=str(candidate.cases_by_id.loc[new, "label"]),
            base_case=old,
            candidate_case=new,
            base_device=str(base.cases_by_id.loc[old, "device"]),
            candidate_device=str(candidate.cases_by_id.loc[new, "device"]),
            step_time=ratio,
            per_joule=per_joule.of[old, new],
            per_gb=per_gb.of[old, new],
        )
        for (old, new), ratio in step_time.of.items()
    ]
    return Across(
        base=base.session.name,
        candidate=candidate.session.name,
        origins=(base.origin, candidate.origin),
        base_hardware=hardware_name(base),
        candidate_hardware=hardware_name(candidate),
        step_time=step_time.mean,
        per_joule=per_joule.mean,
        per_gb=per_gb.mean,
        cases=tuple(sorted(cases, key=lambda case: case.step_time.ratio or math.inf)),
        alone=tuple(_alone(of.matches)),
        hardware=tuple(hardware_differences(base, candidate)),
        software=tuple(software_differences(base, candidate)),
        findings=(*across_findings(base, candidate, step_time.of), *unfinished(base, candidate)),
    )


def _alone(matches: Matches) -> Iterator[Alone]:
    """The cases that have no partner, base's first."""
    for at, side in enumerate(matches.sides):
        for row in matches.rows:
            case = row[at]
            if case is not None and row[1 - at] is None:
                label = str(side.cases_by_id.loc[case, "label"])
                yield Alone(label, case, side.role, matches.why_alone(at, case, 1 - at))
