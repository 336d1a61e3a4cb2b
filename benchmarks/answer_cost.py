"""Compare the cost of `best` and `report` with a two-rank `torchrun` of an empty script.

    python -m benchmarks.answer_cost [STORE] [--pairs 7]

Each pair runs the three commands one after the other. Prints the medians over pairs of wall time and CPU time (of all
processes) relative to torchrun. On a busy machine, use the ratio of CPU time. The first pair does not count: it writes
bytecode. Without STORE, the database has simulated results of the size of suite `quick`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import big_store

# The limits of the wall time relative to torchrun.
AIMS = {"report": 0.6, "best": 0.3}
PAIRS = 7


class Cost(NamedTuple):
    """Seconds of wall time and CPU time, or their ratios."""

    wall: float
    cpu: float


def ratios(store: Path, pairs: int = PAIRS) -> dict[str, Cost]:
    """Return for each command the median over pairs of its cost relative to torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        empty, page = Path(folder) / "empty.py", Path(folder) / "report.html"
        empty.write_text("")
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(empty)]
        answers = {
            "report": ["parabench", "report", str(store), "-o", str(page)],
            "best": ["parabench", "best", str(store)],
        }
        rows = [(_cost(torchrun), {name: _cost(words) for name, words in answers.items()}) for _ in range(1 + pairs)]
    return {name: _median([(costs[name], bare) for bare, costs in rows[1:]]) for name in answers}


def ratios_of_simulated(pairs: int = PAIRS) -> dict[str, Cost]:
    """Return the ratios for a database of simulated results."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "results.db"
        big_store.write(store, cases=27, launches=3, steps=50, ranks=4, explained=27)
        return ratios(store, pairs)


def _cost(words: Sequence[str]) -> Cost:
    began = time.perf_counter()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(
        [sys.executable, "-m", *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
    return Cost(time.perf_counter() - began, used.ru_utime + used.ru_stime)


def _median(pairs: Sequence[tuple[Cost, Cost]]) -> Cost:
    wall, cpu = (statistics.median(cost[at] / bare[at] for cost, bare in pairs) for at in range(2))
    return Cost(wall, cpu)


def lines(found: Mapping[str, Cost]) -> list[str]:
    return [
        f"{name:<8} {ratio.wall:.2f} of the wall time of an empty torchrun (at most {AIMS[name]}), "
        f"{ratio.cpu:.2f} of its CPU time"
        for name, ratio in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    given = parser.parse_args()
    found = ratios(given.store, given.pairs) if given.store else ratios_of_simulated(given.pairs)
    print("\n".join(lines(found)))


if __name__ == "__main__":
    main()
