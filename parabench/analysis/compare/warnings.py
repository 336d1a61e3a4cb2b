"""Warnings about a comparison of sessions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from parabench.analysis import format
from parabench.analysis.compare.several import Several
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


def several_findings(of: Several) -> list[FindingGroup]:
    """Return warnings about the comparison, then each side's own, with the names of the sides."""
    about: dict[tuple[str, str, str], list[str]] = {}

    def add(found: Iterable[Finding], *names: str) -> None:
        for each in found:
            about.setdefault((each.code, each.message, each.advice), []).extend(names)

    for at, side in enumerate(of.sides[1:], 1):
        if of.common(at) and not of.paired[at]:
            other = across_findings(of.first, side, of.common(at)) if of.other_hardware[at] else (UNPAIRED,)
            add(other, f"{side.role} against {of.first.role}")
    add(_lost(of))
    add(unfinished(*of.sides))
    for side in of.sides:
        for group in finding_groups(side.results, side.session, side.once(session_warnings), side.labels):
            add((Finding(group.code, message, group.advice) for message in group.messages), side.role)
    groups: dict[tuple[str, str], list[str]] = {}
    for (code, message, advice), names in about.items():
        said = f"{format.joined(names)}: {message}" if names else message
        groups.setdefault((code, advice), []).append(said)
    return [FindingGroup(code, advice, tuple(messages)) for (code, advice), messages in groups.items()]


def _lost(of: Several) -> Iterator[Finding]:
    for at, side in enumerate(of.sides[1:], 1):
        lost = of.lost(of.rows, 0, at)
        if lost:
            yield Finding(
                "broken",
                f"{format.count(len(lost), 'case')} with a step time on {of.first.role} and none on {side.role}: "
                f"{format.listed(row.label for row in lost)}.",
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
    kinds = _two_kinds(base, candidate, pairs, "statistic")
    if kinds:
        yield Finding(
            "statistic",
            f"A launch's number is the {kinds[0]} of its steps on {base.role} and the {kinds[1]} on {candidate.role}, "
            "because CPUs are shared and devices are not: part of the ratio is due to the statistic.",
            "Read nothing into a ratio near 1.",
        )
    devices = _two_kinds(base, candidate, pairs, "device")
    if devices:
        kind = {"cpu": "the resident set of a process", accelerator.TYPE: "what torch allocated on a device"}
        yield Finding(
            "memory",
            f"Peak memory is {kind[devices[0]]} on {base.role} and {kind[devices[1]]} on {candidate.role}.",
            "Do not read the ratio per GB as one of efficiency: the two are not the same quantity.",
        )
    energy_sources = [" and ".join(sorted(_joules_from(side))) for side in (base, candidate)]
    if all(energy_sources) and energy_sources[0] != energy_sources[1]:
        yield Finding(
            "energy",
            f"Joules are from the {energy_sources[0]} on {base.role} and from the {energy_sources[1]} on "
            f"{candidate.role}.",
            "Power readings can be off by several per cent; compare devices that have the same source.",
        )
    software = [each.name for each in software_differences(base, candidate)]
    if software:
        yield Finding(
            "software",
            f"The software differs too: {format.listed(software, most=8)}. The ratios include its effect.",
            "Measure both sides with the same software to isolate the hardware.",
        )


def _joules_from(side: SessionData) -> set[str]:
    return set(side.counted["joules_source"].dropna())


def _two_kinds(
    base: SessionData, candidate: SessionData, pairs: Collection[tuple[str, str]], column: str
) -> tuple[str, str] | None:
    """Return both values of `column` for the first pair in which they differ; None if there is none."""
    for old, new in pairs:
        found = str(base.cases_by_id.loc[old, column]), str(candidate.cases_by_id.loc[new, column])
        if found[0] != found[1]:
            return found
    return None
