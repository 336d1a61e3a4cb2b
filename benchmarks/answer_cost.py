"""Compare the cost of `best` and `report` with a two-rank `torchrun` of an empty script.

    python -m benchmarks.answer_cost [STORE] [--pairs 7]

Each pair runs the three commands one after the other. Prints the medians over pairs of wall time and CPU time (of all
processes) relative to torchrun. On a busy machine, use the ratio of CPU time. The first pair does not count: it writes
bytecode. Without STORE, the database has simulated results of the size of suite `quick`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import big_store

AIMS = {"report": 0.6, "best": 0.3}  # the limits of the wall time relative to torchrun
PAIRS = 7


def ratios(store: Path | None = None, pairs: int = PAIRS) -> dict[str, tuple[float, float]]:
    """Return for each command the medians over pairs of its wall time and its CPU time relative to torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        empty, page = Path(folder) / "empty.py", Path(folder) / "report.html"
        empty.write_text("")
        if store is None:
            store = Path(folder) / "results.db"
            big_store.write(store, cases=27, launches=3, steps=50, ranks=4, explained=27)
        commands = {
            "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(empty)],
            "report": ["parabench", "report", str(store), "-o", str(page)],
            "best": ["parabench", "best", str(store)],
        }
        costs = np.array([[_cost(words) for words in commands.values()] for _ in range(1 + pairs)])
    medians = np.median(costs[1:, 1:] / costs[1:, :1], axis=0)
    return {name: (float(wall), float(cpu)) for name, (wall, cpu) in zip(AIMS, medians, strict=True)}


def _cost(words: Sequence[str]) -> tuple[float, float]:
    """Return the seconds of wall time and of CPU time of a command."""
    began = time.perf_counter()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(
        [sys.executable, "-m", *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    given = parser.parse_args()
    for name, (wall, cpu) in ratios(given.store, given.pairs).items():
        limit = f"(at most {AIMS[name]})"
        print(f"{name:<8} {wall:.2f} of the wall time of an empty torchrun {limit}, {cpu:.2f} of its CPU time")


if __name__ == "__main__":
    main()
