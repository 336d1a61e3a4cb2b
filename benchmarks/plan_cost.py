"""What does it take to plan 1,000 cases for 10,000 ranks? Beside as many cases for 8 ranks; nothing is launched.

    python -m benchmarks.plan_cost [TIMES]

Each time is that of a whole `parabench run --dry-run`, from the start of the interpreter to its end: the median.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SUITE = '''\
"""Which strategy, algorithm and bucket size is fastest?"""

from parabench import sweep

CASES = sweep(
    strategy=("ddp", "zero1", "zero2", "fsdp", "hsdp", "tp_ddp", "tp_fsdp"),
    algorithm=("native", "ring", "tree", "two_level", "halving_doubling", "parameter_server"),
    bucket_mib=tuple(0.5 * n for n in range(1, 25)),
    world_size=2,
)
'''
CASES = 7 * 6 * 24
GOAL_S = 2.0


def seconds(suite: Path, nodes: int) -> float:
    command = [sys.executable, "-m", "parabench", "run", str(suite), "--dry-run", "--set", "device=cuda"]
    command += ["--nnodes", str(nodes), "--nproc-per-node", "8", "--out", str(suite.parent / "none")]
    begin = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    took = time.perf_counter() - begin
    assert f"cases:     {CASES:,}," in done.stdout, done.stdout[-2000:]
    return took


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        suite = Path(folder) / "suite.py"
        suite.write_text(SUITE)
        seconds(suite, 1)  # warms the file cache for both
        took = [(seconds(suite, 1), seconds(suite, 1250)) for _ in range(times)]
    few, many = (statistics.median(column) for column in zip(*took, strict=True))
    print(f"{CASES:,} cases: {few:.2f} s for 8 ranks, {many:.2f} s for 10,000 (goal: {GOAL_S:g} s)")


if __name__ == "__main__":
    main()
