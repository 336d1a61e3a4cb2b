"""A rank's step as it was recorded alone, and its timeline with the collectives of more ranks.

All ranks do the same at the same time, so one rank stands for all. It computes on one lane, and the collectives of each
group run on a queue, in the order of the calls. A rank waits for a collective if the recording has a wait for it, and
otherwise at the end of the part of the step: DDP, in C++, waits for its buckets when backward ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
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
    """A collective of so many bytes among a group."""

    op: str
    bytes: int
    group: Group


@dataclass(frozen=True, slots=True)
class Event:
    """One thing a rank does: PART starts a part of the step, WORK computes for `seconds`, CALL starts a collective,
    and WAIT_FOR waits for call number `waits`."""

    kind: str
    seconds: float = 0.0
    part: str = ""
    call: Call | None = None
    waits: int = 0


class Gradient(NamedTuple):
    """A gradient's bytes, and when it is ready, in seconds after backward started."""

    bytes: int
    ready_s: float


@dataclass(frozen=True, slots=True)
class Program:
    """A step of one of `world_size` ranks; for DDP with the gradients in the order of readiness."""

    world_size: int
    events: tuple[Event, ...]
    gradients: tuple[Gradient, ...] = ()

    @property
    def work_s(self) -> float:
        """The seconds of computing."""
        return sum(event.seconds for event in self.events)

    def scaled(self, by: float) -> Program:
        """Return the program with every time multiplied."""
        return replace(
            self,
            events=tuple(replace(event, seconds=event.seconds * by) for event in self.events),
            gradients=tuple(Gradient(each.bytes, each.ready_s * by) for each in self.gradients),
        )

    def among(self, world_size: int) -> Program:
        """Return the program of a rank of `world_size`: groups of all ranks, and groups across them, grow."""

        def grown(call: Call) -> Call:
            size, stride, first = call.group
            if size * stride != self.world_size:
                return call
            return call._replace(group=Group(world_size // stride, stride, first))

        events = (replace(each, call=grown(each.call)) if each.call else each for each in self.events)
        return replace(self, world_size=world_size, events=tuple(events))

    def with_caps(self, caps: Sequence[int]) -> Program:
        """Return the program with DDP's buckets of these caps in bytes instead of the recorded calls of backward."""
        first = next(at for at, event in enumerate(self.events) if event.part == BACKWARD)
        last = next(at for at, event in enumerate(self.events) if event.part == OPTIMIZER)
        backward_s = sum(event.seconds for event in self.events[first:last])
        events, before = [self.events[first]], 0.0
        groups = assigned([each.bytes for each in self.gradients], caps)
        for group in groups:
            ready = min(backward_s, max(before, max(self.gradients[at].ready_s for at in group)))
            size = sum(self.gradients[at].bytes for at in group)
            events.append(Event(WORK, seconds=ready - before))
            events.append(Event(CALL, call=Call("all_reduce", size, Group(self.world_size))))
            before = ready
        events.append(Event(WORK, seconds=backward_s - before))
        # Calls are numbered from the first of the step, and the optimizer's come after the buckets.
        more = len(groups) - sum(event.call is not None for event in self.events[first:last])
        after = (replace(each, waits=each.waits + more * (each.kind == WAIT_FOR)) for each in self.events[last:])
        return replace(self, events=(*self.events[:first], *events, *after))


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

    def read() -> Iterator[Event]:
        for kind, *rest in events:
            if kind == WORK:
                yield Event(WORK, seconds=rest[0])
            elif kind == PART:
                yield Event(PART, part=rest[0])
            elif kind == CALL:
                op, size, ranks, _ = rest
                stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
                yield Event(CALL, call=Call(op, size, Group(len(ranks), stride, ranks[0])))
            elif kind == WAIT_FOR:
                yield Event(WAIT_FOR, waits=rest[0])

    ready = tuple(Gradient(size, at) for _, size, at in sorted(gradients, key=lambda each: each[2]))
    return Program(world_size, tuple(read()), ready)


class Timeline(NamedTuple):
    """The seconds of a step and of its computing, and those of waiting for collectives, by the tier of the call."""

    step_s: float
    compute_s: float
    exposed_s: dict[str, float]


def timeline(program: Program, takes: Callable[[Call], tuple[float, str]], slower: float = 1.0) -> Timeline:
    """Return a step whose computing takes `slower` times as long, and whose calls take (seconds, over a tier)."""
    now = compute_s = 0.0
    free: dict[Hashable, float] = defaultdict(float)
    exposed: dict[str, float] = defaultdict(float)
    over: list[tuple[float, str]] = []
    waited = {event.waits for event in program.events if event.kind == WAIT_FOR}
    unseen: list[int] = []
    for event in (*program.events, Event(PART)):
        if event.kind == WORK:
            now += slower * event.seconds
            compute_s += slower * event.seconds
        elif event.call is not None:
            seconds, tier = takes(event.call)
            free[event.call.group] = max(now, free[event.call.group]) + seconds
            if len(over) not in waited:
                unseen.append(len(over))
            over.append((free[event.call.group], tier))
        else:
            for at in [event.waits] if event.kind == WAIT_FOR else unseen:
                end, tier = over[at]
                exposed[tier] += max(0.0, end - now)
                now = max(now, end)
            if event.kind == PART:
                unseen = []
    return Timeline(now, compute_s, dict(exposed))
