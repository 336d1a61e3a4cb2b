"""What a rank of a group does in a step, as it was measured alone: its work, what it calls, what it waits for.

As tasks it is what one rank does where all compute as much at the same time, and else, as in a pipeline, what each rank
does. A collective runs on a queue of its group, in the order of the calls, and whoever waits for it goes on when it has
ended; a message begins when both its ends have called. What nobody is seen to wait for is waited for where its part of
the step ends: DDP, in C++, waits for its buckets where backward ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
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


# Of two ranks, the first of which sends.
SEND, RECV = "send", "recv"


# What a rank computes between a collective and waiting for it, as a share of what it computed before, that still leaves
# it waiting for the slowest of the group.
BLOCKING = 0.1


class Segment(NamedTuple):
    """What a rank computes, in seconds, between two moments at which so many `ranks` wait for one another."""

    seconds: float
    ranks: int


class Group(NamedTuple):
    """Ranks that call together: how many, how far apart they are numbered, and which is the first. Of a message the
    first sends, and may have the higher number."""

    size: int
    stride: int = 1
    first: int = 0


class Call(NamedTuple):
    """A collective of so many bytes among a group, or one end of a message."""

    op: str
    bytes: int
    group: Group

    @property
    def is_message(self) -> bool:
        """Whether it is one end of a message."""
        return self.op in (SEND, RECV)


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
            size, stride, first = call.group
            if size * stride != self.world_size:
                return call
            return call._replace(group=Group(world_size // stride, stride, first))

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
        """The same where DDP's buckets have these caps in bytes. Its gradients must be known. Calls of backward that
        reduce none follow the buckets, as that of find_unused_parameters does (torch's reducer.cpp,
        all_reduce_local_used_map)."""
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
        calls = [event.call for event in self.events[first:last] if event.call is not None]
        others, left = [], sum(each.bytes for each in self.gradients)
        for call in calls:
            if call.op == "all_reduce" and left > 0:
                left -= call.bytes
            else:
                others.append(Event(CALL, call=call))
        events += [*others, Event(WORK, seconds=backward_s - before)]
        # Calls are numbered from the first of the step, and those of the optimizer come after the buckets.
        more = len(groups) + len(others) - len(calls)
        after = (replace(each, waits=each.waits + more * (each.kind == WAIT_FOR)) for each in self.events[last:])
        return replace(self, events=(*self.events[:first], *events, *after))

    @property
    def segments(self) -> list[Segment]:
        """The step between collectives that a rank waits for at once; none where there is no such. What comes after the
        last goes on in the next step before its first."""
        found: list[Segment] = []
        called: list[tuple[int, float]] = []
        since = 0.0
        for event in self.events:
            since += event.seconds
            if event.call is not None:
                called.append((event.call.group.size, since))
            elif event.kind == WAIT_FOR:
                ranks, before = called[event.waits]
                if before > 0 and since - before <= BLOCKING * before:
                    found.append(Segment(since, ranks))
                    called = [(of, -1.0) for of, _ in called]
                    since = 0.0
        if found:
            found[0] = found[0]._replace(seconds=found[0].seconds + since)
        return found

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
                yield Event(CALL, call=Call(op, size, Group(len(ranks), stride, ranks[0])))
            elif kind == WAIT_FOR:
                yield Event(WAIT_FOR, waits=rest[0])

    ready = tuple(Gradient(size, at) for _, size, at in sorted(gradients, key=lambda each: each[2]))
    return Program(world_size, tuple(read()), ready)


class Times(NamedTuple):
    """How many seconds a collective takes, and while one of its ranks computes."""

    alone_s: float
    beside_s: float


class Step(NamedTuple):
    """A step as tasks, and by its place the call of each that communicates."""

    tasks: list[Task]
    calls: dict[int, Call]


def tasks(
    programs: Sequence[Program],
    times: Callable[[Call], Times],
    at_once: Callable[[Call], int] = lambda _: 1,
    ranks_per_node: int = 1,
    slower: float = 1.0,
) -> Step:
    """The step as tasks, with what its collectives take: of one program that every rank has, or of each rank's own,
    whose work takes `slower` times as long. The name of a task is the part of the step that it is in, of a collective
    its operation. Of some collectives a group has several `at_once`. Messages share the ends of ranks within a node of
    `ranks_per_node`, and nodes' links between. Raises ValueError for a message that only one rank calls."""
    drafts: list[_Draft] = []
    # A call that several ranks make is one task.
    together: dict[Hashable, int] = {}
    for rank, program in enumerate(programs):
        _drafted(rank, program, times, at_once, slower, drafts, together if len(programs) > 1 else None)
    for each in drafts:
        if len(programs) > 1 and each.call is not None and each.call.is_message and len(each.lanes) != 2:
            raise ValueError(f"one end of a message {each.lanes[0].what} is missing")
    return Step(
        [each.task(ranks_per_node) for each in drafts],
        {at: each.call for at, each in enumerate(drafts) if each.call is not None},
    )


