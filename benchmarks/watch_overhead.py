"""Measure the cost of `parabench.watch`: the same training loop with and without it, interleaved.

    torchrun --nproc-per-node 2 -m benchmarks.watch_overhead [--rounds 1000] [--steps 8] [--width 512]

Each round takes the same number of steps with and without `watch`, in random order, each after SETTLE discarded steps.
Rounds are short, because a machine's noise is slow. Instruments are on as in a long run. Prints the ratios of wall time
and CPU time: the mean and the median over rounds with their 95% intervals.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.ratios import mean_ratio, median_ratio
from parabench.watching.group import Group
from parabench.watching.observer import Observer
from parabench.watching.schedule import Schedule

SETTLE, WARMUP, BATCH = 2, 10, 32


def model_of(width: int) -> nn.Module:
    torch.manual_seed(1)
    module: nn.Module = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(width, width), nn.GELU())))
    return DistributedDataParallel(module) if dist.is_initialized() else module


def train(module: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Tensor]) -> None:
    for batch in batches:
        module(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def rounds(asked: argparse.Namespace) -> np.ndarray:
    """Return the times of all rounds, of shape (rounds, plain or watched, wall or CPU)."""
    module = model_of(asked.width)
    optimizer = torch.optim.AdamW(module.parameters())
    lot, batches = random.Random(0), [torch.randn(BATCH, asked.width) for _ in range(asked.steps)]
    found = np.empty((asked.rounds, 2, 2))
    with tempfile.TemporaryDirectory() as folder:
        observer = Observer(
            module=module, optimizer=optimizer, group=Group.enter(), schedule=Schedule(), folder=Path(folder),
            began_s=time.perf_counter(), log=print,
        )  # fmt: skip
        train(module, optimizer, [batches[0]] * WARMUP)

        def timed(over: Callable[[list[Tensor]], Iterable[Tensor]]) -> tuple[float, float]:
            """Return the seconds of wall time and of CPU time."""
            train(module, optimizer, over(batches[:SETTLE]))
            begin, own = time.perf_counter(), time.process_time()
            train(module, optimizer, over(batches))
            return time.perf_counter() - begin, time.process_time() - own

        def watched() -> tuple[float, float]:
            with observer.watching():
                return timed(observer)

        sides = (lambda: timed(iter), watched)
        for number in range(asked.rounds):
            for side in lot.sample(range(2), 2):
                found[number, side] = sides[side]()
        observer.read(None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watch_overhead")
    for name, usual in (("rounds", 1000), ("steps", 8), ("width", 512)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    found = rounds(asked)
    if not dist.is_initialized() or dist.get_rank() == 0:
        for clock, (plain, watched) in zip(("wall", "CPU"), found.T, strict=True):
            logs = np.log(watched / plain)
            print(f"{clock} time, watched / plain: {mean_ratio(logs)}, median {median_ratio(logs)}")
        more_us = 1e6 * np.diff(found[..., 1]).mean() / asked.steps
        print(f"a watched step takes {more_us:.1f} us more CPU time ({asked.rounds} rounds)")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
