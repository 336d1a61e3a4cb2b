"""Compare the time of an all-reduce in `parabench collectives` with a hand-written loop of calls.

    torchrun --nproc-per-node 2 -m benchmarks.collective_turns [ROUNDS]

Both run in the same processes with the same tensor, in random order. Rank 0 prints for each size the median ratio over
ROUNDS (above 1: parabench measures a longer time) with its 95% interval, and the ratio of the loop to itself, which is
the noise of the machine.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.ratios import median_ratio
from parabench.plan.collective_protocol import WARMUP_BATCHES, CollectiveProtocol
from parabench.store.record import MIB
from parabench.workloads.timing import MARKS, Bench

CALLS = 20
SIZES = tuple(size * MIB for size in (1, 4, 16, 64))


def loop(tensor: torch.Tensor) -> float:
    """Return the seconds of a call in a hand-written loop: 5 discarded calls, then CALLS between two readings."""
    for _ in range(5):
        dist.all_reduce(tensor)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(CALLS):
        dist.all_reduce(tensor)
    return (time.perf_counter() - begin) / CALLS


def bench(tensor: torch.Tensor) -> float:
    """Return the seconds of a call as `parabench collectives` measures them."""
    protocol = CollectiveProtocol()
    rows = np.empty((WARMUP_BATCHES + protocol.batches, MARKS))
    bench = Bench(protocol, "gloo", torch.device("cpu"), dist.get_rank())
    with bench.warmed_up(lambda: dist.all_reduce(tensor), rows[:1]) as turn:
        turn(rows[1:])
    _, seconds, calls = rows[WARMUP_BATCHES:].sum(axis=0)
    return float(seconds / calls)


def main(rounds: int = 40) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    order = np.random.default_rng(0)  # the same on all ranks
    sides = {"loop": loop, "again": loop, "bench": bench}
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        taken: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name in order.permutation(list(sides)):
                taken[name].append(sides[name](tensor))
        if dist.get_rank() == 0:
            logs = {name: np.log(seconds) for name, seconds in taken.items()}
            ours, again = (median_ratio(logs[name] - logs["loop"]) for name in ("bench", "again"))
            print(f"{size // MIB:>4} MiB  parabench / loop {ours}  loop / loop {again}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
