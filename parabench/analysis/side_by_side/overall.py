"""Which side is fastest at one work, over all cases at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from parabench.analysis.frames import same_work
from parabench.analysis.gate.geometric import Mean
from parabench.analysis.gate.ratios import launches_of, mean_ratio
from parabench.analysis.gate.sides import interleaved
from parabench.analysis.side_by_side.several import SHARED_WORK, Change, Several

Row = tuple[str | None, ...]


@dataclass(frozen=True)
class Overall:
    """The sides at one work. `heading` sets it apart from others, empty where there is one.

    `means` are of every side but the first, its step time over the first's, over the cases that both have; `together`
    the same over the `shared` cases that all of `compared` (places of sides) have, which are the first and all with a
    case in common with it. `best` is the fastest of these over the shared cases, `equals` are those that the 95 %
    interval of their ratio to it does not tell from it; None and empty where nothing can be said. `changes` count the
    cases of each side but the first.
    """

    heading: str
    work: dict[str, Any]
    names: tuple[str, ...]
    means: tuple[Mean, ...]
    together: tuple[Mean, ...]
    compared: tuple[int, ...]
    shared: int
    best: int | None
    equals: tuple[int, ...]
    changes: tuple[dict[Change, int], ...]
    in_common: int

    @property
    def others(self) -> tuple[int, ...]:
        """Those of `compared` that are held against the first."""
        return self.compared[1:]


def overall(of: Several) -> tuple[Overall, ...]:
    """One for each work, in the order of the cases."""
    works = same_work(of.cases, SHARED_WORK)
    differing = [name for name in SHARED_WORK if len({str(work[name]) for work, _ in works}) > 1]
    place = dict(zip(of.cases["case_id"], of.rows, strict=True))
    return tuple(
        _overall(of, work, _heading(work, differing), [place[case] for case in group["case_id"]])
        for work, group in works
    )


def _heading(work: dict[str, Any], differing: Iterable[str]) -> str:
    default = {name: value is None or value != value for name, value in work.items()}  # pandas makes NaN of None
    return ", ".join(f"{name.replace('_', ' ')} {'default' if default[name] else work[name]}" for name in differing)


def _overall(of: Several, work: dict[str, Any], heading: str, rows: list[Row]) -> Overall:
    sides = range(len(of.sides))
    numbers = [set(known.launches["case_id"]) for known in of.known]

    def both(row: Row, *places: int) -> bool:
        return all(row[at] in numbers[at] for at in places)

    # Of a single work these are known.
    known = len(rows) == len(of.rows)
    means = tuple(against.latency.mean if known else _mean(of, 0, at, rows) for at, against in enumerate(of.against, 1))
    compared = (0, *(at for at in sides[1:] if any(both(row, 0, at) for row in rows)))
    shared = [row for row in rows if both(row, *compared)] if len(compared) > 1 else []
    together = means
    if any(sum(both(row, 0, at) for row in rows) > len(shared) for at in compared[1:]):
        together = tuple(_mean(of, 0, at, shared) for at in sides[1:])
    best, equals = None, tuple[int, ...]()
    if shared:
        ratio = {0: 1.0} | {at: together[at - 1].ratio or 1.0 for at in compared[1:]}
        best = min(ratio, key=ratio.__getitem__)
        equals = tuple(at for at in compared if at != best and not _slower(of, best, at, together, shared))
    return Overall(
        heading=heading,
        work=work,
        names=tuple(side.role for side in of.sides),
        means=means,
        together=together,
        compared=compared,
        shared=len(shared),
        best=best,
        equals=equals,
        changes=tuple(dict(Counter(_changes(of, at, rows))) for at in sides[1:]),
        in_common=sum(None not in row for row in rows),
    )


def _slower(of: Several, best: int, at: int, together: tuple[Mean, ...], shared: list[Row]) -> bool:
    """Whether the interval of a side beside the best one says that it is slower."""
    if at == 0:  # what the best is to the first, turned around
        high = together[best - 1].high
        return high is not None and high < 1
    low = together[at - 1].low if best == 0 else _mean(of, best, at, shared).low
    return low is not None and low > 1


def _mean(of: Several, base: int, other: int, rows: Iterable[Row]) -> Mean:
    """The geometric mean of the step times of the side `other` over those of the side `base`."""
    pairs = [(first, second) for first, second in ((row[base], row[other]) for row in rows) if first and second]
    paired = interleaved(of.sides[base], of.sides[other])
    known = of.known[base], of.known[other]
    # Where every launch failed there is a reason each, and the table of cases tells them.
    reason = "no case ended well on both sides" if pairs else "they have no case in common"
    return mean_ratio(launches_of(pairs, *known, paired), paired, reason)


def _changes(of: Several, at: int, rows: Iterable[Row]) -> Iterator[Change]:
    for row in rows:
        found = of.change(row, at)
        if found is not None:
            yield found
