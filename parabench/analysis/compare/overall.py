"""Which side is fastest at one work, over all cases at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parabench.analysis.compare.between import alike, between_means
from parabench.analysis.compare.ratios import Pair, launches_of, mean_ratio
from parabench.analysis.compare.rule import Outcome
from parabench.analysis.compare.several import SHARED_WORK, Row, Several
from parabench.analysis.compare.sides import interleaved
from parabench.analysis.numbers import Launches, same_work
from parabench.analysis.session import SessionData
from parabench.analysis.stats.geometric import Mean
from parabench.analysis.stats.ttest import FEWEST_LAUNCHES, Between
from parabench.analysis.text import format
from parabench.strategies import entry_of


class Means:
    """Means over rows of `of`. The launches of two sides are gathered once, however many works they did."""

    def __init__(self, of: Several) -> None:
        self._of = of
        self._launches: dict[tuple[str, int, int], dict[Pair, Launches]] = {}
        self._alike: dict[tuple[int, int], list[SessionData]] = {}

    def of(self, rows: Sequence[Row], base: int, other: int, name: str = "step_time") -> Mean:
        """The mean of a number (step_time, per_joule, per_gb) of the side `other` over that of the side `base`, over
        those of `rows` that both have with launches enough; without a number, with the reason. Of step_time its
        interval holds what sessions differ by themselves, as the gate's rule has it of a case."""
        pairs = [(row[base], row[other]) for row in rows]
        both = [(first, second) for first, second in pairs if first is not None and second is not None]
        if not both:
            role = self._of.sides[base].role
            return Mean(None, None, None, 0, 0, 0, f"no case in common with {role}")
        paired = interleaved(self._of.sides[base], self._of.sides[other]) and not self._of.launches_alone
        known = self._of.known[name]
        if (name, base, other) not in self._launches:
            every = [(row[base], row[other]) for row in self._of.rows]
            taken = [(first, second) for first, second in every if first is not None and second is not None]
            self._launches[name, base, other] = launches_of(taken, known[base], known[other], paired)
        there = self._launches[name, base, other]
        between = None
        if name == "step_time" and not paired and not self._of.launches_alone:

            def between(cases: Sequence[Pair]) -> Between:
                return self._between(base, other, cases)

        return mean_ratio({pair: there[pair] for pair in both}, paired, self._why(rows, base, other, name), between)

    def _between(self, base: int, other: int, cases: Sequence[Pair]) -> Between:
        sides = self._of.sides[base], self._of.sides[other]
        if (base, other) not in self._alike:
            self._alike[base, other] = list(alike(*sides))
        return between_means(*sides, cases, self._alike[base, other])

    def _why(self, rows: Sequence[Row], base: int, other: int, name: str) -> str:
        """Why the cases without a ratio have none, as far as they are held against the first side."""
        if base != 0:
            return "no case succeeded on both sides"
        found = [self._of.ratio(row, other, name) for row in rows]
        return format.listed(dict.fromkeys(each.reason for each in found if each and each.ratio is None), most=2)


# What is told of a work besides its step time.
GIVES = ("per_joule", "per_gb")


@dataclass(frozen=True)
class Left:
    """How many cases of a work no mean is of: on some side of the compared with a `single` launch where others have
    more, or not measured on one of them (`absent`). `lost` and `mended` are counted for every side but the first: what
    succeeded on the first and no longer does there, and the other way round. `met` are the cases that the first and
    another side have at all."""

    met: int
    single: int
    absent: int
    lost: tuple[int, ...]
    mended: tuple[int, ...]


@dataclass(frozen=True)
class Overall:
    """The sides at one work. `heading` sets it apart from others, empty where there is one.

    Of its cases `cases` may be an answer; the others, such as training that exchanges nothing, count nowhere.
    `compared` are the places of sides that can be held against each other: the first and all with a case in common with
    it that succeeded on both. `means` are of every side but the first, its step time over the first's, over the same
    `shared` cases for all of `compared`; where no case is common to all of these, `shared` is 0 and each mean is over
    the cases that the side has in common with the first. `gives` are the means of `GIVES`, each over its own.

    `best` is the fastest of those whose mean has an interval, and of the first; `tied` are those of them that the
    95 % interval of their ratio to it does not tell from it. None and empty where no mean has an interval: one launch a
    case says nothing. `changes` count the cases of each side but the first that have a ratio.
    """

    heading: str
    work: dict[str, Any]
    names: tuple[str, ...]
    compared: tuple[int, ...]
    cases: int
    shared: int
    means: tuple[Mean, ...]
    gives: dict[str, tuple[Mean, ...]]
    best: int | None
    tied: tuple[int, ...]
    changes: tuple[dict[Outcome, int], ...]
    left: Left

    @property
    def others(self) -> tuple[int, ...]:
        """Those of `compared` that are held against the first."""
        return self.compared[1:]

    @property
    def judged(self) -> tuple[int, ...]:
        """Those of `compared` of which can be said whether they are faster: the first, and whose mean has an
        interval."""
        return (0, *(at for at in self.others if self.means[at - 1].low is not None))


