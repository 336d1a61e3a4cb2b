"""The order of measurements in a launch that collective cases share. Free of torch.

Comparisons are sharpest between cases that share processes and minutes (`plan.turns`). Cases that differ only in their
algorithm are interleaved, at one size and form after the other, so that rounds are short and one set of buffers serves
all of them. Other cases (another operation, another number of ranks) come before or after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from parabench.plan.collective_case import CollectiveCase
from parabench.plan.collective_protocol import LATENCY, CollectiveProtocol, Slot, dealt_out
from parabench.plan.turns import orders


class Turn(NamedTuple):
    """A number of consecutive readings of the case at `place` of its launch."""

    place: int
    readings: int


@dataclass(frozen=True, slots=True)
class Stage:
    """One size and form, and the places of the cases that are interleaved at it. Each case is checked and warmed up
    with `warmup` readings, all take their `turns`, and each is checked again."""

    bytes: int
    in_place: bool
    places: tuple[int, ...]
    warmup: int
    turns: tuple[Turn, ...]


class Row(NamedTuple):
    """A row of a rank's marks: a reading around `slot` for the case at `place`. Without a slot, the rank prepares or
    checks results."""

    place: int
    slot: Slot | None


def stages(protocol: CollectiveProtocol, cases: Sequence[CollectiveCase]) -> list[Stage]:
    """Return the stages of a launch of `cases`, in order; the same on every rank and in the driver."""
    alike: dict[tuple[object, int, bool], list[int]] = {}
    for place, case in enumerate(cases):
        kind = case.op, case.world_size, case.dtype, case.redop
        for size, in_place in case.turns():
            alike.setdefault((kind, size, in_place), []).append(place)
    # If calls are back to back, the second reading of warm-up runs on into the first turn.
    warmup, run_in = (protocol.warmup, 0) if protocol.mode == LATENCY else (1, 1)
    found = []
    for number, ((_, size, in_place), places) in enumerate(alike.items()):
        dealt = dealt_out(protocol.timed_at(size), protocol.rounds if len(places) > 1 else 1)
        # The number of the stage seeds the orders. Each repetition has its cases in another order, so these differ too.
        rounds = zip(orders(len(places), len(dealt), number), dealt, strict=True)
        turns = [
            Turn(places[at], readings + (run_in if first == 0 else 0))
            for first, (order, readings) in enumerate(rounds)
            for at in order
        ]
        found.append(Stage(size, in_place, tuple(places), warmup, tuple(turns)))
    return found


def most_rounds(protocol: CollectiveProtocol, cases: Sequence[CollectiveCase]) -> int:
    """Return the largest number of rounds of interleaved cases at any size and form; 0 if no two cases differ only in
    their algorithm."""
    shared = [stage for stage in stages(protocol, cases) if len(stage.places) > 1]
    return max((len(stage.turns) // len(stage.places) for stage in shared), default=0)


def rows(protocol: CollectiveProtocol, cases: Sequence[CollectiveCase]) -> Iterator[Row]:
    """Yield the rows of a rank's marks, in the order in which they are filled. The readings of a case are its schedule.
    In a shared launch the other rows show whose turn it was when it failed."""
    if protocol.takes_turns:
        yield Row(0, None)
    for stage in stages(protocol, cases):
        slots = {place: iter(protocol.slots(stage.bytes, stage.in_place)) for place in stage.places}
        for place, readings in (*(Turn(place, stage.warmup) for place in stage.places), *stage.turns):
            for _ in range(readings):
                yield Row(place, next(slots[place]))
        if protocol.takes_turns:
            yield from (Row(place, None) for place in stage.places)
