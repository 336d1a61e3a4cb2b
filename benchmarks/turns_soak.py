"""Does a launch that cases share ever hang, leak or compute something else? Hundreds of them, each verified.

    python -m benchmarks.turns_soak [LAUNCHES]

Each has four ranks, which hold four to six cases of one, two and four ranks, drawn by lot from every strategy over
every algorithm, for two rounds; the first has many rounds. Every case is compared with what one device computes. Told
are the launches that are not ok, processes that are left, and what grows: the memory and descriptors of a rank over the
rounds of the long launch, of this process and its fork server over all launches. Exit code 1 when there was any of it.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import psutil
import torch.distributed as dist

from benchmarks.soak import DEADLINE_S, soak
from parabench import Model
from parabench.collectives import ON_ANY_BACKEND, TWO_LEVEL
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.cohorts import why_alone
from parabench.plan.protocol import Protocol
from parabench.plan.turns import TurnsProtocol
from parabench.signals import STOPPED, Interrupted
from parabench.store.record import Launch, Status
from parabench.strategies import STRATEGIES, Layout
from parabench.strategies.base import ParallelModel, StrategyContext
from parabench.strategies.data_parallel import ddp

MIB = 2**20
SHORT = TurnsProtocol(rounds=2, settle=1, timed=2, warmup=2)
LONG = replace(SHORT, rounds=100)
# As many steps as the tolerances were measured over.
REFERENCE = Protocol(warmup=2, steps=40)
# c10d's flight recorder keeps so many collectives: full soon, so that what grows later is held by something else.
RECORDED = 200
AT_REST = 0.25
LAUNCHES_AT_REST = 10
# In 200 launches the driver grew by 2 MiB.
MOST_GROWTH = 4 * MIB


def watched(model: Model, context: StrategyContext) -> ParallelModel:
    """DDP whose fact `watched` is what each rank's process holds at each of its steps: [bytes, descriptors]."""
    parallel = ddp(model, context)
    seen = list[tuple[int, int]]()
    parallel.module.register_forward_pre_hook(lambda *_: seen.append(held()))

    def facts() -> dict[str, Any]:
        of_ranks: list[Any] = [None] * context.world_size
        dist.all_gather_object(of_ranks, seen)
        return {"watched": of_ranks}

    return replace(parallel, facts=facts)


def held() -> tuple[int, int]:
    """The bytes that are resident of this process when what is free has gone back to the system, and its open
    descriptors."""
    ctypes.CDLL(None).malloc_trim(0)
    return of(psutil.Process())


def of(process: psutil.Process) -> tuple[int, int]:
    return process.memory_info().rss, process.num_fds()


def case(**fields: Any) -> Case:
    return Case(data="synthetic", seq_len=8, device="cpu", backend="gloo", **fields)


def every_case() -> Iterator[Case]:
    """Every strategy that can share, over every algorithm, on two and on four ranks."""
    for name, entry in STRATEGIES.items():
        for ranks in (1,) if entry.one_rank_only else (2, 4):
            grid = {"tp_size": 2} if entry.layout is Layout.GRID else {}
            for algorithm in ON_ANY_BACKEND if "algorithm" in entry.axes else ("native",):
                node = (
                    {"ranks_per_node": ranks // 2} if "ranks_per_node" in entry.axes or algorithm == TWO_LEVEL else {}
                )
                made = case(strategy=name, algorithm=algorithm, world_size=ranks, **grid, **node)
                if why_alone(made) is None:
                    yield made


def specs(launches: int) -> Iterator[LaunchSpec]:
    """The long launch, and then short ones."""
    every = list(every_case())
    watch = case(strategy="benchmarks.turns_soak:watched", world_size=4)
    for number in range(launches):
        lot = random.Random(number)
        cases = [watch, *lot.sample(every, lot.randint(3, 5))]
        protocol = replace(SHORT if number else LONG, seed=number)
        deadline_s = DEADLINE_S if number else 10 * DEADLINE_S
        yield LaunchSpec(kind="turns", cases=tuple(cases), protocol=protocol, deadline_s=deadline_s)


def growth(readings: Sequence[tuple[int, int]], rest: int) -> tuple[int, int]:
    """By how many bytes and descriptors the last of the readings is above that at which memory came to rest."""
    return readings[-1][0] - readings[rest][0], readings[-1][1] - readings[rest][1]


def main(launches: int = 200) -> int:
    os.environ["TORCH_FR_BUFFER_SIZE"] = str(RECORDED)
    began = time.perf_counter()
    outcomes: Counter[Status] = Counter()
    pairs: set[tuple[str, str, int]] = set()
    readings: dict[str, list[tuple[int, int]]] = {}
    grown: dict[str, tuple[int, int]] = {}

    def tell(launch: Launch) -> None:
        if not outcomes and launch.arms:
            for rank, each in enumerate(launch.arms[0].facts["watched"]):
                grown[f"rank {rank}, rounds {round(AT_REST * LONG.rounds)} to {LONG.rounds}"] = growth(
                    each, int(AT_REST * len(each))
                )
        for arm in launch.arms:
            outcomes[arm.status] += 1
            pairs.add((arm.case.strategy, arm.case.algorithm, arm.case.world_size))
        readings.setdefault("this process", []).append(held())
        for number, child in enumerate(psutil.Process().children()):
            readings.setdefault(f"child {number}", []).append(of(child))

    wrong, stopped = 0, False
    try:
        for complaint in soak(specs(launches), REFERENCE, tell):
            wrong += 1
            print(complaint, flush=True)
    except Interrupted:
        stopped = True
    launches = len(readings.get("this process", ()))
    if launches > LAUNCHES_AT_REST:
        over = f"launches {LAUNCHES_AT_REST} to {launches}"
        grown |= {f"{who}, {over}": growth(each, LAUNCHES_AT_REST) for who, each in readings.items()}
    for who, (more, descriptors) in grown.items():
        leaks = more > MOST_GROWTH or descriptors > 0
        wrong += leaks
        print(f"{who}: {more / MIB:+.1f} MiB, {descriptors:+d} descriptors{': it grows' if leaks else ''}")
    print(
        f"{launches} shared launches in {time.perf_counter() - began:.0f} s: {outcomes[Status.OK]} of "
        f"{outcomes.total()} cases ok ({len(pairs)} of strategies, algorithms and ranks), {wrong} wrong"
    )
    return STOPPED if stopped else bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
