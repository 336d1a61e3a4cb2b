"""What does a launch cost beyond its steps? Beside a bare `torchrun` of an empty script, interleaved.

    python -m benchmarks.launch_cost [PAIRS]

A launch here is the whole thing: two fresh ranks, the process group, gpt-nano, DDP, the optimizer, the data, the
steps, and handing the samples over. The time of the steps themselves (the slowest rank's, every step) is taken off.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from parabench.launch.launcher import launch
from parabench.launch.processes import start_server
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol

CASE = Case(strategy="ddp", world_size=2, device="cpu", backend="gloo", seq_len=32)
PROTOCOL = Protocol(warmup=5, steps=20)
GOAL = 0.1


def torchrun_s(script: Path) -> float:
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - begin


def beyond_steps_s() -> float:
    done = launch(LaunchSpec.of(CASE, PROTOCOL, deadline_s=120))
    assert done.status == "ok", done.failure
    return done.wall_s - sum(done.step_times())


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    start_server()
    bare, ours = [], []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "empty.py"
        script.touch()
        torchrun_s(script)  # warms the file cache for both
        for _ in range(pairs):
            bare.append(torchrun_s(script))
            ours.append(beyond_steps_s())
    ratio = statistics.median(o / b for o, b in zip(ours, bare, strict=True))
    print(f"bare torchrun, 2 ranks, empty script: {statistics.median(bare):.2f} s")
    print(f"parabench launch beyond its steps:    {statistics.median(ours):.3f} s")
    print(f"ratio: {ratio:.3f} of torchrun (goal: {GOAL} or less), median of {pairs} interleaved pairs")


if __name__ == "__main__":
    main()
