"""Compare a launch, without its steps, with an interleaved `torchrun` of an empty script.

    python -m benchmarks.launch_cost [PAIRS]

A launch includes two fresh ranks, the process group, gpt-nano, DDP, the optimizer, the data, the steps, and the
transfer of the samples. The time of the steps themselves (the slowest rank's, every step) is subtracted.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.launches import launched
from parabench.launch.processes import start_server
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol

CASE = Case(strategy="ddp", world_size=2, device="cpu", backend="gloo", seq_len=32)
PROTOCOL = Protocol(warmup=5, steps=20)


def torchrun_s(script: Path) -> float:
    begin = time.perf_counter()
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def beyond_steps_s() -> float:
    done = launched(CASE, PROTOCOL)
    return done.wall_s - sum(done.step_times())


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    start_server()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "empty.py"
        script.touch()
        torchrun_s(script)  # warms the file cache for both
        seen = [(torchrun_s(script), beyond_steps_s()) for _ in range(pairs)]
    bare, ours = (statistics.median(each) for each in zip(*seen, strict=True))
    ratio = statistics.median(own / other for other, own in seen)
    print(f"bare torchrun, 2 ranks, empty script: {bare:.2f} s")
    print(f"parabench launch beyond its steps:    {ours:.3f} s")
    print(f"ratio: {ratio:.3f} of torchrun, median of {pairs} interleaved pairs")


if __name__ == "__main__":
    main()
