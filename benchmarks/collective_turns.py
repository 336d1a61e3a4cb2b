"""Bench's time of an all-reduce over that of a loop of 20 calls, in turns inside one process group.

    torchrun --nproc-per-node 2 -m benchmarks.collective_turns [ROUNDS]

Whole runs of `benchmarks.collective_throughput` differ by what each launch got of the machine; here both sides share
the launch, the tensor and the minute, so what is left is the way of timing. Printed by rank 0, a size a line: the
median over ROUNDS of the ratio (above 1: Bench says longer) and its 95 % bootstrap interval; and the same of the loop
over itself, which is the noise of the machine.
"""

from __future__ import annotations

import os
import sys

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.bare_collective import call_s
from benchmarks.ratios import median_ratio
from parabench.plan.collective_protocol import WARMUP_BATCHES, CollectiveProtocol
from parabench.store.record import MIB
from parabench.workloads.timing import MARKS, Bench

CALLS = 20
SIZES = tuple(size * MIB for size in (1, 4, 16, 64))


def bench(tensor: torch.Tensor) -> float:
    """The same as `parabench collectives` has it: all timed calls, by their number."""
    protocol = CollectiveProtocol()
    rows = np.empty((WARMUP_BATCHES + protocol.batches, MARKS))
    bench = Bench(protocol, "gloo", torch.device("cpu"), dist.get_rank())
    with bench.warmed_up(lambda: dist.all_reduce(tensor), rows[:1]) as turn:
        turn(rows[1:])
    _, seconds, calls = rows[WARMUP_BATCHES:].sum(axis=0)
    return float(seconds / calls)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    order = np.random.default_rng(0)  # the same on all ranks
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        taken: dict[str, list[float]] = {"loop": [], "again": [], "bench": []}
        for _ in range(rounds):
            for side in order.permutation(list(taken)):
                taken[side].append(bench(tensor) if side == "bench" else call_s(tensor, CALLS))
        if dist.get_rank() == 0:
            parts = [_ratio(taken[side], taken["loop"]) for side in ("bench", "again")]
            print(f"{size // MIB:>4} MiB  Bench / loop {parts[0]}  loop / loop {parts[1]}", flush=True)
    dist.destroy_process_group()


def _ratio(over: list[float], under: list[float]) -> str:
    ratio, low, high = median_ratio(np.log(np.array(over) / np.array(under)))
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
