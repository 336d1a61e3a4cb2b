"""Collective cases that share a launch: which of them take turns with each other, and in which order clocks are read.

Cases are compared most sharply where they share processes and minutes (`plan.turns`). Those that differ by their
algorithm alone take turns, at one size and form after the other: rounds are short, and one set of buffers serves all of
them. What else a launch holds (other operations, other numbers of ranks) comes before or after. Free of torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from parabench.plan.collective_case import CollectiveCase
from parabench.plan.collective_protocol import LATENCY, CollectiveProtocol, Slot, dealt_out
from parabench.plan.turns import orders


class Turn(NamedTuple):
    """So many readings of the case at `place` of its launch."""

    place: int
    readings: int


@dataclass(frozen=True, slots=True)
class Stage:
    """One size and form, and the places in their launch of the cases that take turns at it: each is checked and warmed
    up with `warmup` readings, all take their `turns`, and each is checked again."""

    bytes: int
    in_place: bool
    places: tuple[int, ...]
    warmup: int
    turns: tuple[Turn, ...]


class Row(NamedTuple):
    """What a rank does until it fills a row of its marks: for the case at `place` it reads the clock around `slot`;
    None: it makes ready, or checks results."""

    place: int
    slot: Slot | None


def stages(protocol: CollectiveProtocol, cases: Sequence[CollectiveCase]) -> list[Stage]:
    """What a launch of `cases` does, one after the other; the same on every rank and in the driver."""
    alike: dict[tuple[object, int, bool], list[int]] = {}
    for place, case in enumerate(cases):
        kind = case.op, case.world_size, case.dtype, case.redop
        for size, in_place in case.turns():
            alike.setdefault((kind, size, in_place), []).append(place)
    return [
        _stage(protocol, size, in_place, tuple(places), number)
        for number, ((_, size, in_place), places) in enumerate(alike.items())
    ]


def _stage(protocol: CollectiveProtocol, size: int, in_place: bool, places: tuple[int, ...], number: int) -> Stage:
    """Its orders are by `number`; every block has its cases in an order of its own, so these differ too."""
    # Of calls back to back the second reading of warm-up runs on into the first turn.
    warmup, run_in = (protocol.warmup, 0) if protocol.mode == LATENCY else (1, 1)
    dealt = dealt_out(protocol.timed_at(size), protocol.rounds if len(places) > 1 else 1)
    turns = [
        Turn(places[at], readings + (run_in if first == 0 else 0))
        for first, (order, readings) in enumerate(zip(orders(len(places), len(dealt), number), dealt, strict=True))
        for at in order
    ]
    return Stage(size, in_place, places, warmup, tuple(turns))


def most_rounds(protocol: CollectiveProtocol, cases: Sequence[CollectiveCase]) -> int:
    """In how many rounds cases of a launch take turns, at the size and form that has most; 0 where each comes after the
    other, for no two of them differ by their algorithm alone."""
    shared = [stage for stage in stages(protocol, cases) if len(stage.places) > 1]
    return max((len(stage.turns) // len(stage.places) for stage in shared), default=0)


def rows(protocol: CollectiveProtocol, cases: Sequence[CollectiveCase]) -> Iterator[Row]:
    """What each row of a rank's marks is of, in the order in which they are filled. Those of a case that are readings
    are its schedule, in that order; in a launch that cases share the others tell whose turn it was when it failed."""
    if protocol.takes_turns:
        yield Row(0, None)
    for stage in stages(protocol, cases):
        slots = {place: iter(protocol.slots(stage.bytes, stage.in_place)) for place in stage.places}
        for place, readings in (*(Turn(place, stage.warmup) for place in stage.places), *stage.turns):
            for _ in range(readings):
                yield Row(place, next(slots[place]))
        if protocol.takes_turns:
            yield from (Row(place, None) for place in stage.places)
