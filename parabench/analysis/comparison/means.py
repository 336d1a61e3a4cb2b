"""Geometric means of some of the cases between any two sides."""

from __future__ import annotations

from collections.abc import Sequence

from parabench.analysis.compare.between import alike, between_means
from parabench.analysis.compare.ratios import Launches, Pair, launches_of, mean_ratio
from parabench.analysis.compare.sides import interleaved
from parabench.analysis.comparison.several import Row, Several
from parabench.analysis.session import SessionData
from parabench.analysis.stats.geometric import Mean
from parabench.analysis.stats.ttest import Between
from parabench.analysis.text import format


class Means:
    """Means over rows of `of`. The launches of two sides are gathered once, however many works they did."""

    def __init__(self, of: Several) -> None:
        self._of = of
        self._launches: dict[tuple[str, int, int], dict[Pair, Launches]] = {}
        self._alike: dict[tuple[int, int], list[SessionData]] = {}

    def of(self, rows: Sequence[Row], base: int, other: int, name: str = "latency") -> Mean:
        """The mean of a number (latency, per_joule, per_gb) of the side `other` over that of the side `base`, over
        those of `rows` that both have with launches enough; without a number, with the reason. Of latency its interval
        holds what sessions differ by themselves, as the gate's rule has it of a case."""
        pairs = [(row[base], row[other]) for row in rows]
        both = [(first, second) for first, second in pairs if first is not None and second is not None]
        if not both:
            role = self._of.sides[base].role
            return Mean(None, None, None, 0, 0, 0, f"no case in common with {role}")
        paired = interleaved(self._of.sides[base], self._of.sides[other])
        known = self._of.known[name]
        if (name, base, other) not in self._launches:
            every = [(row[base], row[other]) for row in self._of.rows]
            taken = [(first, second) for first, second in every if first is not None and second is not None]
            self._launches[name, base, other] = launches_of(taken, known[base], known[other], paired)
        there = self._launches[name, base, other]
        between = None
        if name == "latency" and not paired:

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
            return "no case ended well on both sides"
        found = [self._of.ratio(row, other, name) for row in rows]
        return format.listed(dict.fromkeys(each.reason for each in found if each and each.ratio is None), most=2)
