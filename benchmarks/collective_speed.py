"""Are our algorithms at least as fast as gloo's own? Ratios from interleaved runs.

    python -m benchmarks.collective_speed [ROUNDS]

Every algorithm has its own connections in the same processes. In each round each algorithm runs once, in an order
that alternates; its time is the slowest rank's. Printed: the median over rounds of the other's time over ours (above
1: ours is faster), with its 95% interval.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from benchmarks import collective_speed as ours
from benchmarks.groups import TIMEOUT_S, beside
from benchmarks.ratios import median_ratio
from parabench.collectives import join
from parabench.launch.processes import run_processes, start_server
from parabench.launch.rank import die_with_driver
from parabench.launch.rendezvous import LOOPBACK
from parabench.store.record import MIB

KIB = 1024
NATIVE = "native"
DEADLINE_S = 1200.0
WARMUP = 3


@dataclass(frozen=True)
class Question:
    """Is `ours` at `op` of `nbytes` (the whole tensor) at least `goal` times as fast as `other`?"""

    ranks: int
    op: str
    ours: str
    other: str
    nbytes: int
    goal: float


def questions() -> list[Question]:
    found = []
    for ranks in (2, 4):
        found += [
            Question(ranks, "all_reduce", "ring", NATIVE, 64 * KIB, 1 / 1.5),
            *(Question(ranks, "all_reduce", "ring", NATIVE, size * MIB, 1.0) for size in (1, 2, 4, 8, 16, 25, 64)),
            *(
                Question(ranks, op, "ring", NATIVE, size * MIB, 2.0)
                for op in ("reduce_scatter", "all_gather")
                for size in (25, 64)
            ),
        ]
    found += [Question(4, "all_reduce", "halving_doubling", "ring", size * KIB, 1.0) for size in (4, 16, 32)]
    return found


def operation(op: str, nbytes: int, ranks: int) -> Callable[[Any], None]:
    """The call to time, on buffers of its own; it takes a process group."""
    numel = nbytes // 4 // ranks * ranks
    whole, part = torch.ones(numel), torch.ones(numel // ranks)
    reducing, scattering, gathering = dist.AllreduceOptions(), dist.ReduceScatterOptions(), AllgatherOptions()
    for options in (reducing, scattering, gathering):
        options.asyncOp = False  # as when nobody asks for async_op=True
    calls: dict[str, Callable[[Any], None]] = {
        "all_reduce": lambda group: group.allreduce([whole], reducing).wait(),
        "reduce_scatter": lambda group: group._reduce_scatter_base(part, whole, scattering).wait(),
        "all_gather": lambda group: group._allgather_base(whole, part, gathering).wait(),
    }
    return calls[op]


def measure(folder: Path, asked: list[Question], rounds: int) -> None:
    """A rank: for each question the seconds of both algorithms, round by round, to RANK.json."""
    die_with_driver()
    os.environ.update(LOOPBACK)
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), asked[0].ranks
    join.join(
        algorithm=NATIVE, backend="gloo", rank=rank, world_size=ranks, ranks_per_node=None,
        store=dist.FileStore(str(folder / "store"), ranks), timeout_s=TIMEOUT_S,
    )  # fmt: skip
    groups = {name: beside(name, rank, ranks) for name in sorted({n for q in asked for n in (q.ours, q.other)})}
    seen = []
    for question in asked:
        call = operation(question.op, question.nbytes, ranks)
        seconds: dict[str, list[float]] = {question.ours: [], question.other: []}
        for number in range(WARMUP + rounds):
            for name in [*seconds][:: 1 if number % 2 else -1]:
                dist.barrier()
                begin = time.perf_counter()
                call(groups[name])
                duration = time.perf_counter() - begin
                if number >= WARMUP:
                    seconds[name].append(duration)
        seen.append(seconds)
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    groups.clear()
    gc.collect()
    join.leave()


def collectives(rounds: int) -> None:
    for ranks in (2, 4):
        asked = [question for question in questions() if question.ranks == ranks]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            done = run_processes(
                ours.measure, (folder, asked, rounds), size=ranks, deadline_s=DEADLINE_S, logs=folder / "logs"
            )
            assert done.ok, done
            seen = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
        for place, question in enumerate(asked):
            slowest = {
                name: np.log(np.max([each[place][name] for each in seen], axis=0))
                for name in (question.ours, question.other)
            }
            size = f"{question.nbytes / MIB:g} MiB" if question.nbytes >= MIB else f"{question.nbytes // KIB} KiB"
            ratio = median_ratio(slowest[question.other] - slowest[question.ours])
            what = f"{question.op} of {size}, {ranks} ranks, {question.ours} against {question.other}"
            print(f"{what:<58} {ratio}  goal {question.goal:.2f}", flush=True)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    start_server()
    print(f"{'how many times as fast':<58} ratio (95% interval)")
    collectives(rounds)


if __name__ == "__main__":
    main()
