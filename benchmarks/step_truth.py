"""Compare the steps of parabench with a hand-written DDP loop that is interleaved with them in the same two processes.

    python -m benchmarks.step_truth [LAUNCHES] [ROUNDS]

The loops share only the definition of the model. Each round gives each loop a turn with one discarded and TIMED
measured steps, after a barrier, in alternating order. The time of a turn is the slowest rank's. The per-launch
statistic is the mean over rounds, trimmed as in a session, of log(parabench / hand-written). Prints its geometric mean
with the 95% interval over launches.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.ratios import mean_ratio
from parabench.analysis.launch_number import compared
from parabench.models.reference import GPT, next_token_loss
from parabench.plan.case import Case
from parabench.probes.step_clock import StepClock
from parabench.strategies.base import RankInfo
from parabench.workloads.trainer import build

CASE = Case(strategy="ddp", world_size=2, device="cpu", backend="gloo", seq_len=64)
WARMUP, TIMED = 5, 2


def hand_written_loop(batch: int, seq_len: int) -> Callable[[int], None]:
    """Return a function that trains for a number of steps, as under torchrun."""
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT(layers=4, heads=4, width=128, vocabulary=256, context=1024))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.tensor(list(files("parabench.data").joinpath("sample.txt").read_bytes()))
    rank, rows, span = dist.get_rank(), batch // dist.get_world_size(), batch * seq_len
    taken = 0

    def train(steps: int) -> None:
        nonlocal taken
        for _ in range(steps):
            start = taken % ((len(tokens) - 1) // span) * span + rank * rows * seq_len
            window = tokens[start : start + rows * seq_len + 1]
            next_token_loss(model(window[:-1].view(rows, seq_len)), window[1:].view(rows, seq_len)).backward()
            optimizer.step()
            optimizer.zero_grad()
            taken += 1

    return train


def rank_main(rounds: int, folder: Path) -> None:
    """Write the seconds of this rank's turns with both loops to a file."""
    torch.set_num_threads(CASE.threads)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    hand_written = hand_written_loop(CASE.global_batch, CASE.seq_len)
    training = build(CASE, RankInfo(rank, dist.get_world_size(), torch.device("cpu")))
    clock = StepClock(folder / f"marks.{rank}", WARMUP + rounds * (1 + TIMED), torch.device("cpu"))
    loops: list[Callable[[int], None]] = [lambda steps: training.take(clock, steps), hand_written]
    for train in loops:
        train(WARMUP)
    times: list[list[float]] = [[], []]
    for number in range(rounds):
        for place in (0, 1) if number % 2 else (1, 0):
            dist.barrier()
            loops[place](1)
            begin = time.perf_counter()
            loops[place](TIMED)
            times[place].append(time.perf_counter() - begin)
    (folder / f"times.{rank}").write_text(json.dumps(times))
    dist.destroy_process_group()


def launch(rounds: int) -> float:
    """Return log(parabench / hand-written) of a launch."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(CASE.world_size)]
        words += ["-m", "benchmarks.step_truth", "rank", str(rounds), folder]
        subprocess.run(words, check=True, stderr=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
        ranks = [json.loads((Path(folder) / f"times.{rank}").read_text()) for rank in range(CASE.world_size)]
    ours, hand_written = compared(np.log(np.max(ranks, axis=0)))
    return float(ours - hand_written)


def main(launches: int = 12, rounds: int = 60) -> None:
    logs = [launch(rounds) for _ in range(launches)]
    print(f"parabench / hand-written loop: {mean_ratio(logs)}, {launches} launches of {rounds} rounds")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(*map(int, sys.argv[1:]))
