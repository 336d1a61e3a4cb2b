"""How two machines compare: what a step, a joule and a gigabyte give on each. No pass and no fail.

Cases are the same work where all fields agree but `device` and `backend`. One number a launch, as everywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from parabench.analysis import words
from parabench.analysis.gate import across_words
from parabench.analysis.gate.across_facts import doubts, hardware_differences, hardware_name, software_differences
from parabench.analysis.gate.across_numbers import Known, latencies, sources, tokens_per_gb, tokens_per_joule
from parabench.analysis.gate.compare import ALPHA, SCHEMA, check_two
from parabench.analysis.gate.geometric import Mean, geometric_mean
from parabench.analysis.gate.origin import Origin, origin_of
from parabench.analysis.gate.sides import Difference, Side
from parabench.analysis.gate.significance import FEWEST_LAUNCHES, Numbers, Test, factor, judge, logs_of
from parabench.case import Case
from parabench.errors import UsageError
from parabench.record import Finding

# What may differ between two cases that are the same work on two machines.
MACHINES_OWN = ("device", "backend")


@dataclass(frozen=True)
class Ratio:
    """One number of a case on both sides: geometric means over launches, and candidate / base with its 95 % interval.

    `reason` says why a number or the interval is unknown. The launches are ids in table `launch` of each side's store.
    """

    base: float | None
    candidate: float | None
    ratio: float | None
    low: float | None
    high: float | None
    reason: str
    base_launches: tuple[int, ...]
    candidate_launches: tuple[int, ...]


@dataclass(frozen=True)
class Common:
    """A case that both sides have. `latency` is of a step, in s: a ratio below 1 is a faster candidate. `per_joule` is
    in tokens/J of all its devices, `per_gb` in tokens/s per GB of peak memory of the rank that holds most: above 1 the
    candidate gives more. Models without sequences count samples."""

    label: str
    base_case: str
    candidate_case: str
    base_device: str
    candidate_device: str
    latency: Ratio
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
    latency: Mean
    per_joule: Mean
    per_gb: Mean
    cases: tuple[Common, ...]
    alone: tuple[Alone, ...]
    hardware: tuple[Difference, ...]
    software: tuple[Difference, ...]
    findings: tuple[Finding, ...]

    def sentence(self) -> str:
        """The comparison as a person would say it."""
        return across_words.sentence(self)

    def lines(self) -> list[str]:
        """The whole comparison as lines of text."""
        return across_words.lines(self)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it (docs/compare.schema.json): unknown is null."""
        return {"schema": SCHEMA, "kind": "across hardware", "sentence": self.sentence()} | asdict(self)


def across(base: Side, candidate: Side) -> Across:
    """Compare two machines by the cases that both measured.

    Raises UsageError when both sides are the same session, or when no case of one is the work of one of the other.
    """
    check_two(base, candidate)
    pairs, alone = _partners(base, candidate)
    if not pairs:
        raise UsageError(
            f"no case of {base.session.name} of {base.results.path} is the same work as one of "
            f"{candidate.session.name} of {candidate.results.path}; measure the same suite with the same --set on both"
        )
    latency, per_joule, per_gb = (
        _ratios(pairs, of(base), of(candidate)) for of in (latencies, tokens_per_joule, tokens_per_gb)
    )
    cases = [
        Common(
            label=str(candidate.cases.loc[new, "label"]),
            base_case=old,
            candidate_case=new,
            base_device=str(base.cases.loc[old, "device"]),
            candidate_device=str(candidate.cases.loc[new, "device"]),
            latency=latency[0][old, new],
            per_joule=per_joule[0][old, new],
            per_gb=per_gb[0][old, new],
        )
        for old, new in pairs
    ]
    return Across(
        base=base.session.name,
        candidate=candidate.session.name,
        origins=(origin_of(base), origin_of(candidate)),
        base_hardware=hardware_name(base),
        candidate_hardware=hardware_name(candidate),
        latency=latency[1],
        per_joule=per_joule[1],
        per_gb=per_gb[1],
        cases=tuple(sorted(cases, key=lambda case: case.latency.ratio or math.inf)),
        alone=tuple(alone),
        hardware=tuple(hardware_differences(base, candidate)),
        software=tuple(software_differences(base, candidate)),
        findings=tuple(doubts(base, candidate, pairs, sources(base, candidate))),
    )


