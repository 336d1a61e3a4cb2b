"""Measure the cost of `parabench.watch`: the same training loop with and without it, interleaved.

    torchrun --nproc-per-node 2 -m benchmarks.watch_overhead [--rounds 1000] [--steps 8] [--width 512]

Each round takes the same number of steps with and without `watch`, in random order, each after SETTLE discarded steps.
Rounds are short, because a machine's noise is slow. Instruments are on as in a long run. Prints the ratios of wall time
and CPU time: the mean and the median over rounds with their 95% intervals. Also prints whether the losses of a watched
and a plain training run are bitwise identical.
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
from parabench import watch
from parabench.watching.group import Group
from parabench.watching.observer import Observer
from parabench.watching.schedule import Schedule

SETTLE = 2
WARMUP = 10
EQUAL_STEPS = 60


def model_of(width: int) -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.Linear(width, width) if at % 2 == 0 else nn.GELU() for at in range(12)]
    module: nn.Module = nn.Sequential(*layers)
    return DistributedDataParallel(module) if dist.is_initialized() else module


def train(module: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Tensor]) -> list[float]:
    """Take a step for each batch and return the losses."""
    losses = []
    for batch in batches:
        loss = module(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def ratios(module: nn.Module, optimizer: torch.optim.Optimizer, asked: argparse.Namespace) -> dict[str, list[float]]:
    """Return for each round the watched over the plain time, `wall` and `processor`, and the additional CPU time `us`.

    `us` is in microseconds per step.
    """
    group, found = Group.enter(), dict[str, list[float]](wall=[], processor=[], us=[])
    lot = random.Random(0)
    batches = [torch.randn(asked.batch, asked.width) for _ in range(asked.steps)]
    with tempfile.TemporaryDirectory() as folder:
        observer = Observer(
            module=module,
            optimizer=optimizer,
            group=group,
            schedule=Schedule(),
            folder=Path(folder),
            began_s=time.perf_counter(),
            log=print,
        )
        train(module, optimizer, batches[:WARMUP])

        def timed(over: Callable[[list[Tensor]], Iterable[Tensor]]) -> tuple[float, float]:
            train(module, optimizer, over(batches[:SETTLE]))
            begin, own = time.perf_counter(), time.process_time()
            train(module, optimizer, over(batches))
            return time.perf_counter() - begin, time.process_time() - own

        def watched() -> tuple[float, float]:
            with observer.watching():
                return timed(observer)

        sides: dict[str, Callable[[], tuple[float, float]]] = {"plain": lambda: timed(iter), "watched": watched}
        for _ in range(asked.rounds):
            order = lot.sample(sorted(sides), 2)
            took = {name: sides[name]() for name in order}
            for at, clock in enumerate(("wall", "processor")):
                found[clock].append(took["watched"][at] / took["plain"][at])
            found["us"].append(1e6 * (took["watched"][1] - took["plain"][1]) / asked.steps)
        observer.read(None, print)
    return found


def losses_of(width: int, batch: int, *, seen: bool) -> list[float]:
    module = model_of(width)
    optimizer = torch.optim.AdamW(module.parameters())
    torch.manual_seed(2)
    batches = [torch.randn(batch, width) for _ in range(EQUAL_STEPS)]
    if not seen:
        return train(module, optimizer, batches)
    # Only the first rank writes to its folder.
    with (
        tempfile.TemporaryDirectory() as folder,
        watch(module, optimizer, out=folder, log=lambda line: None) as steps,
    ):
        return train(module, optimizer, steps(batches))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watch_overhead")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    equal = losses_of(asked.width, asked.batch, seen=False) == losses_of(asked.width, asked.batch, seen=True)
    module = model_of(asked.width)
    found = ratios(module, torch.optim.AdamW(module.parameters()), asked)
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(f"losses of {EQUAL_STEPS} steps: {'identical' if equal else 'DIFFERENT'}")
        cost = found.pop("us")
        for clock, each in found.items():
            logs = np.log(each)
            print(f"{clock} time, watched / plain: {mean_ratio(logs)}, median {median_ratio(logs)}")
        print(f"a watched step takes {np.mean(cost):.1f} us more CPU time ({asked.rounds} rounds)")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