@dataclass(slots=True)
class _Draft:
    """A task that other ranks may take part in."""

    name: str
    lanes: list[Lane]
    seconds: float
    after: list[int]
    slowed: float = 1.0
    call: Call | None = None

    def task(self, ranks_per_node: int) -> Task:
        """The task, now that all who take part are known."""
        links: tuple[Hashable, ...] = ()
        if self.call is not None and self.call.is_message:
            _, stride, source = self.call.group
            target = source + stride
            if source // ranks_per_node != target // ranks_per_node:
                links = ("out of node", source // ranks_per_node), ("into node", target // ranks_per_node)
            else:
                links = ("out of", source), ("into", target)
        return Task(self.name, tuple(self.lanes), self.seconds, tuple(self.after), self.slowed, links)


def _drafted(
    rank: int,
    program: Program,
    times: Callable[[Call], Times],
    at_once: Callable[[Call], int],
    slower: float,
    drafts: list[_Draft],
    together: dict[Hashable, int] | None,
) -> None:
    """Append what a rank does to `drafts`. Where others call `together` with it, its calls are found there."""
    waited = {event.waits for event in program.events if event.kind == WAIT_FOR}
    compute = COMPUTE._replace(rank=rank)
    place: list[int] = []
    before: list[int] = []
    part, after, unseen = "", list[int](), list[int]()
    numbers = Counter[Hashable]()
    for event in program.events:
        if event.kind == PART:
            # What was called in the part that ends, and nobody is seen to wait for.
            part, after, unseen = event.part, after + unseen, []
        elif event.kind == WAIT_FOR:
            after = [*after, place[event.waits]]
        elif (call := event.call) is not None:
            kind = call.group if call.is_message else (call.op, call.group)
            key = (kind, numbers[kind])
            numbers[kind] += 1
            lane = Lane(rank, _queue(call, len(place) % at_once(call)))
            at = None if together is None else together.get(key)
            if at is None:
                took = times(call)
                slowed = took.beside_s / took.alone_s if took.alone_s else 1.0
                at = len(drafts)
                drafts.append(_Draft(call.op, [], took.alone_s, [], slowed, call))
                if together is not None:
                    together[key] = at
            drafts[at].lanes.append(lane)
            drafts[at].after += [*before, *after]
            if len(place) not in waited:
                unseen.append(at)
            place.append(at)
        elif event.seconds or after:
            drafts.append(_Draft(part, [compute], slower * event.seconds, after))
            before, after = [len(drafts) - 1], []
    drafts.append(_Draft(part, [compute], 0.0, after + unseen))


def _queue(call: Call, number: int) -> str:
    size, stride, first = call.group
    if call.is_message:
        return f"from {first} to {first + stride}"
    return f"{size} ranks, {stride} apart, from {first}, queue {number}"
