"""What every page of two sides tells besides their numbers: what differs, doubts, and where the numbers are from."""

from __future__ import annotations

from collections.abc import Iterable

from parabench.analysis import words
from parabench.analysis.gate import compare_words
from parabench.analysis.gate.origin import Origin
from parabench.analysis.gate.sides import Difference
from parabench.analysis.tables import FindingGroup, when
from parabench.pages.section import Section, Table
from parabench.record import Finding


def difference_section(title: str, differences: Iterable[Difference], name: str = "differs") -> Section:
    """What is not the same on both sides, as a table."""
    rows: list[tuple[str, ...]] = [(each.name, each.base, each.candidate) for each in differences]
    table = (Table(title, ("", "Base", "Candidate"), rows, texts=3, closed=False),) if rows else ()
    return Section(name, title, "", [], "Nothing that was recorded.", table)


def finding_groups(findings: Iterable[Finding]) -> list[FindingGroup]:
    """Doubts as the page shows them."""
    return [FindingGroup(each.code, each.advice, (each.message,)) for each in findings]


def launch_section(cases: Iterable[tuple[str, tuple[int, ...], tuple[int, ...]]]) -> Section:
    """(label, ids in base, ids in candidate): which rows of table `launch` the numbers are made of."""
    rows: list[tuple[str, ...]] = [
        (label, compare_words.ids(base), compare_words.ids(candidate)) for label, base, candidate in cases
    ]
    return Section(
        "launches",
        "Launches that the numbers are made of",
        "Ids in table launch of each side's store.",
        [],
        "None.",
        (Table(words.count(len(rows), "case"), ("Case", "Base", "Candidate"), rows, texts=3),),
    )


def side_section(origins: tuple[Origin, Origin]) -> Section:
    """Where both sides' numbers are from."""
    names = ("session", "suite", "store", "command", "started", "finished", "launches")
    values = [
        (
            each.session,
            each.suite,
            each.at,
            each.command,
            when(each.started_utc),
            when(each.finished_utc) if each.finished_utc else "not finished: more launches were planned",
            f"{each.good} of {each.launches} ended well",
        )
        for each in origins
    ]
    rows = [(name, *pair) for name, *pair in zip(names, *values, strict=True)]
    table = Table("The two sides", ("", "Base", "Candidate"), rows, texts=3, closed=False)
    return Section("sides", "The two sides", "", [], "", (table,))
