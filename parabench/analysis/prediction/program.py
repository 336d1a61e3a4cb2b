"""A rank's recorded step, and its timeline with the collectives of more ranks.

All ranks do the same. The collectives of each group run on a queue. Without a recorded wait, a rank waits at the end of
the part of the step, as DDP does in C++.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple

from parabench.store.record import CALL, MIB, PART, WAIT_FOR, WORK

BACKWARD, OPTIMIZER = "backward", "optimizer"

# DDP's default bucket caps: a small first bucket (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES), then 25 MiB.
DEFAULT_CAPS = (MIB, 25 * MIB)


class Group(NamedTuple):
    """Ranks that call together: their number, the distance between their numbers, and the first."""

    size: int
    stride: int = 1
    first: int = 0


class Call(NamedTuple):
    """A collective of `bytes` among a group."""

    op: str
    bytes: int
    group: Group


# A rank's action and its value: PART starts a part of the step (its name), WORK computes (seconds), CALL starts a
# collective (a `Call`), and WAIT_FOR waits for a collective (its number in the step).
Event = tuple[str, Any]


@dataclass(frozen=True, slots=True)
class Program:
    """The step of a rank among `world_size` ranks.

    `gradients` are DDP's, in the order of readiness: (bytes, seconds after backward started when it is ready).
    """

    world_size: int
    events: tuple[Event, ...]
    gradients: tuple[tuple[int, float], ...] = ()

    @property
    def work_s(self) -> float:
        """The seconds of computing."""
        return float(sum(value for kind, value in self.events if kind == WORK))

    def scaled(self, by: float) -> Program:
        """Return the program with its compute times, and the times when gradients are ready, multiplied by `by`."""
        return replace(
            self,
            events=tuple((kind, value * by if kind == WORK else value) for kind, value in self.events),
            gradients=tuple((size, ready_s * by) for size, ready_s in self.gradients),
        )

    def among(self, world_size: int) -> Program:
        """Return the program of a rank of `world_size`: groups of all ranks, and groups across them, grow."""

        def grown(event: Event) -> Event:
            kind, call = event
            if kind != CALL or call.group.size * call.group.stride != self.world_size:
                return event
            return kind, call._replace(group=call.group._replace(size=world_size // call.group.stride))

        return replace(self, world_size=world_size, events=tuple(map(grown, self.events)))

    def with_caps(self, caps: Sequence[int]) -> Program:
        """Return the program with DDP's buckets of these caps in bytes instead of the recorded calls of backward."""
        first, last = (self.events.index((PART, name)) for name in (BACKWARD, OPTIMIZER))
        backward = self.events[first:last]
        backward_s = float(sum(value for kind, value in backward if kind == WORK))
        events, before = [self.events[first]], 0.0
        buckets = self._buckets(caps)
        for size, ready_s in buckets:
            ready = min(backward_s, max(before, ready_s))
            events += [(WORK, ready - before), (CALL, Call("all_reduce", size, Group(self.world_size)))]
            before = ready
        events.append((WORK, backward_s - before))
        # Calls are numbered from the first of the step, and the optimizer's come after the buckets.
        more = len(buckets) - sum(kind == CALL for kind, _ in backward)
        after = ((kind, value + more if kind == WAIT_FOR else value) for kind, value in self.events[last:])
        return replace(self, events=(*self.events[:first], *events, *after))

    def _buckets(self, caps: Sequence[int]) -> list[tuple[int, float]]:
        """Return (bytes, seconds until the last gradient is ready) of each bucket; the last cap applies to all that
        follow.

        DDP fills a bucket until it holds its cap or more (`compute_bucket_assignment_by_size` in torch's reducer.cpp).
        """
        buckets: list[tuple[int, float]] = []
        full = True
        for size, ready_s in self.gradients:
            held, latest = (0, 0.0) if full else buckets.pop()
            buckets.append((held + size, max(latest, ready_s)))
            full = held + size >= caps[min(len(buckets), len(caps)) - 1]
        return buckets


def program_of(events: Sequence[Sequence[Any]], world_size: int, gradients: Sequence[Sequence[Any]] = ()) -> Program:
    """Return the program that `probes.program` and `probes.gradients` recorded."""
    known: list[Event] = []
    for kind, *rest in events:
        value = rest[0]
        if kind == CALL:
            op, size, ranks, _ = rest
            stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
            value = Call(op, size, Group(len(ranks), stride, ranks[0]))
        if kind in (WORK, PART, CALL, WAIT_FOR):
            known.append((kind, value))
    ready = sorted(((size, ready_s) for _, size, ready_s in gradients), key=itemgetter(1))
    return Program(world_size, tuple(known), tuple(ready))


class Timeline(NamedTuple):
    """The seconds of a step, of its computing, and of waiting for collectives by the tier of the call."""

    step_s: float
    compute_s: float
    exposed_s: dict[str, float]


def timeline(program: Program, takes: Callable[[Call], tuple[float, str]], slower: float = 1.0) -> Timeline:
    """Return a step whose computing takes `slower` times as long, and whose calls take (seconds, over a tier)."""
    now = 0.0
    free: dict[Hashable, float] = defaultdict(float)
    exposed: dict[str, float] = defaultdict(float)
    over: list[tuple[float, str]] = []
    waited = {value for kind, value in program.events if kind == WAIT_FOR}
    unseen: list[int] = []
    for kind, value in (*program.events, (PART, "")):
        if kind == WORK:
            now += slower * value
        elif kind == CALL:
            seconds, tier = takes(value)
            free[value.group] = max(now, free[value.group]) + seconds
            if len(over) not in waited:
                unseen.append(len(over))
            over.append((free[value.group], tier))
        else:
            for at in [value] if kind == WAIT_FOR else unseen:
                end, tier = over[at]
                exposed[tier] += max(0.0, end - now)
                now = max(now, end)
            if kind == PART:
                unseen = []
    return Timeline(now, slower * program.work_s, dict(exposed))
