"""Measure the growth of the driver: 1,000 launches of one case, then 200 shared launches of two cases with 100 rounds.

    python -m benchmarks.long_session OUT [--launches 1000] [--shared 200] [--rounds 100]

Reads the driver's memory (private dirty pages), descriptors and threads every second. Prints the slope over launches
with its 95% interval. It is fitted by least squares to the means of BLOCKS equal parts after the first tenth, because
neighboring readings are correlated. The exit code is 1 if an interval is above 0 or a session fails.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
from scipy import stats

SUITE = '''\
"""Does it grow?"""

from parabench import Protocol, sweep

CASES = sweep(strategy="ddp", bucket_mib={caps}, world_size=2, data="synthetic", seq_len=8, device="cpu")
PROTOCOL = Protocol(warmup=2, steps=2, launches={launches}, rounds={rounds}, instrumented=1)
'''
READ = ("memory, KiB", "descriptors", "threads")
PERIOD_S = 1.0
ENVIRONMENT = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
BLOCKS, AT_REST = 20, 0.1


def watched(folder: Path, suite: str) -> tuple[list[tuple[float, ...]], int]:
    """Run a session; return rows of the launches so far and what was READ, and the exit code."""
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text(suite)
    rows = []
    command = [sys.executable, "-m", "parabench", "run", "mine.py", "--out", "."]
    with (folder / "output").open("w") as output:
        driver = psutil.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, env=ENVIRONMENT)
    with driver:
        while driver.poll() is None:
            with contextlib.suppress(psutil.Error):
                dirty = sum(each.private_dirty for each in driver.memory_maps(grouped=False))
                rows.append((stored(folder / "results.db"), dirty / 1024, driver.num_fds(), driver.num_threads()))
            time.sleep(PERIOD_S)
    # After the last launch the driver prints the answer and writes the report.
    return [row for row in rows if row[0] < rows[-1][0]], driver.returncode


def stored(path: Path) -> int:
    """Return the number of launches in a results database; 0 before there is one."""
    with contextlib.suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT count(*) FROM launch").fetchone()[0])
    return 0


def slopes(rows: list[tuple[float, ...]]) -> list[tuple[float, float]]:
    """Return for each reading its slope for one launch, and the half-width of the slope's 95% interval."""
    kept = np.array(rows[int(AT_REST * len(rows)) :])
    at, *values = np.array([part.mean(axis=0) for part in np.array_split(kept, BLOCKS)]).T
    lines = [stats.linregress(at, each) for each in values]
    return [(line.slope, stats.t.ppf(0.975, BLOCKS - 2) * line.stderr) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_session")
    parser.add_argument("out", type=Path)
    for name, usual in (("launches", 1000), ("shared", 200), ("rounds", 100)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    asked = parser.parse_args()
    sessions = {
        "alone": SUITE.format(caps=1, launches=asked.launches, rounds=0),
        "shared": SUITE.format(caps=(1, 25), launches=asked.shared, rounds=asked.rounds),
    }
    bad = False
    for name, suite in sessions.items():
        began = time.monotonic()
        rows, code = watched(asked.out / name, suite)
        print(f"{name}: {rows[-1][0]} launches in {time.monotonic() - began:.0f} s, exit code {code}", flush=True)
        bad |= code != 0
        for what, last, (slope, half) in zip(READ, rows[-1][1:], slopes(rows), strict=True):
            bad |= slope > half
            print(f"  {what}: {last:.0f} at the end, {1000 * slope:+.3g} (±{1000 * half:.2g}) in 1,000 launches")
    sys.exit(bad)


if __name__ == "__main__":
    main()
