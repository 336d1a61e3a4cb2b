"""Launch four-rank training runs hundreds of times and verify each, to find rare hangs, crashes and wrong results.

    python -m benchmarks.soak [LAUNCHES [SHARED]]

LAUNCHES launches have one case each: every algorithm under every strategy, a few steps of a tiny model. Then SHARED
launches interleave four to six random cases with one, two and four ranks. Each case is compared with one device, as in
a session. Prints every launch that is not ok with its failure, and processes that are left over; the exit code is 1 if
there are any.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import psutil

from parabench.collectives import ON_ANY_BACKEND, TWO_LEVEL, levels_of
from parabench.launch.launcher import launch
from parabench.launch.processes import start_server
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.cohorts import why_alone
from parabench.plan.protocol import Protocol
from parabench.plan.schedule import TrainingSchedule
from parabench.signals import STOPPED, Interrupted
from parabench.store.record import Status
from parabench.strategies import STRATEGIES, Layout
from parabench.workloads.verify import Reference, reference_of, verify

ALGORITHMS = (*ON_ANY_BACKEND, "two_level(ring,tree)", "two_level(tree,tree)")
# PyTorch's own buckets, and small ones: many reductions at the same time.
WRAPPERS = (("ddp", None), ("fsdp", None), ("tp", None), ("ddp", 0.1))
PROTOCOL = Protocol(warmup=2, steps=2)
# The tolerances were measured over this number of steps.
REFERENCE = Protocol(warmup=2, steps=40)
# A launch takes a second on an idle machine.
DEADLINE_S = 60.0


def case(**fields: Any) -> Case:
    return Case(data="synthetic", seq_len=8, device="cpu", backend="gloo", **fields)


def specs(launches: int) -> Iterator[LaunchSpec]:
    """Yield launches of one case each. Consecutive algorithms have different wrappers; all pairs occur."""
    pairs = [
        (*WRAPPERS[(place + turn) % len(WRAPPERS)], algorithm)
        for turn in range(len(WRAPPERS))
        for place, algorithm in enumerate(ALGORITHMS)
    ]
    for strategy, cap, algorithm in itertools.islice(itertools.cycle(pairs), launches):
        nodes = {"ranks_per_node": 2} if levels_of(algorithm) else {}
        one = case(strategy=strategy, algorithm=algorithm, bucket_mib=cap, world_size=4, **nodes)
        yield LaunchSpec.of(one, PROTOCOL, deadline_s=DEADLINE_S)


def shared_specs(launches: int) -> Iterator[LaunchSpec]:
    """Yield launches of several cases each: any strategy that can share a launch, over any algorithm."""
    every = []
    for name, entry in STRATEGIES.items():
        grid = {"tp_size": 2} if entry.layout is Layout.GRID else {}
        algorithms = ON_ANY_BACKEND if "algorithm" in entry.axes else ("native",)
        for ranks, algorithm in itertools.product((1,) if entry.one_rank_only else (2, 4), algorithms):
            needs_nodes = "ranks_per_node" in entry.axes or algorithm == TWO_LEVEL
            node = {"ranks_per_node": ranks // 2} if needs_nodes else {}
            every.append(case(strategy=name, algorithm=algorithm, world_size=ranks, **grid, **node))
    every = [each for each in every if why_alone(each) is None]
    for seed in range(launches):
        lot = random.Random(seed)
        cases = tuple(lot.sample(every, lot.randint(4, 6)))
        turns = TrainingSchedule(rounds=2, settle=1, timed=(2,) * len(cases), warmup=2)
        yield LaunchSpec(kind="training", cases=cases, protocol=turns, deadline_s=DEADLINE_S)


def soak(specs: Iterable[LaunchSpec], reference: Protocol) -> Iterator[str]:
    """Launch each, and yield a line for each failure and for processes that are left over.

    Every case is compared with the steps of one device under the protocol `reference`.
    """
    start_server()
    before = children()
    expected: Reference | None = None
    for number, spec in enumerate(specs):
        if expected is None:
            single = launch(LaunchSpec.of(spec.cases[0].reference(), reference, deadline_s=DEADLINE_S))
            if single.status is not Status.OK:
                yield f"the reference is {single.status}: {single.failure}"
                return
            expected = reference_of(single)
        seen = launch(spec)
        for each in seen.arms or [seen]:
            verify(each, expected)
            if each.status is not Status.OK:
                yield f"launch {number}, {each.case.label}: {each.status}, {each.failure}"
        left = {pid: name for pid, name in children().items() if pid not in before}
        if left:
            yield f"launch {number}, {seen.case.label}: left processes {left}"
            before |= left


def children() -> dict[int, str]:
    """Return the processes below this one, by their ids."""
    return {child.pid: child.name() for child in psutil.Process().children(recursive=True)}


def main(launches: int = 500, shared: int = 200) -> int:
    begin, wrong = time.perf_counter(), 0
    try:
        for line in itertools.chain(soak(specs(launches), PROTOCOL), soak(shared_specs(shared), REFERENCE)):
            wrong += 1
            print(line, flush=True)
    except Interrupted:
        return STOPPED
    print(f"{launches} launches, {shared} shared ones in {time.perf_counter() - begin:.0f} s: {wrong} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
