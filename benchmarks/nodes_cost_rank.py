"""One rank of `nodes_cost` under torchrun: the same training, with nothing of parabench's around it.

`torchrun ... -m benchmarks.nodes_cost_rank FOLDER`. It builds and trains the case with parabench's own functions, so
that only what stands around the steps differs. Rank r writes how long each step took, in seconds, to FOLDER/r as JSON.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from parabench.collectives import join
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.probes.step_clock import MARKS
from parabench.strategies.base import RankInfo
from parabench.workloads.trainer import build, train

NODES, RANKS_PER_NODE = 2, 2
CASE = Case(strategy="ddp", world_size=NODES * RANKS_PER_NODE, nodes=NODES, device="cpu", backend="gloo", seq_len=32)
PROTOCOL = Protocol(warmup=5, steps=20)


def busiest_s(ranks: Iterable[Sequence[float]]) -> float:
    """Seconds of all steps on the rank on which they took longest; given is what each step of each rank took."""
    return max(sum(steps) for steps in ranks)


class Marks:
    """A clock that only reads the time."""

    def __init__(self) -> None:
        self._at: list[float] = []

    def mark(self) -> None:
        self._at.append(time.perf_counter())

    def skip(self) -> None:
        raise AssertionError("this training has all marks")

    def durations(self) -> list[float]:
        """Seconds that each step took."""
        return [self._at[first + MARKS - 1] - self._at[first] for first in range(0, len(self._at), MARKS)]


def main() -> None:
    torch.set_num_threads(CASE.threads)
    dist.init_process_group(CASE.backend)
    rank = dist.get_rank()
    marks = Marks()
    take_steps(RankInfo(rank, CASE.world_size, torch.device(CASE.device)), marks)
    (Path(sys.argv[1]) / str(rank)).write_text(json.dumps(marks.durations()))
    gc.collect()  # DDP's reducer must be gone before its group is
    join.leave()


def take_steps(rank_info: RankInfo, marks: Marks) -> None:
    """As many as a launch takes, those included that it takes instrumented."""
    training, _, _ = build(CASE, rank_info)
    train(training, marks, range(PROTOCOL.all_steps))


if __name__ == "__main__":
    main()
