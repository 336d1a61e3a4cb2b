"""How long a collective of a case takes: as measured, or by its rounds over links that were measured or given."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from parabench.analysis.prediction.collective_times import BEYOND, Collective, MeasuredTimes, command
from parabench.analysis.prediction.network import Extrapolated, Link, measured_link
from parabench.analysis.prediction.program import Call
from parabench.analysis.prediction.schedule import BETWEEN, WITHIN
from parabench.collectives import is_backends, levels_of
from parabench.errors import UsageError
from parabench.plan.case import Case
from parabench.plan.collective_case import size_text
from parabench.strategies import entry_of


@dataclass(frozen=True, slots=True)
class Place:
    """Where a group's ranks are: on `nodes` nodes, `per_node` on each. The ranks of a node send for as many groups as
    `beside` at the same time."""

    nodes: int
    per_node: int
    beside: int = 1

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self.nodes * self.per_node

    @property
    def tier(self) -> str:
        """The farthest that its ranks send over."""
        return BETWEEN if self.nodes > 1 else WITHIN

    @classmethod
    def of(cls, call: Call, case: Case) -> Place:
        """Where the ranks of a call are, in a case whose ranks are numbered node by node."""
        size, stride, first = call.group
        here = case.world_size // case.nodes
        if case.nodes == 1:
            return cls(1, size)
        if call.is_message:
            return cls(2, 1) if first // here != (first + stride) // here else cls(1, 2)
        if entry_of(case.strategy).ranks_differ:
            # As of stages that share weights: there is no other group of the kind, which would send beside it.
            there = Counter((first + at * stride) // here for at in range(size))
            even = len(set(there.values())) == 1
            return cls(len(there), size // len(there)) if even else cls(size, 1)
        # Where groups do not fill nodes evenly the one that is cut most is the slowest.
        inside = max(1, math.gcd(size * stride, here) // stride)
        if size % inside:
            inside = math.gcd(size, inside)
        return cls(size // inside, inside, min(stride, here) if size > inside else 1)


@dataclass(frozen=True)
class CollectiveSeconds:
    """What collectives take, from what was `measured` and links of tiers that were `given` instead."""

    measured: Mapping[Collective, MeasuredTimes]
    given: Mapping[str, Link]

    def seconds(self, call: Call, case: Case, slowed: float = 1.0) -> float:
        """How long a collective of the case takes where nothing disturbs it; or where sending and receiving take
        `slowed` times as long, and links what they take. Raises UsageError where that is not known."""
        key = call, case.algorithm, case.world_size, case.nodes, slowed
        if key not in self._known:
            self._known[key] = self._seconds(call, case, slowed)
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[Call, str, int, int, float], float]:
        return {}

    def _seconds(self, call: Call, case: Case, slowed: float) -> float:
        place = Place.of(call, case)
        if place.ranks == 1:
            return 0.0
        call = call._replace(op=_timed_as(call))
        exact = self.measured.get(Collective(call.op, case.algorithm, place.ranks, place.nodes))
        size = np.array([float(call.bytes)])
        if exact is None or place.beside > 1 or self.is_given(place):
            return float(self._extrapolated(call.op, case.algorithm, place, call.bytes, slowed)(size)[0])
        exact.require(call.bytes)
        took = float(exact(size)[0])
        if slowed == 1.0:
            return took
        if place.nodes == 1:
            return slowed * took
        sends = self._sends(call.op, case.algorithm)
        if sends is None:
            return took
        links = {WITHIN: sends, BETWEEN: sends}
        inside = Extrapolated(call.op, exact.schedule, place.ranks, place.per_node, links, exact.piece_bytes)
        return max(took, slowed * float(inside(size)[0]))

    def handling(self, call: Call, case: Case) -> float:
        """How many seconds a rank is busy with a call's messages, whatever its bytes and links: what it takes of the
        fewest bytes that were measured, with every message within a node. The backend's own threads send the messages
        of the backend's algorithms: of these it is what 2 ranks take. 0 where that was not measured."""
        place, op = Place.of(call, case), _timed_as(call)
        key = op, case.algorithm, place
        if key not in self._handled:
            self._handled[key] = self._handling(op, case.algorithm, place)
        return self._handled[key]

    @cached_property
    def _handled(self) -> dict[tuple[str, str, Place], float]:
        return {}

    def _handling(self, op: str, algorithm: str, place: Place) -> float:
        if place.ranks == 1:
            return 0.0
        pair = self.measured.get(Collective(op, algorithm, 2))
        if is_backends(algorithm):
            return 0.0 if pair is None else float(pair.seconds[0])
        inner, outer = levels_of(algorithm) or (algorithm, algorithm)
        within, between = self._sends(op, inner), self._sends(op, outer)
        if within is None or between is None:
            return 0.0
        links = {WITHIN: within, BETWEEN: between}
        found = Extrapolated(op, self._schedule(op, algorithm), place.ranks, place.per_node, links, 1 << 60)
        return float(found(np.array([1.0]))[0])

    def is_given(self, place: Place) -> bool:
        """Whether what ranks there send goes over links that were given."""
        return place.tier in self.given

    def _extrapolated(self, op: str, algorithm: str, place: Place, size: int, slowed: float) -> Extrapolated:
        tiers = [tier for tier, there in ((WITHIN, place.per_node > 1), (BETWEEN, place.nodes > 1)) if there]
        links, piece_bytes = {}, 1 << 60
        for tier in tiers:
            links[tier], pieces = self._link(op, algorithm, tier, slowed)
            piece_bytes = min(piece_bytes, pieces)
        if place.beside > 1 and BETWEEN in links:
            links[BETWEEN] = _shared(links[BETWEEN], place.beside)
        found = Extrapolated(op, self._schedule(op, algorithm), place.ranks, place.per_node, links, piece_bytes)
        try:
            beyond = found.beyond(size)
        except ValueError as error:
            raise UsageError(
                f"how {op} {algorithm} goes round {place.ranks} ranks is not known, only what was measured: {error}; "
                f"measure it: {command(Collective(op, algorithm, place.ranks, place.nodes))}"
            ) from None
        for tier, (_, most) in beyond.items():
            if most > links[tier].most:
                asked, known = size_text(round(most)), size_text(round(links[tier].most / BEYOND))
                raise UsageError(
                    f"{op} {algorithm} of {size_text(size)} among {place.ranks} ranks has messages of {asked} {tier}, "
                    f"more than {BEYOND} times what was measured ({known}); measure larger "
                    f"ones: {command(Collective(op, algorithm, 2, 1 if tier == WITHIN else 2))} --max "
                    f"{size_text(2 * round(most)).replace(' ', '')}"
                )
        return found

    def _schedule(self, op: str, algorithm: str) -> str:
        """The algorithm by whose rounds it goes, as its tables tell."""
        tables = (self.measured.get(Collective(op, algorithm, 2, nodes)) for nodes in (1, 2))
        return next((times.schedule for times in tables if times is not None), algorithm)

    def _link(self, op: str, algorithm: str, tier: str, slowed: float) -> tuple[Link, int]:
        """What a message takes over a tier where sending takes `slowed` times as long, and what messages are cut to.

        A tier that was given, or that is slow, is never quicker than sending within a node, where that was measured.
        """
        levels = levels_of(algorithm)
        of = algorithm if levels is None else levels[tier == BETWEEN]
        key = Collective(op, of, 2, 1 if tier == WITHIN else 2)
        times = self.measured.get(key)
        measured = None if times is None else measured_link(times, tier, times.piece_bytes)
        given, sends = self.given.get(tier), self._sends(op, of)
        found = given or measured
        if found is None:
            flag = f"or give it: --link {'local' if tier == WITHIN else 'node'}=25GB/s,20us"
            raise UsageError(f"links {tier} were not measured for {op} {of}; {command(key)}, {flag}")
        if sends is not None and (given is not None or slowed > 1.0):
            found = _slower(found, sends, slowed)
        inside = self.measured.get(Collective(op, of, 2, 1))
        pieces = [each.piece_bytes for each in (times, inside) if each is not None]
        return found, min(pieces, default=1 << 60)

    def _sends(self, op: str, algorithm: str) -> Link | None:
        """What a message takes between two ranks of a node; None where that was not measured."""
        times = self.measured.get(Collective(op, algorithm, 2, 1))
        return None if times is None else measured_link(times, WITHIN, times.piece_bytes)


def _timed_as(call: Call) -> str:
    """The operation by whose times it goes: a broadcast among two ranks is one message and nothing else."""
    return "broadcast" if call.is_message else call.op


def _shared(link: Link, by: int) -> Link:
    """A link that so many groups send over at the same time."""
    seconds = link.seconds
    return Link(lambda sizes: seconds(by * np.asarray(sizes, dtype=float)), link.least / by, link.most / by)


def _slower(link: Link, sends: Link, slowed: float) -> Link:
    """A link between ranks that need `slowed` times as long as `sends` to send."""
    one, other = link.seconds, sends.seconds
    return Link(
        lambda sizes: np.maximum(one(sizes), slowed * other(np.minimum(sizes, sends.most))), link.least, link.most
    )
