"""Does a launch ever hang, abort or compute something else? Hundreds of four-rank launches, each verified.

    python -m benchmarks.soak [LAUNCHES]

Every algorithm under every strategy in turn, a few steps of a tiny training each, compared with what one device
computes, as a session does it. Every launch that is not ok is printed with its failure; no process may be left over.
Exit code 1 when there was any of these.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator

import psutil

from parabench.collectives import ON_ANY_BACKEND, levels_of
from parabench.launch.launcher import launch
from parabench.launch.processes import start_server
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.signals import Interrupted
from parabench.store.record import Launch, Status
from parabench.workloads.verify import Reference, reference_of, verify

ALGORITHMS = (*ON_ANY_BACKEND, "two_level(ring,tree)", "two_level(tree,tree)")
# PyTorch's own buckets, and small ones: many reductions under way at once.
STRATEGIES = (("ddp", None), ("fsdp", None), ("tp", None), ("ddp", 0.1))
WORLD_SIZE, RANKS_PER_NODE = 4, 2
PROTOCOL = Protocol(warmup=2, steps=2)

# A launch takes a second on an idle machine.
DEADLINE_S = 60.0


def case(strategy: str, bucket_mib: float | None, algorithm: str) -> Case:
    return Case(
        strategy=strategy,
        algorithm=algorithm,
        bucket_mib=bucket_mib,
        world_size=WORLD_SIZE,
        ranks_per_node=RANKS_PER_NODE if levels_of(algorithm) is not None else None,
        data="synthetic",
        seq_len=8,
        device="cpu",
        backend="gloo",
    )


# Every algorithm, each under another strategy than the one before; after as many rounds as strategies, every pair.
CASES = [
    case(*STRATEGIES[(place + turn) % len(STRATEGIES)], algorithm=algorithm)
    for turn in range(len(STRATEGIES))
    for place, algorithm in enumerate(ALGORITHMS)
]


def specs(launches: int) -> Iterator[LaunchSpec]:
    """So many launches of a case each."""
    cases = itertools.islice(itertools.cycle(CASES), launches)
    return (LaunchSpec.of(each, PROTOCOL, deadline_s=DEADLINE_S) for each in cases)


def soak(specs: Iterable[LaunchSpec], reference: Protocol, tell: Callable[[Launch], object]) -> Iterator[str]:
    """Launch each, `tell` of it, and yield what was wrong: a failure, a process that is left. All train the same as
    one device does in the steps of `reference`."""
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
        tell(seen)
        left = {pid: name for pid, name in children().items() if pid not in before}
        if left:
            yield f"launch {number}, {seen.case.label}: left processes {left}"
            before |= left


def children() -> dict[int, str]:
    """The processes below this one."""
    return {child.pid: child.name() for child in psutil.Process().children(recursive=True)}


def main() -> None:
    launches = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    begin, seen = time.perf_counter(), list[Launch]()
    wrong = 0
    try:
        for complaint in soak(specs(launches), PROTOCOL, seen.append):
            wrong += 1
            print(complaint, flush=True)
    except Interrupted:
        sys.exit(130)
    ok = sum(each.status is Status.OK for each in seen)
    print(f"{len(seen)} launches of {WORLD_SIZE} ranks in {time.perf_counter() - begin:.0f} s: {ok} ok, {wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
