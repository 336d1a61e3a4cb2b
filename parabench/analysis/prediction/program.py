"""What a rank of a group does in a step, as it was measured alone: its work, what it calls, what it waits for.

As tasks it is what one rank does; all that compute as much at the same time are like it. A collective runs on a queue
of its group, in the order of the calls, and whoever waits for it goes on when it has ended. What nobody is seen to wait
for is waited for where its part of the step ends: DDP, in C++, waits for its buckets where backward ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from parabench.analysis.prediction.buckets import Gradient, assigned
from parabench.analysis.prediction.simulation import Lane, Task
from parabench.store.record import CALL, MIB, PART, WAIT_FOR, WORK

COMPUTE = Lane(0)
BACKWARD, OPTIMIZER = "backward", "optimizer"

# What DDP does where nobody names a cap: a small first bucket, so that reducing begins early
# (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES), and 25 MiB for the others.
DEFAULT_CAPS = (MIB, 25 * MIB)


class Group(NamedTuple):
    """Ranks that call together: how many, and how far apart they are numbered."""

    size: int
    stride: int = 1


class Call(NamedTuple):
    """A collective of so many bytes among a group."""

    op: str
    bytes: int
    group: Group


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that a rank does: PART begins a part of the step called `part`, WORK takes `seconds`, CALL calls
    `call`, WAIT_FOR waits for call number `waits`."""

    kind: str
    seconds: float = 0.0
    part: str = ""
    call: Call | None = None
    waits: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """A step of one of `world_size` ranks, with the gradients by readiness where DDP reduces them."""

    world_size: int
    events: tuple[Event, ...]
    gradients: tuple[Gradient, ...] = ()

    @property
    def work_s(self) -> float:
        """How long the rank computes."""
        return sum(event.seconds for event in self.events)

    def scaled(self, by: float) -> Program:
        """The same with every time `by` times as long."""
        return replace(
            self,
            events=tuple(replace(event, seconds=event.seconds * by) for event in self.events),
            gradients=tuple(Gradient(each.bytes, each.ready_s * by) for each in self.gradients),
        )

    def among(self, world_size: int) -> Program:
        """The same of a rank of `world_size`: groups of all ranks, and those across them, grow with them."""
        if world_size == self.world_size:
            return self

        def grown(call: Call) -> Call:
            size, stride = call.group
            if size * stride != self.world_size:
                return call
            return call._replace(group=Group(world_size // stride, stride))

        events = (replace(each, call=grown(each.call)) if each.call else each for each in self.events)
        return replace(self, world_size=world_size, events=tuple(events))

    def calling(self, seconds: Callable[[Call], float]) -> Program:
        """The same where each call costs its rank so many `seconds`, before it goes on its queue."""
        events: list[Event] = []
        for event in self.events:
            if event.call is not None and (cost := seconds(event.call)):
                before = events.pop().seconds if events and events[-1].kind == WORK else 0.0
                events.append(Event(WORK, seconds=before + cost))
            events.append(event)
        return replace(self, events=tuple(events))

    def with_caps(self, caps: Sequence[int]) -> Program:
        """The same where DDP's buckets have these caps in bytes. Its gradients must be known."""
        groups = assigned([each.bytes for each in self.gradients], caps)
        first = next(at for at, event in enumerate(self.events) if event.part == BACKWARD)
        last = next(at for at, event in enumerate(self.events) if event.part == OPTIMIZER)
        backward_s = sum(event.seconds for event in self.events[first:last])
        events, before = [self.events[first]], 0.0
        for group in groups:
            ready = min(backward_s, max(before, max(self.gradients[at].ready_s for at in group)))
            size = sum(self.gradients[at].bytes for at in group)
            events.append(Event(WORK, seconds=ready - before))
            events.append(Event(CALL, call=Call("all_reduce", size, Group(self.world_size))))
            before = ready
        events.append(Event(WORK, seconds=backward_s - before))
        # Calls are numbered from the first of the step, and those of the optimizer come after the buckets.
        more = len(groups) - sum(event.kind == CALL for event in self.events[first:last])
        after = (replace(each, waits=each.waits + more * (each.kind == WAIT_FOR)) for each in self.events[last:])
        return replace(self, events=(*self.events[:first], *events, *after))

    @property
    def calls(self) -> list[Call]:
        """The collectives of the step, in order."""
        return [event.call for event in self.events if event.call is not None]


def program_of(events: Sequence[Sequence[Any]], world_size: int, gradients: Sequence[Sequence[Any]] = ()) -> Program:
    """The program that `probes.program` and `probes.gradients` tell of."""

    def read() -> Iterator[Event]:
        for kind, *rest in events:
            if kind == WORK:
                yield Event(WORK, seconds=rest[0])
            elif kind == PART:
                yield Event(PART, part=rest[0])
            elif kind == CALL:
                op, size, ranks, _ = rest
                stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
                yield Event(CALL, call=Call(op, size, Group(len(ranks), stride)))
            elif kind == WAIT_FOR:
                yield Event(WAIT_FOR, waits=rest[0])

    ready = tuple(Gradient(size, at) for _, size, at in sorted(gradients, key=lambda each: each[2]))
    return Program(world_size, tuple(read()), ready)


class Times(NamedTuple):
    """How many seconds a collective takes, and while one of its ranks computes."""

    alone_s: float
    beside_s: float


def tasks(program: Program, times: Callable[[Call], Times], at_once: Callable[[Call], int] = lambda _: 1) -> list[Task]:
    """The step as tasks, with what its collectives take. The name of a task is the part of the step that it is in, of a
    collective its operation. Of some collectives a group has several `at_once`."""
    waited = {event.waits for event in program.events if event.kind == WAIT_FOR}
    found: list[Task] = []
    place: list[int] = []
    part, after, unseen = "", list[int](), list[int]()
    for event in program.events:
        if event.kind == PART:
            # What was called in the part that ends, and nobody is seen to wait for.
            part, after, unseen = event.part, after + unseen, []
        elif event.kind == WAIT_FOR:
            after = [*after, place[event.waits]]
        elif event.call is not None:
            took = times(event.call)
            slowed = took.beside_s / took.alone_s if took.alone_s else 1.0
            queue = _queue(event.call.group, len(place) % at_once(event.call))
            found.append(Task(event.call.op, (queue,), took.alone_s, (*_last(found), *after), slowed))
            if len(place) not in waited:
                unseen.append(len(found) - 1)
            place.append(len(found) - 1)
        elif event.seconds or after:
            found.append(Task(part, (COMPUTE,), event.seconds, tuple(after)))
            after = []
    found.append(Task(part, (COMPUTE,), 0.0, tuple(after + unseen)))
    return found


def _queue(group: Group, number: int) -> Lane:
    return Lane(0, f"{group.size} ranks, {group.stride} apart, queue {number}")


def _last(found: Sequence[Task]) -> tuple[int, ...]:
    """The work that a call comes after."""
    return next(((at,) for at in reversed(range(len(found))) if COMPUTE in found[at].lanes), ())
