"""A step of one GPU of a published table, as `parabench predict` computes it.

NCCL's collectives are rings (`ring` of the schedules; `native` there is gloo's) over links of a latency and a rate.
FSDP gathers a unit's parameters while the unit before it computes, in forward and again in backward, and reduces a
unit's gradients when its backward has ended; all collectives of a group run one after another. DDP fills buckets of its
caps. All GPUs are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from parabench.analysis.collectives.rounds import BETWEEN, WITHIN
from parabench.analysis.prediction.links import Link, Links
from parabench.analysis.prediction.program import (
    BACKWARD,
    DEFAULT_CAPS,
    OPTIMIZER,
    Call,
    Event,
    Gradient,
    Group,
    Program,
    timeline,
)
from parabench.store.record import CALL, PART, WAIT_FOR, WORK

# Backward computes twice what forward does; with recomputation three times.
BACKWARD_WORK, RECOMPUTED_WORK = 2, 3
# The latencies of a message in seconds, and the GPUs of a node.
WITHIN_S, BETWEEN_S, PER_NODE = 3.4e-6, 14.0e-6, 8
DDP, FULL_SHARD = "DDP", "FSDP"


@dataclass(frozen=True, slots=True)
class Table:
    """Published rows: the rate of a GPU by the number of GPUs, and the GPU's share of a step (`per_gpu`).

    `units` have parameters and their share of the work, in the order of forward; `root` parameters belong to no unit
    and are used at both ends; the head computes `head` as a unit's work is counted. Parameters are gathered in
    `gathered` bytes each, gradients reduced in `reduced`, by DDP in buckets of `caps`. Predictions come from the row of
    `base` GPUs. With `recomputed`, backward starts with another forward.
    """

    name: str
    source: str
    machine: str
    within: float
    between: float
    units: tuple[tuple[int, float], ...]
    root: int
    head: float
    strategy: str
    per_gpu: float
    rates: dict[int, float]
    base: int
    gathered: float = 2
    reduced: float = 2
    caps: tuple[int, ...] = DEFAULT_CAPS
    recomputed: bool = False
    assumed: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: Mapping[str, Any], machine: Mapping[str, Any], model: Mapping[str, Any]) -> Table:
        """Return a table of `published.json`, with its machine and model."""
        given = dict(table)
        rates = {int(gpus): rate for gpus, rate in given.pop("rates").items()}
        base = list(rates)[given.pop("base", 0)]
        units = tuple((size, work) for count, size, work in model["units"] for _ in range(count))
        lists = {name: tuple(given.pop(name)) for name in ("caps", "assumed") if name in given}
        links = {name: machine[name] for name in ("within", "between")}
        del given["model"]
        return cls(
            **given, **lists, **links, rates=rates, base=base, units=units, root=model["root"], head=model["head"]
        )

    @property
    def parameters(self) -> int:
        return self.root + sum(size for size, _ in self.units)

    @property
    def known(self) -> tuple[int, ...]:
        """The rows that a line goes through: up to the base, or else the two smallest of more than two."""
        rows = tuple(self.rates)
        before = rows[: rows.index(self.base) + 1]
        return before if len(before) > 1 or len(rows) < 3 else rows[:2]


def program(table: Table, gpus: int, work_s: float) -> Program:
    """Return the step of one of `gpus` GPUs that computes for `work_s`."""
    if table.strategy == DDP:
        return _ddp(table, gpus, work_s)
    return _Sharded(table, gpus, work_s).program()


def step_s(table: Table, gpus: int, work_s: float) -> float:
    """Return the seconds of a step of so many GPUs that compute for `work_s`."""
    return timeline(program(table, gpus, work_s), _takes(table.within, table.between, gpus)).step_s


def compute_s(table: Table) -> float:
    """Return the seconds of computing with which the base row comes out."""
    goal = table.per_gpu / table.rates[table.base]
    work = goal
    for _ in range(100):
        off = goal - step_s(table, table.base, work)
        work += off
        if abs(off) < 1e-12 * goal:
            break
    return work


@cache
def _takes(within: float, between: float, gpus: int) -> Callable[[Call], tuple[float, str]]:
    links = Links({}, {WITHIN: Link(WITHIN_S, 1 / within), BETWEEN: Link(BETWEEN_S, 1 / between)})

    @cache
    def takes(call: Call) -> tuple[float, str]:
        return links.seconds(call.op, "ring", gpus, PER_NODE, call.bytes), BETWEEN

    return takes


def _shares(table: Table) -> tuple[list[float], list[float], float, float]:
    """Return the shares of the work: forward and backward of each unit, and of the head."""
    backward = RECOMPUTED_WORK if table.recomputed else BACKWARD_WORK
    whole = (sum(work for _, work in table.units) + table.head) * (1 + backward)
    forward = [work / whole for _, work in table.units]
    head = table.head / whole
    return forward, [share * backward for share in forward], head, head * backward


def _ddp(table: Table, gpus: int, work_s: float) -> Program:
    """Return a step of DDP. The gradients of a unit are ready after its backward, the last unit first."""
    forward, backward, head, head_backward = _shares(table)
    ready, gradients = head_backward * work_s, list[Gradient]()
    for (size, _), share in zip(reversed(table.units), reversed(backward), strict=True):
        ready += share * work_s
        gradients.append(Gradient(round(size * table.reduced), ready))
    if table.root:
        gradients.append(Gradient(round(table.root * table.reduced), ready))
    events = (
        Event(PART, "forward"), Event(WORK, (sum(forward) + head) * work_s),
        Event(PART, BACKWARD), Event(WORK, ready), Event(PART, OPTIMIZER),
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
        sizes, root = [size for size, _ in self.table.units], self.table.root
        forward, backward, head, head_backward = _shares(self.table)
        last = len(sizes) - 1
        yield Event(PART, "forward")
        yield self._gather(root)
        yield self._gather(sizes[0])
        yield self._wait(1)
        for at in range(last + 1):
            yield self._wait(0)
            if at < last:
                yield self._gather(sizes[at + 1])
            yield self._work(forward[at])
        yield self._work(head)
        yield Event(PART, BACKWARD)
        again = self.table.strategy == FULL_SHARD
        gathered = self.calls
        if again:
            yield self._gather(sizes[last])
        yield self._work(head_backward)
        for at in range(last, -1, -1):
            if again:
                yield Event(WAIT_FOR, gathered)
                gathered = self.calls
                if at:
                    yield self._gather(sizes[at - 1])
            yield self._work(backward[at])
            yield self._reduce(sizes[at])
        yield self._reduce(root)
        yield Event(PART, OPTIMIZER)

    def _gather(self, parameters: int) -> Event:
        return self._call("all_gather", parameters * self.table.gathered)

    def _reduce(self, parameters: int) -> Event:
        return self._call("reduce_scatter", parameters * self.table.reduced)

    def _call(self, op: str, size: float) -> Event:
        self.calls += 1
        return Event(CALL, Call(op, round(size), Group(self.gpus)))

    def _wait(self, before: int) -> Event:
        """Wait for the call that is `before` calls older than the newest."""
        return Event(WAIT_FOR, self.calls - 1 - before)

    def _work(self, share: float) -> Event:
        return Event(WORK, share * self.work_s)