def overall(of: Several) -> tuple[Overall, ...]:
    """One for each work, in the order of the cases."""
    works = same_work(of.cases, SHARED_WORK)
    differing = [name for name in SHARED_WORK if len({str(work[name]) for work, _ in works}) > 1]
    place = dict(zip(of.cases["case_id"], of.rows, strict=True))
    means = Means(of)
    return tuple(
        _overall(of, means, work, _heading(work, differing), {place[row["case_id"]]: str(row["strategy"])
                                                              for row in group.to_dict("records")})
        for work, group in works
    )  # fmt: skip


def work_key(work: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells a work from others, on whatever machine it was done."""
    return tuple(None if _unset(work.get(name)) else work[name] for name in SHARED_WORK)


def _unset(value: Any) -> bool:
    return value is None or value != value  # pandas makes NaN of None


def _heading(work: dict[str, Any], differing: Iterable[str]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {'default' if _unset(work[name]) else work[name]}" for name in differing
    )


def _overall(of: Several, means: Means, work: dict[str, Any], heading: str, strategies: dict[Row, str]) -> Overall:
    rows = [row for row, strategy in strategies.items() if entry_of(strategy).ranked]
    sides = range(len(of.sides))
    fewest = {row: tuple(_launches(of, row, at) for at in sides[1:]) for row in rows}
    compared = (0, *(at for at in sides[1:] if any(each[at - 1] for each in fewest.values())))
    # An interval needs launches; a side without any case that has them can still be told of.
    needed = {at: min(FEWEST_LAUNCHES, max(each[at - 1] for each in fewest.values())) for at in compared[1:]}
    shared = [row for row in rows if needed and all(fewest[row][at - 1] >= n for at, n in needed.items())]
    single = sum(all(fewest[row][at - 1] for at in compared[1:]) for row in rows) - len(shared) if needed else 0
    found = tuple(means.of(shared if shared and at in compared else rows, 0, at) for at in sides[1:])
    best, tied = _fastest(means, compared, found, shared)
    return Overall(
        heading=heading,
        work=work,
        names=tuple(side.role for side in of.sides),
        compared=compared,
        cases=len(rows),
        shared=len(shared),
        means=found,
        gives={name: tuple(means.of(rows, 0, at, name) for at in sides[1:]) for name in GIVES},
        best=best,
        tied=tied,
        changes=tuple(_changes(of, at, rows) for at in sides[1:]),
        left=Left(
            sum(row[0] is not None and any(row[1:]) for row in rows),
            single,
            sum(any(row[at] is None for at in compared) for row in rows),
            *(tuple(len(lost_on(of, rows, *pair)) for pair in pairs)
              for pairs in ([(0, at) for at in sides[1:]], [(at, 0) for at in sides[1:]])),
        ),
    )  # fmt: skip


def _launches(of: Several, row: Row, at: int) -> int:
    """With how many launches a row is held against the first side, on the side that has fewer; 0 without a ratio."""
    ratio = of.ratio(row, at)
    return 0 if ratio is None else min(len(ratio.base_launches), len(ratio.candidate_launches))


def _fastest(
    means: Means, compared: tuple[int, ...], found: tuple[Mean, ...], shared: Sequence[Row]
) -> tuple[int | None, tuple[int, ...]]:
    """Which side is fastest over the shared cases, and which are not told from it."""
    ratios = {0: 1.0} | {at: found[at - 1].ratio or 1.0 for at in compared[1:] if found[at - 1].low is not None}
    if not shared or len(ratios) < 2:
        return None, ()
    best = min(ratios, key=ratios.__getitem__)

    def slower(at: int) -> bool:
        if at == 0:  # what the best is to the first, turned around
            high = found[best - 1].high
            return high is not None and high < 1
        low = found[at - 1].low if best == 0 else means.of(shared, best, at).low
        return low is not None and low > 1

    return best, tuple(at for at in ratios if at != best and not slower(at))


def lost_on(of: Several, rows: Iterable[Row], well: int, other: int) -> list[Row]:
    """The rows that succeeded on the side `well`, and were launched on the side `other` without succeeding there."""
    there, here = (of.known["step_time"][at].by_case for at in (well, other))
    return [row for row in rows if row[well] in there and row[other] is not None and row[other] not in here]


def _changes(of: Several, at: int, rows: Iterable[Row]) -> dict[Outcome, int]:
    known = ((row, of.ratio(row, at)) for row in rows)
    found = (of.change(row, at) for row, ratio in known if ratio is not None and ratio.ratio is not None)
    return dict(Counter(change for change in found if change is not None))
