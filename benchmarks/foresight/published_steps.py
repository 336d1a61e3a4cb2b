"""A step of one GPU of a published table, as `parabench predict` computes it.

NCCL's collectives are rings (`ring` of the schedules; `native` there is gloo's) over links of a latency and a rate.
FSDP gathers a unit's parameters while the unit before it computes, in forward and again in backward, and reduces a
unit's gradients when its backward has ended; all collectives of a group run one after another, as on the stream of a
ProcessGroupNCCL. DDP fills buckets of its caps, by default 1 MiB and
then 25 MiB. All GPUs are alike: nobody published how much they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

from benchmarks.foresight.published_facts import Machine, Strategy, Table
from parabench.analysis.collectives.rounds import BETWEEN, WITHIN
from parabench.analysis.prediction.links import Link, Links
from parabench.analysis.prediction.program import BACKWARD, OPTIMIZER, Call, Event, Gradient, Group, Program, timeline
from parabench.store.record import CALL, PART, WAIT_FOR, WORK

# Backward computes twice what forward does; with recomputation three times.
BACKWARD_WORK, RECOMPUTED_WORK = 2, 3


def program(table: Table, gpus: int, work_s: float) -> Program:
    """A step of one of so many GPUs that computes for `work_s`."""
    if table.strategy is Strategy.DDP:
        return _ddp(table, gpus, work_s)
    return _Sharded(table, gpus, work_s).program()


def step_s(table: Table, gpus: int, work_s: float) -> float:
    """Return the seconds of a step of so many GPUs that compute for `work_s`."""
    return timeline(program(table, gpus, work_s), _takes(table.machine, gpus)).step_s


def compute_s(table: Table) -> float:
    """Return the seconds of computing with which the base row comes out."""
    base = table.rows[table.base]
    goal = table.per_gpu / base.rate
    work = goal
    for _ in range(100):
        off = goal - step_s(table, base.gpus, work)
        work += off
        if abs(off) < 1e-12 * goal:
            break
    return work


@cache
def _takes(machine: Machine, gpus: int) -> Callable[[Call], tuple[float, str]]:
    within = Link(machine.within_latency_s, 1 / machine.within)
    between = Link(machine.between_latency_s, 1 / machine.between)
    links = Links({}, {WITHIN: within, BETWEEN: between})

    @cache
    def takes(call: Call) -> tuple[float, str]:
        return links.seconds(call.op, "ring", gpus, machine.per_node, call.bytes), BETWEEN

    return takes


def _shares(table: Table) -> tuple[list[float], list[float], float, float]:
    """What share of the work is forward and backward of each unit, and of the head."""
    backward = RECOMPUTED_WORK if table.recomputed else BACKWARD_WORK
    whole = (sum(unit.work for unit in table.model.units) + table.model.head) * (1 + backward)
    forward = [unit.work / whole for unit in table.model.units]
    head = table.model.head / whole
    return forward, [share * backward for share in forward], head, head * backward


def _ddp(table: Table, gpus: int, work_s: float) -> Program:
    """Gradients of a unit are ready when its backward has ended, the last unit's first."""
    forward, backward, head, head_backward = _shares(table)
    ready, gradients = head_backward * work_s, list[Gradient]()
    for unit, share in zip(reversed(table.model.units), reversed(backward), strict=True):
        ready += share * work_s
        gradients.append(Gradient(round(unit.parameters * table.reduced), ready))
    if table.model.root:
        gradients.append(Gradient(round(table.model.root * table.reduced), ready))
    events = (
        Event(PART, part="forward"), Event(WORK, seconds=(sum(forward) + head) * work_s),
        Event(PART, part=BACKWARD), Event(WORK, seconds=ready), Event(PART, part=OPTIMIZER),
    )  # fmt: skip
    return Program(gpus, events, tuple(gradients)).with_caps(table.caps)


@dataclass
class _Sharded:
    """The program of FSDP, one event after another."""

    table: Table
    gpus: int
    work_s: float
    calls: int = field(default=0)

    def program(self) -> Program:
        return Program(self.gpus, tuple(self._events()))

    def _events(self) -> Iterator[Event]:
        model = self.table.model
        forward, backward, head, head_backward = _shares(self.table)
        last = len(model.units) - 1
        yield Event(PART, part="forward")
        yield self._gather(model.root)
        yield self._gather(model.units[0].parameters)
        yield self._wait(1)
        for at in range(last + 1):
            yield self._wait(0)
            if at < last:
                yield self._gather(model.units[at + 1].parameters)
            yield self._work(forward[at])
        yield self._work(head)
        yield Event(PART, part=BACKWARD)
        again = self.table.strategy is Strategy.FULL_SHARD
        gathered = self.calls
        if again:
            yield self._gather(model.units[last].parameters)
        yield self._work(head_backward)
        for at in range(last, -1, -1):
            if again:
                yield Event(WAIT_FOR, waits=gathered)
                gathered = self.calls
                if at:
                    yield self._gather(model.units[at - 1].parameters)
            yield self._work(backward[at])
            yield self._reduce(model.units[at].parameters)
        yield self._reduce(model.root)
        yield Event(PART, part=OPTIMIZER)

    def _gather(self, parameters: int) -> Event:
        return self._call("all_gather", parameters * self.table.gathered)

    def _reduce(self, parameters: int) -> Event:
        return self._call("reduce_scatter", parameters * self.table.reduced)

    def _call(self, op: str, size: float) -> Event:
        self.calls += 1
        return Event(CALL, call=Call(op, round(size), Group(self.gpus)))

    def _wait(self, before: int) -> Event:
        """Wait for the newest call but `before`."""
        return Event(WAIT_FOR, waits=self.calls - 1 - before)

    def _work(self, share: float) -> Event:
        return Event(WORK, seconds=share * self.work_s)
