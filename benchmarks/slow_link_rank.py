"""One rank of `slow_link`: `python -m benchmarks.slow_link_rank JOB RANK`, in the namespace of its node.

It joins the default group with the first algorithm, makes a group beside it for each other one, and calls them in
turn. Every result is compared with the exact one. Seconds, and bytes that left its node, go to RANK.json beside JOB.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.groups import TIMEOUT_S, beside
from parabench.collectives import join

# Small whole numbers: no order of adding them rounds. The period is prime, so no part looks like another.
PERIOD = 251
STILL_S = 0.005


@dataclass(frozen=True, slots=True)
class Job:
    """What every rank is told. `sizes` are bytes; `pairs` measured calls of each follow `warmup` ones."""

    address: str
    port: int
    world_size: int
    ranks_per_node: int
    algorithms: tuple[str, ...]
    sizes: tuple[int, ...]
    pairs: int
    warmup: int = 2


def main() -> None:
    path, rank = Path(sys.argv[1]), int(sys.argv[2])
    job = Job(**json.loads(path.read_text()))
    torch.set_num_threads(1)
    join.join(
        algorithm=job.algorithms[0],
        backend="gloo",
        rank=rank,
        world_size=job.world_size,
        ranks_per_node=job.ranks_per_node,
        store=dist.TCPStore(job.address, job.port, job.world_size, rank == 0, timedelta(seconds=TIMEOUT_S)),
        timeout_s=TIMEOUT_S,
    )
    groups: dict[str, Any] = {job.algorithms[0]: dist.group.WORLD}
    for algorithm in job.algorithms[1:]:
        groups[algorithm] = beside(algorithm, rank, job.world_size, job.ranks_per_node)
    seen = [measure(groups, job, rank, size) for size in job.sizes]
    (path.parent / f"{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    groups.clear()
    gc.collect()
    join.leave()


def measure(groups: dict[str, Any], job: Job, rank: int, size: int) -> dict[str, Any]:
    """One size: for each algorithm its seconds, the bytes of one call that left the node, and its wrong elements."""
    pattern = (torch.arange(size // 4) % PERIOD).float()
    mine = pattern + rank
    expected = pattern * job.world_size + sum(range(job.world_size))
    total = torch.empty_like(mine)
    seen: dict[str, Any] = {name: {"s": [], "bytes": [], "wrong": 0} for name in groups}
    for call in range(job.warmup + job.pairs):
        # No algorithm is always behind the same one.
        for name in [*groups][:: 1 if call % 2 else -1]:
            total.copy_(mine)
            before = left()
            dist.barrier()
            begin = time.perf_counter()
            groups[name].allreduce([total]).wait()
            duration = time.perf_counter() - begin
            dist.barrier()
            seen[name]["wrong"] += int((total != expected).sum())
            if call >= job.warmup:
                seen[name]["s"].append(duration)
                seen[name]["bytes"].append(left() - before)
    return seen


def left() -> int:
    """Bytes that this node has sent over the link so far.

    The kernel counts a packet, which may hold 64 KiB, after the other end has it: what was received is all counted
    only when the counter has stood still for a while.
    """
    counter = Path(f"/sys/class/net/{os.environ['GLOO_SOCKET_IFNAME']}/statistics/tx_bytes")
    seen, before = int(counter.read_text()), -1
    while seen != before:
        time.sleep(STILL_S)
        seen, before = int(counter.read_text()), seen
    return seen


if __name__ == "__main__":
    main()
