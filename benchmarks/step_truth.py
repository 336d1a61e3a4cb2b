"""Is a step's latency true? Beside a hand-written DDP loop under torchrun doing the same steps, interleaved.

    python -m benchmarks.step_truth [PAIRS]

Each side gives one number a launch: the 10th percentile over its measured steps of the slowest rank's time. The
order inside a pair alternates. Printed: the geometric mean of the ratios with its 95 % interval.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy import stats

from parabench.launch.launcher import launch
from parabench.launch.processes import start_server
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.store.record import Phase

CASE = Case(strategy="ddp", world_size=2, device="cpu", backend="gloo", seq_len=64)
PROTOCOL = Protocol(warmup=5, steps=60)
GOAL = 0.03
PERCENTILE = 10


def bare_s(folder: Path) -> float:
    steps = PROTOCOL.warmup + PROTOCOL.steps
    shape = [str(value) for value in (steps, CASE.global_batch, CASE.seq_len, folder / "times")]
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "benchmarks.bare_ddp", *shape],
        check=True,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    times = np.array([json.loads((folder / f"times.{rank}").read_text()) for rank in range(CASE.world_size)])
    return float(np.percentile(times.max(axis=0)[PROTOCOL.warmup :], PERCENTILE))


def ours_s() -> float:
    done = launch(LaunchSpec.of(CASE, PROTOCOL, deadline_s=120))
    assert done.status == "ok", done.failure
    return float(np.percentile(done.step_times(Phase.MEASURE), PERCENTILE))


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    start_server()
    logs = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for pair in range(pairs):
            if pair % 2:
                bare, ours = bare_s(folder), ours_s()
            else:
                ours, bare = ours_s(), bare_s(folder)
            logs.append(math.log(ours / bare))
    mean, half = np.mean(logs), stats.sem(logs) * stats.t.ppf(0.975, pairs - 1)
    low, ratio, high = np.exp([mean - half, mean, mean + half])
    print(f"parabench / hand-written loop: {ratio:.3f} (95 % interval {low:.3f} to {high:.3f}), {pairs} pairs")
    print(f"goal: within {GOAL:.0%}: {'reached' if abs(ratio - 1) <= GOAL else 'missed'}")


if __name__ == "__main__":
    main()
