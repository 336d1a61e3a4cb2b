"""Is a step's latency true? parabench's loop and a hand-written DDP loop take turns in the same two processes.

    python -m benchmarks.step_truth [LAUNCHES] [ROUNDS]

Each launch builds both, of the same model; a round gives each a turn of one settling step and TIMED timed ones, after a
barrier, in an order that alternates. A turn is as long as its slowest rank's. A launch's number is the mean over
rounds, trimmed as in a session, of log(parabench / hand-written). Printed: their geometric mean with its 95%
interval over launches.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.bare_ddp import Bare
from benchmarks.ratios import mean_ratio
from parabench.analysis.turns import compared
from parabench.plan.case import Case
from parabench.probes.step_clock import StepClock
from parabench.strategies.base import RankInfo
from parabench.workloads.trainer import build

CASE = Case(strategy="ddp", world_size=2, device="cpu", backend="gloo", seq_len=64)
WARMUP, TIMED = 5, 2


def rank_main(rounds: int, folder: Path) -> None:
    """A rank: writes how long each turn took, ours and the bare one, to a file of its own."""

    torch.set_num_threads(CASE.threads)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    bare = Bare(CASE.global_batch, CASE.seq_len)
    training = build(CASE, RankInfo(rank, dist.get_world_size(), torch.device("cpu")))
    rows = WARMUP + rounds * (1 + TIMED)
    clock = StepClock(folder / f"marks.{rank}", rows, torch.device("cpu"))

    def ours(steps: int) -> None:
        training.take(clock, steps)

    def hand_written(steps: int) -> None:
        for _ in range(steps):
            bare.step()

    sides: list[Callable[[int], None]] = [ours, hand_written]
    for side in sides:
        side(WARMUP)
    times: list[list[float]] = [[], []]
    for number in range(rounds):
        for place in (0, 1) if number % 2 else (1, 0):
            dist.barrier()
            sides[place](1)
            begin = time.perf_counter()
            sides[place](TIMED)
            times[place].append(time.perf_counter() - begin)
    (folder / f"times.{rank}").write_text(json.dumps(times))
    dist.destroy_process_group()


def launch(rounds: int) -> float:
    """The logarithm of parabench's time by the hand-written loop's."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "torch.distributed.run", "--nproc-per-node", str(CASE.world_size)]
        subprocess.run(
            [sys.executable, *command, "-m", "benchmarks.step_truth", "rank", str(rounds), folder],
            check=True,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        ranks = [json.loads((Path(folder) / f"times.{rank}").read_text()) for rank in range(CASE.world_size)]
    ours, bare = compared(np.log(np.max(ranks, axis=0)))
    return float(ours - bare)


def main(launches: int = 12, rounds: int = 60) -> None:
    logs = [launch(rounds) for _ in range(launches)]
    print(f"parabench / hand-written loop: {mean_ratio(logs)}, {launches} launches of {rounds} rounds")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(*map(int, sys.argv[1:]))
