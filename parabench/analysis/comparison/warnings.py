"""What a reader must know before trusting a comparison of several sessions."""

from __future__ import annotations

from collections.abc import Iterator

from parabench.analysis.compare.across_facts import doubts
from parabench.analysis.compare.across_numbers import sources
from parabench.analysis.compare.sides import unfinished
from parabench.analysis.compare.warnings import unpaired_finding
from parabench.analysis.comparison.overall import lost_on
from parabench.analysis.comparison.several import Against, Several
from parabench.analysis.environment.facts import FindingGroup, finding_groups
from parabench.analysis.text import format
from parabench.analysis.warnings.launches import check_evidence
from parabench.store.record import Finding


def several_findings(of: Several) -> list[FindingGroup]:
    """Doubts about the comparison, then each side's own, with the sides that they are about."""
    about: dict[tuple[str, str, str], list[str]] = {}
    for against in of.against:
        for finding in _of_pair(of, against):
            about.setdefault((finding.code, finding.message, finding.advice), []).append(
                f"{against.side.role} against {of.first.role}"
            )
    for finding in _lost(of):
        about[(finding.code, finding.message, finding.advice)] = []
    for side in of.sides:
        for finding in unfinished(side, side):
            about[(finding.code, finding.message, finding.advice)] = []
    for side in of.sides:
        labels = dict(zip(side.cases["case_id"], side.cases["label"], strict=True))
        for group in finding_groups(side.results, side.session, side.once(check_evidence), labels):
            for message in group.messages:
                about.setdefault((group.code, message, group.advice), []).append(side.role)
    groups: dict[tuple[str, str], list[str]] = {}
    for (code, message, advice), names in about.items():
        said = f"{format.joined(names)}: {message}" if names else message
        groups.setdefault((code, advice), []).append(said)
    return [FindingGroup(code, advice, tuple(messages)) for (code, advice), messages in groups.items()]


def _lost(of: Several) -> Iterator[Finding]:
    """Cases that no mean is of, because a side broke them."""
    labels = dict(zip(of.rows, of.cases["label"], strict=True))
    for at, side in enumerate(of.sides[1:], 1):
        lost = lost_on(of, of.rows, 0, at)
        if lost:
            ends, does = ("ends", "does") if len(lost) == 1 else ("end", "do")
            yield Finding(
                "broken",
                f"{format.count(len(lost), 'case')} that {ends} well on {of.first.role} no longer {does} on "
                f"{side.role}: {format.listed(str(labels[row]) for row in lost)}.",
                "Ratios are of the others alone. How these ended stands under “Cases that not every side has”.",
            )


def _of_pair(of: Several, against: Against) -> Iterator[Finding]:
    """What is not also said of one side alone."""
    if against.paired or not against.latency.of:  # without a case in common there is nothing to doubt
        return
    if against.machines:
        pairs = list(against.latency.of)
        found = doubts(of.first, against.side, pairs, sources(of.first, against.side))
        yield from (finding for finding in found if finding.code != "unfinished")
        return
    tests = {pair[0]: test for pair, test in against.latency.tests.items() if pair[0] == pair[1]}
    yield from unpaired_finding(of.first, against.side, tests)
