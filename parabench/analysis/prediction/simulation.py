"""A step as tasks on lanes: when each begins and ends.

A lane does one task at a time, in the order in which they are given, as a CUDA stream or a backend's queue does: each
rank has a lane that computes, and one for each group that it communicates in. A collective occupies a lane of every
rank that takes part, so it begins when the last of them comes to it. Ranks that do the same at the same time are one:
what differs by their number (how long a collective takes, the slowest of them) is in the tasks' seconds.

Computing and communicating slow each other down where they meet on a rank, because they share cores, memory or the
multiprocessors of a GPU. So tasks have rates, and time goes from one begin or end to the next.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# What a rank's own work runs on; any other lane of a rank is a queue of collectives.
COMPUTE = "compute"


class Lane(NamedTuple):
    """What does one task at a time: `what` a rank does there, COMPUTE or the name of a group."""

    rank: int
    what: str = COMPUTE


@dataclass(frozen=True, slots=True)
class Task:
    """Occupies all its `lanes` for so many `seconds`, where nothing disturbs it, and begins when the tasks at the
    places `after` have ended. `name` is the part of the step that it belongs to. A collective takes `slowed` times as
    long while one of its ranks computes. Tasks that run at the same time share equally what they go over: each of its
    `links` is as fast as one of them needs it."""

    name: str
    lanes: tuple[Lane, ...]
    seconds: float
    after: tuple[int, ...] = ()
    slowed: float = 1.0
    links: tuple[Hashable, ...] = ()


class Span(NamedTuple):
    """From when to when a task ran, in seconds from the begin of the first."""

    begin: float
    end: float


def simulate(tasks: Sequence[Task], compute_slowed: float = 1.0) -> list[Span]:
    """When each task runs, where computing takes `compute_slowed` times as long while its rank communicates. Raises
    ValueError for tasks that wait for one another, or for none that is there."""
    return _Simulation(tasks, compute_slowed).run()


class Parts(NamedTuple):
    """A step of `step_s` as the rank that computes longest has it: `compute_s`, `exposed_s` communication by tier that
    it waits for, and `bubble_s` in which it waits for other ranks. They add up to the step."""

    step_s: float
    compute_s: float
    exposed_s: dict[str, float]
    bubble_s: float


def parts_of(tasks: Sequence[Task], spans: Sequence[Span], tiers: Mapping[int, str], ranks: int = 1) -> Parts:
    """The parts of the step; `tiers` tells of each task that communicates what it goes over. Where all `ranks` do the
    same, none waits for another."""
    end = max(span.end for span in spans)
    found: list[Parts] = []
    for rank in range(ranks):
        lane = Lane(rank)
        exposed = dict.fromkeys(tiers.values(), 0.0)
        compute = bubble = before = 0.0
        for task, span in zip(tasks, spans, strict=True):
            if lane not in task.lanes:
                continue
            compute += span.end - span.begin
            if span.begin > before:
                last = max(task.after, key=lambda at: spans[at].end)
                # What it waits for may not have begun, because another rank was not there yet.
                travels = span.begin - (before if ranks == 1 else max(before, spans[last].begin))
                exposed[tiers[last]] += travels
                bubble += span.begin - before - travels
            before = span.end
        found.append(Parts(end, compute, exposed, bubble + end - before))
    return max(found, key=lambda parts: parts.compute_s)


class _Simulation:
    def __init__(self, tasks: Sequence[Task], compute_slowed: float) -> None:
        self._tasks, self._compute_slowed = tasks, compute_slowed
        self._computes = [all(lane.what == COMPUTE for lane in task.lanes) for task in tasks]
        self._ranks = [tuple({lane.rank for lane in task.lanes}) for task in tasks]
        self._waits = [len(task.after) + len(task.lanes) for task in tasks]
        self._then: list[list[int]] = [[] for _ in tasks]
        last: dict[Lane, int] = {}
        for at, task in enumerate(tasks):
            for before in task.after:
                if not 0 <= before < len(tasks):
                    raise ValueError(f"task {at}, {task.name}, is after task {before}, which is not there")
                self._then[before].append(at)
            for lane in task.lanes:
                if lane in last:
                    self._then[last[lane]].append(at)
                else:
                    self._waits[at] -= 1
                last[lane] = at
        self._left = [task.seconds for task in tasks]
        self._running: list[int] = []
        # By rank, how many tasks compute and how many communicate.
        self._computing: dict[int, int] = {}
        self._communicating: dict[int, int] = {}
        # By link, how many tasks go over it.
        self._sharing: dict[Hashable, int] = {}
        self._begins = [0.0] * len(tasks)
        self._ends = [0.0] * len(tasks)
        self._ended = 0

    def run(self) -> list[Span]:
        now = 0.0
        self._start([at for at, waits in enumerate(self._waits) if not waits], now)
        while self._running:
            rates = [self._rate(at) for at in self._running]
            passes = min(self._left[at] / rate for at, rate in zip(self._running, rates, strict=True))
            now += passes
            over = []
            for at, rate in zip(self._running, rates, strict=True):
                left = self._left[at]
                # What ends now has nothing left, whatever rounding says.
                self._left[at] = 0.0 if left / rate <= passes else left - passes * rate
                if not self._left[at]:
                    over.append(at)
            self._end(over, now)
        if self._ended < len(self._tasks):
            stuck = [task.name for task, waits in zip(self._tasks, self._waits, strict=True) if waits]
            raise ValueError(f"tasks wait for one another: {', '.join(stuck[:5])}")
        return [Span(begin, end) for begin, end in zip(self._begins, self._ends, strict=True)]

    def _rate(self, at: int) -> float:
        """How many of its seconds a task does in a second."""
        beside = self._communicating if self._computes[at] else self._computing
        slower = self._compute_slowed if self._computes[at] else self._tasks[at].slowed
        rate = 1 / slower if any(map(beside.get, self._ranks[at])) else 1.0
        links = self._tasks[at].links
        return rate / max(self._sharing[link] for link in links) if links else rate

    def _start(self, ready: list[int], now: float) -> None:
        for at in ready:
            self._begins[at] = now
            self._running.append(at)
            self._count(at, 1)

    def _end(self, over: list[int], now: float) -> None:
        ready = []
        for at in over:
            self._ends[at] = now
            self._running.remove(at)
            self._count(at, -1)
            for then in self._then[at]:
                self._waits[then] -= 1
                if not self._waits[then]:
                    ready.append(then)
        self._ended += len(over)
        self._start(ready, now)

    def _count(self, at: int, more: int) -> None:
        counts = self._computing if self._computes[at] else self._communicating
        for rank in self._ranks[at]:
            counts[rank] = counts.get(rank, 0) + more
        for link in self._tasks[at].links:
            self._sharing[link] = self._sharing.get(link, 0) + more
