"""What every page of several sides tells besides their numbers: what differs, doubts, where the numbers are from."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence

from parabench.analysis.environment.diff import Difference
from parabench.analysis.session import Origin
from parabench.analysis.text import compare, format
from parabench.analysis.warnings.codes import FindingGroup
from parabench.report.spec import Column, Section, table_of
from parabench.store.record import Finding

TWO = ("Base", "Candidate")


def of_each(names: Sequence[str], field: str) -> list[Column]:
    """A column of words for each side: what `field` of a row holds at the side's place."""
    return [Column(name, f"{field}.{at}") for at, name in enumerate(names)]


def difference_section(title: str, differences: Iterable[Difference]) -> Section:
    """What is not the same on both sides, as a table."""
    columns = (Column("", "name"), *(Column(name, name.lower()) for name in TWO))
    table = table_of(title, columns, differences, closed=False)
    return Section("differs", title, "", "Nothing that was recorded.", (table,) if table.rows else ())


def finding_groups(findings: Iterable[Finding]) -> list[FindingGroup]:
    """Doubts as the page shows them."""
    return [FindingGroup(each.code, each.advice, (each.message,)) for each in findings]


def explore(origins: Sequence[Origin]) -> str:
    """What shows the same sides with all their cases, curves and facts."""
    return shlex.join(["parabench", "report", *(origin.at for origin in origins)])


def launch_section(
    cases: Iterable[tuple[str, Sequence[tuple[int, ...]]]], names: tuple[str, ...] = TWO, most: int | None = None
) -> Section:
    """(label, ids on each side): which rows of table `launch` the numbers are made of; at most so many cases."""
    rows = [{"label": label, "ids": [*map(compare.ids, sides)]} for label, sides in cases]
    shown = rows[:most]
    some = "" if len(shown) == len(rows) else f" Listed are {len(shown):,} of {format.count(len(rows), 'case')}."
    table = table_of(format.count(len(shown), "case"), (Column("Case", "label"), *of_each(names, "ids")), shown)
    return Section(
        "launches",
        "Launches that the numbers are made of",
        f"Ids in table launch of each side's store.{some}",
        "None.",
        (table,) if rows else (),
    )


def side_section(origins: Sequence[Origin], names: tuple[str, ...] = TWO, title: str = "The two sides") -> Section:
    """Where the sides' numbers are from."""
    said: dict[str, Callable[[Origin], str]] = {
        "session": lambda each: each.session,
        "suite": lambda each: each.suite,
        "store": lambda each: each.at,
        "command": lambda each: each.command,
        "started": lambda each: format.when(each.started_utc),
        "finished": lambda each: (
            format.when(each.finished_utc) if each.finished_utc else "not finished: more launches were planned"
        ),
        "launches": lambda each: f"{each.good} of {each.launches} ended well",
    }
    rows = [{"name": name, "said": [*map(say, origins)]} for name, say in said.items()]
    table = table_of(title, (Column("", "name"), *of_each(names, "said")), rows, closed=False)
    return Section("sides", title, "", "", (table,))