Pairs = list[tuple[str, str]]


def _partners(base: Side, candidate: Side) -> tuple[Pairs, list[Alone]]:
    """The (base, candidate) case ids that are the same work, and what has no partner, or several."""
    work = [_works(side) for side in (base, candidate)]
    pairs: Pairs = []
    for old, key in work[0].items():
        near = [new for new, other in work[1].items() if other == key]
        same = [new for new in near if new == old]
        rivals = sum(other == key for other in work[0].values())
        if same or (len(near) == 1 and rivals == 1):
            pairs.append((old, (same or near)[0]))
    found = [{old for old, _ in pairs}, {new for _, new in pairs}]
    alone = []
    for i, (side, other) in enumerate(((base, candidate), (candidate, base))):
        for case, key in work[i].items():
            if case not in found[i]:
                several = key in work[1 - i].values()
                reason = (
                    "several cases are this work on one of the sides; measure one device and backend a session"
                    if several
                    else _why_missing(other, key)
                )
                alone.append(Alone(str(side.cases.loc[case, "label"]), case, side.role, reason))
    return pairs, alone


def _works(side: Side) -> dict[str, str]:
    """What each case of a side computes, as a text that is equal where the work is."""
    stored = side.results.launch.drop_duplicates("case_id").set_index("case_id")["case_json"]
    return {str(case): _work(json.loads(stored[case])) for case in side.cases.index}


def _work(fields: Mapping[str, Any]) -> str:
    every = Case.from_dict(dict(fields)).to_dict()
    return json.dumps({name: value for name, value in every.items() if name not in MACHINES_OWN}, sort_keys=True)


def _why_missing(side: Side, work: str) -> str:
    for entry in side.session.plan.get("skipped") or []:
        if _work(entry["case"]) == work:
            return f"skipped in {side.session.name}: {entry['reason']}"
    return f"not measured in {side.session.name}"


def _ratios(pairs: Pairs, base: Known, candidate: Known) -> tuple[dict[tuple[str, str], Ratio], Mean]:
    """Each pair's ratio, and the mean of all."""
    sides = {
        pair: tuple(
            known.launches[known.launches["case_id"] == case].sort_values("block")
            for known, case in zip((base, candidate), pair, strict=True)
        )
        for pair in pairs
    }
    logs = {pair: (logs_of(own[0]["value"]), logs_of(own[1]["value"])) for pair, own in sides.items()}
    # The level has no part in an interval.
    tests = judge({json.dumps(pair): both for pair, both in logs.items()}, paired=False, alpha=ALPHA)
    ratios = {}
    for pair, own in sides.items():
        ratios[pair] = _ratio(logs[pair], tests.get(json.dumps(pair)), _reason(pair, base, candidate), own)
    by_block = [
        tuple(pd.Series(both, own["block"].to_numpy()) for both, own in zip(logs[pair], sides[pair], strict=True))
        for pair in pairs
    ]
    reasons = [ratio.reason for ratio in ratios.values() if ratio.ratio is None]
    return ratios, geometric_mean(by_block, words.listed(dict.fromkeys(reasons), most=2))


def _reason(pair: tuple[str, str], base: Known, candidate: Known) -> str:
    """Why a number is unknown on one of the sides, or on both."""
    why = [base.why.get(pair[0]), candidate.why.get(pair[1])]
    if why[0] == why[1]:
        return why[0] or ""
    return " and ".join(f"on {role}, {said}" for role, said in zip(("base", "candidate"), why, strict=True) if said)


def _ratio(logs: tuple[Numbers, Numbers], test: Test | None, reason: str, own: tuple[pd.DataFrame, ...]) -> Ratio:
    means = [math.exp(side.mean()) if len(side) else None for side in logs]
    ratio = means[1] / means[0] if means[0] and means[1] else None
    if ratio is not None:
        reason = ""
    if ratio is not None and test is None:
        reason = f"an interval needs {FEWEST_LAUNCHES} launches a side; there are {len(logs[0])} and {len(logs[1])}"
    return Ratio(
        base=means[0],
        candidate=means[1],
        ratio=ratio,
        low=factor(test.low) if test else None,
        high=factor(test.high) if test else None,
        reason=reason,
        base_launches=tuple(int(each) for each in own[0]["launch_id"]),
        candidate_launches=tuple(int(each) for each in own[1]["launch_id"]),
    )
