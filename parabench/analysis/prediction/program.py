"""Simulate a step from the recorded actions of one rank: computing, starting collectives, and waiting for them.

All ranks are assumed to do the same. The collectives of each group run one after another. A collective without a
recorded wait is waited for at the end of its part of the step, as DDP does in C++.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple

from parabench.store.record import CALL, MIB, PART, WAIT_FOR, WORK

BACKWARD, OPTIMIZER = "backward", "optimizer"

# DDP's default bucket caps: a small first bucket (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES), then 25 MiB.
DEFAULT_CAPS = (MIB, 25 * MIB)


class Call(NamedTuple):
    """A collective of `bytes` (the whole buffer) among `ranks`, which have a constant distance."""

    op: str
    bytes: int
    ranks: range


# An action of a rank and its value: PART starts a part of the step (its name), WORK computes (seconds), CALL starts a
# collective (a `Call`), and WAIT_FOR waits for a collective (the index of its call in the step).
Event = tuple[str, Any]


@dataclass(frozen=True, slots=True)
class Program:
    """The actions of one rank of `world_size` ranks in a step.

    `gradients` are DDP's, in the order of readiness: (bytes, seconds of backward until it is ready).
    """

    world_size: int
    events: tuple[Event, ...]
    gradients: tuple[tuple[int, float], ...] = ()

    @property
    def work_s(self) -> float:
        """The seconds of computing in the step."""
        return float(sum(value for kind, value in self.events if kind == WORK))

    def scaled(self, by: float) -> Program:
        """Return the program with its compute times, and the times when gradients are ready, multiplied by `by`."""
        return replace(
            self,
            events=tuple((kind, value * by if kind == WORK else value) for kind, value in self.events),
            gradients=tuple((size, ready_s * by) for size, ready_s in self.gradients),
        )

    def among(self, world_size: int) -> Program:
        """Return the program of a rank of `world_size`. Groups that span all recorded ranks span all ranks there."""

        def grown(event: Event) -> Event:
            kind, call = event
            if kind != CALL or len(call.ranks) * call.ranks.step != self.world_size:
                return event
            first, stride = call.ranks.start, call.ranks.step
            return kind, call._replace(ranks=range(first, first + world_size // stride * stride, stride))

        return replace(self, world_size=world_size, events=tuple(map(grown, self.events)))

    def with_caps(self, caps: Sequence[int]) -> Program:
        """Return the program with an all-reduce per DDP bucket instead of the calls of backward; `caps` in bytes."""
        first, last = (self.events.index((PART, name)) for name in (BACKWARD, OPTIMIZER))
        backward = self.events[first:last]
        backward_s = float(sum(value for kind, value in backward if kind == WORK))
        events, before = [self.events[first]], 0.0
        buckets = self._buckets(caps)
        for size, ready_s in buckets:
            ready = min(backward_s, max(before, ready_s))
            events += [(WORK, ready - before), (CALL, Call("all_reduce", size, range(self.world_size)))]
            before = ready
        events.append((WORK, backward_s - before))
        # Calls are numbered from the first of the step, and the optimizer's come after the buckets.
        more = len(buckets) - sum(kind == CALL for kind, _ in backward)
        after = ((kind, value + more if kind == WAIT_FOR else value) for kind, value in self.events[last:])
        return replace(self, events=(*self.events[:first], *events, *after))

    def _buckets(self, caps: Sequence[int]) -> list[tuple[int, float]]:
        """Return (bytes, seconds of backward until its last gradient is ready) of each bucket.

        DDP fills a bucket until it holds its cap or more (`compute_bucket_assignment_by_size` in torch's reducer.cpp).
        The last cap is also the cap of all further buckets.
        """
        buckets: list[tuple[int, float]] = []
        full = True
        for size, ready_s in self.gradients:
            held, latest = (0, 0.0) if full else buckets.pop()
            buckets.append((held + size, max(latest, ready_s)))
            full = held + size >= caps[min(len(buckets), len(caps)) - 1]
        return buckets


def program_of(events: Sequence[Sequence[Any]], world_size: int, gradients: Sequence[Sequence[Any]] = ()) -> Program:
    """Return the program from the `events` of `probes.program` and the `gradients` of `probes.gradients`."""
    known: list[Event] = []
    for kind, *rest in events:
        value = rest[0]
        if kind == CALL:
            op, size, ranks, _ = rest
            stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
            value = Call(op, size, range(ranks[0], ranks[0] + len(ranks) * stride, stride))
        if kind in (WORK, PART, CALL, WAIT_FOR):
            known.append((kind, value))
    ready = sorted(((size, ready_s) for _, size, ready_s in gradients), key=itemgetter(1))
    return Program(world_size, tuple(known), tuple(ready))


def simulated(
    program: Program, takes: Callable[[Call], tuple[float, str]], slower: float = 1.0
) -> tuple[float, dict[str, float]]:
    """Return the seconds of a step, and the seconds of waiting for collectives by tier of links.

    Computing takes `slower` times as long as in the program, and `takes` returns the seconds and the tier of a call.
    """
    now = 0.0
    free: dict[range, float] = defaultdict(float)
    exposed: dict[str, float] = defaultdict(float)
    ends: list[tuple[float, str]] = []
    waited = {value for kind, value in program.events if kind == WAIT_FOR}
    without_wait: list[int] = []
    for kind, value in (*program.events, (PART, "")):
        if kind == WORK:
            now += slower * value
        elif kind == CALL:
            seconds, tier = takes(value)
            free[value.ranks] = max(now, free[value.ranks]) + seconds
            if len(ends) not in waited:
                without_wait.append(len(ends))
            ends.append((free[value.ranks], tier))
        else:
            for at in [value] if kind == WAIT_FOR else without_wait:
                end, tier = ends[at]
                exposed[tier] += max(0.0, end - now)
                now = max(now, end)
            if kind == PART:
                without_wait = []
    return now, dict(exposed)
