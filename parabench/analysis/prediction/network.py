"""How long a collective takes among ranks that are spread over nodes, from how long one message takes on each tier.

A collective takes as long as the longest of its chains (`schedule`), and a chain the sum of its rounds: `times`
t(`flows` `share` S), where t(x) is what a message of x bytes takes over the round's tier. So flows that share a link
take as long as one message of all their bytes, which is so where the link, not the ranks, is what limits them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from parabench.analysis.prediction.buckets import SecondsOf
from parabench.analysis.prediction.collective_times import BEYOND, MeasuredTimes
from parabench.analysis.prediction.schedule import BETWEEN, WITHIN, Rounds, chains, rounds
from parabench.analysis.stats.quantiles import Numbers
from parabench.errors import UsageError

_RATES = {
    f"{prefix}{unit}/s": factor / bits
    for prefix, factor in {
        "": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
        "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
    }.items()
    for unit, bits in (("B", 1), ("bit", 8))
}  # fmt: skip
_TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER_AND_UNIT = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([^\s0-9.]\S*)")


@dataclass(frozen=True, slots=True)
class Link:
    """What one message takes over a tier: `seconds` of each of an array of bytes. Between `least` and `most` bytes
    that is known from measurements; below, a message takes what the least one does, and beyond `most` it is infinite.
    """

    seconds: SecondsOf
    least: float = 0.0
    most: float = math.inf


def given_link(text: str) -> Link:
    """latency + x / bandwidth, of a text such as "25GB/s,20us" or "200Gbit/s, 5 µs", in either order.

    Raises UsageError for anything else.
    """
    rate, latency = None, None
    parts = text.split(",")
    for part in parts:
        match = _NUMBER_AND_UNIT.fullmatch(part.strip())
        number = float(match[1]) if match else 0.0
        if match is None or not 0 < number < math.inf:
            break
        if match[2] in _RATES and rate is None:
            rate = number * _RATES[match[2]]
        elif match[2] in _TIMES and latency is None:
            latency = number * _TIMES[match[2]]
    if len(parts) != 2 or rate is None or latency is None:
        raise UsageError(
            f"link {text!r} is not a bandwidth and a latency, both above 0; write it as 25GB/s,20us, with B/s or bit/s "
            "after k, M, G, Ki, Mi or Gi, and ns, us, ms or s"
        )
    a, b = latency, 1 / rate
    return Link(lambda sizes: a + np.asarray(sizes, dtype=float) * b)


def measured_link(times: MeasuredTimes, tier: str, piece_bytes: int) -> Link | None:
    """A tier as 2 ranks there took it, for the same operation and algorithm.

    With times t_i and shares s_i of the rounds of 2 ranks, T2(S) = sum of t_i t(s_i S). Where all messages are alike,
    t(x) = T2(x/s) / sum of t_i, exactly: a ring's all_reduce has T2(S) = 2 t(S/2). Where they are not, s is the mean
    share of a message, which is exact for a straight line. None for an algorithm without a schedule. Raises ValueError
    for times of other than 2 ranks.
    """
    of = times.collective
    if of.world_size != 2:
        raise ValueError(f"{of}: only 2 ranks tell how long a message takes")
    found = rounds(of.op, times.schedule, 2, 2 if tier == WITHIN else 1, times.sizes[-1], piece_bytes)
    if found is None:
        return None
    messages = sum(each.times for each in found)
    share = sum(each.times * each.share for each in found) / messages
    return Link(
        lambda sizes: times(np.asarray(sizes, dtype=float) / share) / messages,
        float(times.sizes[0] * share),
        float(times.sizes[-1] * share * BEYOND),
    )


@dataclass(frozen=True, slots=True)
class Extrapolated:
    """An operation by an algorithm among `world_size` ranks, `ranks_per_node` on each node, over the links of tiers
    (WITHIN, BETWEEN). Called with an array of sizes in bytes it gives seconds; infinite for what is beyond a link."""

    op: str
    algorithm: str
    world_size: int
    ranks_per_node: int
    links: Mapping[str, Link]
    piece_bytes: int

    def __call__(self, sizes: Numbers) -> Numbers:
        """Seconds of calls of these sizes. Raises ValueError where a tier has no link, or nothing has a schedule."""
        sizes = np.asarray(sizes, dtype=float)
        # Rounds depend on the size by the number of pieces alone.
        pieces = np.ceil(np.maximum(sizes, 1.0) / self.piece_bytes)
        lowest, highest = (self.chains(float(edge) * self.piece_bytes) for edge in (pieces.min(), pieces.max()))
        if lowest == highest:
            return self._seconds(lowest, sizes)
        found = np.empty_like(sizes)
        for count in np.unique(pieces):
            alike = pieces == count
            found[alike] = self._seconds(self.chains(float(count) * self.piece_bytes), sizes[alike])
        return found

    def chains(self, size: float) -> tuple[Rounds, ...]:
        """The chains of a call of so many bytes. Raises ValueError as a call does."""
        found = chains(self.op, self.algorithm, self.world_size, self.ranks_per_node, size, self.piece_bytes)
        if found is None:
            raise ValueError(f"{self.op} {self.algorithm} has no schedule")
        if lacking := {each.tier for chain in found for each in chain} - set(self.links):
            raise ValueError(f"{self.op} {self.algorithm} also goes {' and '.join(sorted(lacking))}")
        return found

    def beyond(self, size: int) -> dict[str, tuple[float, float]]:
        """By tier, the bytes of the smallest and largest message of a call where they are not between those that its
        link knows."""
        found: dict[str, tuple[float, float]] = {}
        rounds_of_all = [each for chain in self.chains(size) for each in chain]
        for tier in (WITHIN, BETWEEN):
            messages = [each.flows * each.share * size for each in rounds_of_all if each.tier == tier]
            if messages and (min(messages) < self.links[tier].least or max(messages) > self.links[tier].most):
                found[tier] = min(messages), max(messages)
        return found

    def _seconds(self, found: tuple[Rounds, ...], sizes: Numbers) -> Numbers:
        totals = [np.zeros_like(sizes) for _ in found]
        for total, chain in zip(totals, found, strict=True):
            for each in chain:
                total += each.times * self.links[each.tier].seconds(each.flows * each.share * sizes)
        longest: Numbers = np.max(totals, axis=0)
        return longest
