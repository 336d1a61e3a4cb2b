"""A rank's recorded step, and its timeline with the collectives of more ranks.

All ranks do the same. The collectives of each group run on a queue. Without a recorded wait, a rank waits at the end of
the part of the step, as DDP does in C++.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
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


class Event(NamedTuple):
    """A rank's action: PART starts a part of the step (by its name), WORK computes (for seconds), CALL starts a
    collective (a `Call`), and WAIT_FOR waits for a collective (by its number in the step)."""

    kind: str
    value: Any


class Gradient(NamedTuple):
    """A gradient's bytes, and when it is ready, in seconds after backward started."""

    bytes: int
    ready_s: float


@dataclass(frozen=True, slots=True)
class Program:
    """The step of a rank among `world_size` ranks, for DDP with the gradients in the order of readiness."""

    world_size: int
    events: tuple[Event, ...]
    gradients: tuple[Gradient, ...] = ()

    @property
    def work_s(self) -> float:
        """The seconds of computing."""
        return _work_s(self.events)

    def scaled(self, by: float) -> Program:
        """Return the program with its compute times, and the times when gradients are ready, multiplied by `by`."""
        return replace(
            self,
            events=tuple(Event(kind, value * by if kind == WORK else value) for kind, value in self.events),
            gradients=tuple(Gradient(each.bytes, each.ready_s * by) for each in self.gradients),
        )

    def among(self, world_size: int) -> Program:
        """Return the program of a rank of `world_size`: groups of all ranks, and groups across them, grow."""

        def grown(event: Event) -> Event:
            if event.kind != CALL or event.value.group.size * event.value.group.stride != self.world_size:
                return event
            _, stride, first = event.value.group
            return Event(CALL, event.value._replace(group=Group(world_size // stride, stride, first)))

        return replace(self, world_size=world_size, events=tuple(map(grown, self.events)))

    def with_caps(self, caps: Sequence[int]) -> Program:
        """Return the program with DDP's buckets of these caps in bytes instead of the recorded calls of backward."""
        first, last = (self.events.index(Event(PART, name)) for name in (BACKWARD, OPTIMIZER))
        backward = self.events[first:last]
        backward_s, events, before = _work_s(backward), [self.events[first]], 0.0
        buckets = assigned([each.bytes for each in self.gradients], caps)
        for bucket in buckets:
            ready = min(backward_s, max(before, *(self.gradients[at].ready_s for at in bucket)))
            size = sum(self.gradients[at].bytes for at in bucket)
            events += [Event(WORK, ready - before), Event(CALL, Call("all_reduce", size, Group(self.world_size)))]
            before = ready
        events.append(Event(WORK, backward_s - before))
        # Calls are numbered from the first of the step, and the optimizer's come after the buckets.
        more = len(buckets) - sum(event.kind == CALL for event in backward)
        after = (
            Event(kind, value + more) if kind == WAIT_FOR else Event(kind, value) for kind, value in self.events[last:]
        )
        return replace(self, events=(*self.events[:first], *events, *after))


def _work_s(events: Sequence[Event]) -> float:
    return float(sum(event.value for event in events if event.kind == WORK))


def assigned(sizes: Sequence[int], caps: Sequence[int]) -> list[list[int]]:
    """Return the indices of gradients by bucket; the last cap applies to all buckets that follow.

    DDP fills a bucket until it holds its cap or more (`compute_bucket_assignment_by_size` in torch's reducer.cpp).
    """
    buckets: list[list[int]] = []
    held = 0
    for at, size in enumerate(sizes):
        if not held:
            buckets.append([])
        buckets[-1].append(at)
        held += size
        if held >= caps[min(len(buckets), len(caps)) - 1]:
            held = 0
    return buckets


def program_of(events: Sequence[Sequence[Any]], world_size: int, gradients: Sequence[Sequence[Any]] = ()) -> Program:
    """Return the program that `probes.program` and `probes.gradients` recorded."""
    known = []
    for kind, *rest in events:
        value = rest[0]
        if kind == CALL:
            op, size, ranks, _ = rest
            stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
            value = Call(op, size, Group(len(ranks), stride, ranks[0]))
        if kind in (WORK, PART, CALL, WAIT_FOR):
            known.append(Event(kind, value))
    ready = tuple(Gradient(size, at) for _, size, at in sorted(gradients, key=lambda each: each[2]))
    return Program(world_size, tuple(known), ready)


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
    waited = {event.value for event in program.events if event.kind == WAIT_FOR}
    unseen: list[int] = []
    for kind, value in (*program.events, Event(PART, "")):
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
