"""Warnings about a comparison of sessions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from parabench.analysis import format
from parabench.analysis.compare.comparison import Comparison
from parabench.analysis.environment.diff import software_differences
from parabench.analysis.session import SessionData
from parabench.analysis.warnings.codes import FindingGroup, finding_groups
from parabench.analysis.warnings.launches import session_warnings
from parabench.machine import accelerator
from parabench.store.record import Finding

UNPAIRED = Finding(
    "unpaired",
    "The sides were not interleaved: anything else that changed in between (clocks, temperature, other load) is "
    "attributed to the candidate.",
    "Interleave the sides with `parabench ab`.",
)


def several_findings(of: Comparison) -> list[FindingGroup]:
    """Return warnings about the comparison, then each side's own, with the names of the sides."""
    # The names of sides by warning.
    about: dict[tuple[str, str, str], list[str]] = {}

    def add(found: Iterable[Finding], *names: str) -> None:
        for each in found:
            about.setdefault((each.code, each.message, each.advice), []).extend(names)

    for at, side in enumerate(of.sides[1:], 1):
        if of.common(at) and not of.paired[at]:
            other = across_findings(of.first, side, of.common(at)) if of.other_hardware[at] else (UNPAIRED,)
            add(other, f"{side.role} against {of.first.role}")
    add(lost_findings(of))
    add(unfinished(*of.sides))
    for side in of.sides:
        for group in finding_groups(side.results, side.session, side.once(session_warnings), side.labels):
            add((Finding(group.code, message, group.advice) for message in group.messages), side.role)
    groups: dict[tuple[str, str], list[str]] = {}
    for (code, message, advice), names in about.items():
        text = f"{format.joined(names)}: {message}" if names else message
        groups.setdefault((code, advice), []).append(text)
    return [FindingGroup(code, advice, tuple(messages)) for (code, advice), messages in groups.items()]


def lost_findings(of: Comparison) -> Iterator[Finding]:
    """Yield a finding for each side that has no step time of configurations that the first has."""
    for at, side in enumerate(of.sides[1:], 1):
        lost = of.cases["label"][of.lost(0, at)]
        if len(lost):
            yield Finding(
                "broken",
                f"{format.count(len(lost), 'case')} with a step time on {of.first.role} and none on {side.role}: "
                f"{format.listed(lost)}.",
                "The ratios leave them out. Their errors are under “Cases missing on a side”.",
            )


def unfinished(*sides: SessionData) -> Iterator[Finding]:
    """Yield a finding for each side whose session has planned launches left."""
    for side in sides:
        if side.session.finished_utc is None:
            yield Finding(
                "unfinished",
                f"The session of {side.role} is not finished: more launches were planned.",
                "Finish it with --resume, and compare again.",
            )


def across_findings(base: SessionData, candidate: SessionData, pairs: Collection[tuple[str, str]]) -> Iterator[Finding]:
    """Yield other causes of a ratio between two machines. `pairs` are (base, candidate) case ids."""
    yield Finding(
        "one_machine",
        "Each side is one machine: the intervals do not cover the variation between machines of a kind.",
        "Measure several machines of a kind before you decide on one.",
    )

    def apart(column: str) -> tuple[str, str]:
        """Return both values of `column` for the first pair with different values; empty if all are equal."""
        own, other = (side.cases_by_id[column].astype(str) for side in (base, candidate))
        return next(((own[old], other[new]) for old, new in pairs if own[old] != other[new]), ("", ""))

    own, other = apart("statistic")
    if own != other:
        yield Finding(
            "statistic",
            f"The step time of a launch is the {own} of its steps on {base.role} and the {other} on {candidate.role}, "
            "because CPUs are shared and devices are not: part of the ratio is due to the statistic.",
            "Read nothing into a ratio near 1.",
        )
    own, other = apart("device")
    if own != other:
        kind = {"cpu": "the resident set of a process", accelerator.TYPE: "the memory that torch allocated on a device"}
        yield Finding(
            "memory",
            f"Peak memory is {kind[own]} on {base.role} and {kind[other]} on {candidate.role}.",
            "The two are different quantities, so the ratio per GB does not compare efficiency.",
        )
    own, other = (" and ".join(sorted(set(side.counted["joules_source"].dropna()))) for side in (base, candidate))
    if own and other and own != other:
        yield Finding(
            "energy",
            f"Joules are from the {own} on {base.role} and from the {other} on {candidate.role}.",
            "Power readings can be off by several percent; compare devices that have the same source.",
        )
    software = [each.name for each in software_differences(base, candidate)]
    if software:
        yield Finding(
            "software",
            f"The software differs too: {format.listed(software, most=8)}. The ratios include its effect.",
            "Measure both sides with the same software to isolate the hardware.",
        )
