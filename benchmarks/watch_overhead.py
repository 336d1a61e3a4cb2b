"""What `parabench.watch` costs a training: the same loop with and without it, in turns.

    torchrun --nproc-per-node 2 -m benchmarks.watch_overhead [--rounds 1000] [--steps 8] [--width 512]

One process trains on: in every round as many steps are taken with the loop watched as without, in an order by lot, each
time after SETTLE steps that do not count. Rounds are short, because a machine's noise is slow. Watched steps are as in
a long run: at first instruments are on as often as `watch` has them. Prints by how much they take longer, on the wall
and of the processor's time: the mean over rounds with its 95% interval, and the median with its own, which single long
steps do not move; and whether the losses of a watched and of a plain training are the same, bit by bit.
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
    """A step for each batch; the losses."""
    losses = []
    for batch in batches:
        loss = module(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def ratios(module: nn.Module, optimizer: torch.optim.Optimizer, asked: argparse.Namespace) -> dict[str, list[float]]:
    """By clock, that of the wall and this process' own, the time of the watched steps by that of the others, of every
    round; and how many microseconds of the processor's a watched step takes more."""
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
    # Only the first rank writes, into its own.
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
        print(f"a watched step takes {np.mean(cost):.1f} us more of the processor's time ({asked.rounds} rounds)")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
