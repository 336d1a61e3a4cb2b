"""Is what `parabench collectives` prints what a loop of `dist.all_reduce` under torchrun takes?

    python -m benchmarks.collective_throughput [PAIRS [OPTION ...]]

Both measure all-reduces of 1, 4, 16 and 64 MiB between 2 ranks on gloo, in turns, in an order that alternates: the
command, one launch with the OPTIONs given; and `benchmarks/bare_collective.py`, 20 calls of each size. Printed, a line
a size: the medians over PAIRS runs of each, the ratio of these medians (above 1: parabench says longer), and the median
of the ratios of pairs with its 95 % bootstrap interval. Reached where the ratio of medians is within 5 %.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.ratios import median_ratio
from parabench.store.record import MIB

SIZES = tuple(size * MIB for size in (1, 4, 16, 64))
CALLS = 20
GOAL = 0.05
BARE = Path(__file__).with_name("bare_collective.py")


def bare() -> dict[int, float]:
    """Seconds of a call by size, of one run of torchrun."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(BARE)]
    lines = _run([*words, str(CALLS), *map(str, SIZES)]).splitlines()
    return {int(size): float(seconds) for size, seconds in map(str.split, lines)}


def ours(options: list[str]) -> dict[int, float]:
    """The same as parabench's JSON has it, which is nccl-tests': microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "r.json")
        words = [sys.executable, "-m", "parabench", "collectives", "--op", "all_reduce", "--algorithm", "native"]
        words += ["--min", "1MiB", "--max", "64MiB", "--factor", "4", "--launches", "1", "--device", "cpu"]
        _run([*words, "--out", folder, "--json", str(told), *options])
        return {each["size"]: each["in_place"]["time"] / 1e6 for each in json.loads(told.read_text())["results"]}


def _run(words: list[str]) -> str:
    quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=os.environ | quiet, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{words} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    seen: dict[str, list[dict[int, float]]] = {"bare": [], "ours": []}
    for number in range(pairs):
        for side in ("bare", "ours") if number % 2 else ("ours", "bare"):
            seen[side].append(bare() if side == "bare" else ours(sys.argv[2:]))
    missed = 0
    print(
        f"{pairs} runs of each side, in turns\n{'size':>8} {'loop ms':>9} {'parabench ms':>13}  ratio  of pairs (95 %)"
    )
    for size in SIZES:
        loop, told = (np.array([run[size] for run in seen[side]]) for side in ("bare", "ours"))
        ratio = float(np.median(told) / np.median(loop))
        of_pairs, low, high = median_ratio(np.log(told / loop))
        missed += abs(ratio - 1) > GOAL
        print(
            f"{size // MIB:>4} MiB {1e3 * np.median(loop):9.3f} {1e3 * np.median(told):13.3f} {ratio:6.3f}  "
            f"{of_pairs:.3f} ({low:.3f} to {high:.3f})"
            f"  {'missed' if abs(ratio - 1) > GOAL else 'reached'}",
            flush=True,
        )
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
