"""Does a long session grow? A thousand launches of one case, then two hundred in which two cases take 100 turns each.

    python -m benchmarks.long_session OUT [--launches 1000] [--shared 200] [--rounds 100]

While each session runs, `parabench serve` shows it, and its page is loaded again and again. Of the driver's process are
read, over and over: memory (pages that it alone has, and has written), descriptors, threads, and files in memory and in
the temporary folder that bear its name; of serve, whose page grows with the store, descriptors and threads. What counts
is the slope over launches, by least squares through the means of BLOCKS equal parts, after the first tenth:
neighbouring readings are alike, means of parts hardly. What is read after the last launch, when the driver answers and
writes the report, is left out. Prints each with its 95 % interval, and ends with 1 where one lies above 0, or a launch
was not ok; the readings stay in OUT as CSV.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
from scipy import stats

SUITE = '''\
"""Does it grow?"""

from parabench import Protocol, sweep

CASES = sweep(strategy="ddp", bucket_mib={caps}, world_size=2, data="synthetic", seq_len=8, device="cpu")
PROTOCOL = Protocol(warmup=2, steps=2, launches={launches}, rounds={rounds}, instrumented=1)
'''

PERIOD_S, RELOAD_S, END_S = 1.0, 10.0, 60.0
BLOCKS, AT_REST, CONFIDENCE = 20, 0.1, 0.95
KIB = 1024.0

ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": ""}

# Of serve these may not grow.
OF_SERVE = ("descriptors", "threads")


@dataclass(slots=True)
class Readings:
    """By who and what a list of (launches that are stored, value)."""

    rows: dict[tuple[str, str], list[tuple[int, float]]] = field(default_factory=dict)

    def add(self, who: str, launches: int, values: Mapping[str, float]) -> None:
        for what, value in values.items():
            self.rows.setdefault((who, what), []).append((launches, value))


@dataclass(frozen=True, slots=True)
class Slope:
    """How much a value grows a launch, with the ends of its interval."""

    value: float
    low: float
    high: float

    @property
    def grows(self) -> bool:
        return self.low > 0


def slope(rows: list[tuple[int, float]]) -> Slope | None:
    """None of fewer readings than there are blocks."""
    kept = np.array(rows[int(AT_REST * len(rows)) :], dtype=float)
    if len(kept) < 2 * BLOCKS:
        return None
    means = np.array([part.mean(axis=0) for part in np.array_split(kept, BLOCKS)])
    if np.ptp(means[:, 1]) == 0:
        return Slope(0.0, 0.0, 0.0)
    line = stats.linregress(means[:, 0], means[:, 1])
    half = stats.t.ppf((1 + CONFIDENCE) / 2, BLOCKS - 2) * line.stderr
    return Slope(float(line.slope), float(line.slope - half), float(line.slope + half))


def of_process(process: psutil.Process) -> dict[str, float]:
    with process.oneshot():
        # Pages of a library's file count as its own or not by who else has them at the moment.
        memory = sum(each.private_dirty for each in process.memory_maps(grouped=False)) / KIB
        return {"memory, KiB": memory, "descriptors": process.num_fds(), "threads": process.num_threads()}


def files_of(pid: int) -> int:
    """How many files and folders bear the name of a process, and what is in them."""
    found = 0
    for where in {Path("/dev/shm"), Path(tempfile.gettempdir())}:
        for each in where.glob(f"parabench-run-{pid}-*"):
            # What goes meanwhile is passed over.
            found += 1 + sum(len(folders) + len(names) for _, folders, names in os.walk(each))
    return found


def before_the_end(readings: Readings, launches: int) -> Readings:
    """Without what was read when all launches were stored."""
    return Readings({key: [row for row in rows if row[0] < launches] for key, rows in readings.rows.items()})


def keep(path: Path, readings: Readings) -> None:
    rows = [(*key, *row) for key, own in readings.rows.items() for row in own]
    pd.DataFrame(rows, columns=["who", "what", "launches", "value"]).to_csv(path, index=False)


def stored(path: Path) -> int:
    with contextlib.suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT count(*) FROM launch").fetchone()[0])
    return 0


@contextmanager
def served(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`parabench serve` of a folder's store, and the address of its page."""
    command = [sys.executable, "-m", "parabench", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as serve:
        try:
            assert serve.stdout is not None
            said = ""
            for line in serve.stdout:
                said += line
                if found := re.search(r"http://\S+", line):
                    yield serve, found[0]
                    break
            else:
                raise RuntimeError(f"serve ended: {said}")
        finally:
            serve.terminate()  # started in the background of a shell, it ignores SIGINT


def watched(folder: Path, suite: str) -> tuple[Readings, int, int]:
    """Run the suite into the folder: what was read, the exit code, and how many launches there are."""
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text(suite)
    store, readings = folder / "results.db", Readings()
    command = [sys.executable, "-m", "parabench", "run", "mine.py", "--out", "."]
    with (folder / "said.txt").open("w") as said:
        driver = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said, env={**os.environ, **ENVIRONMENT})
    with driver:
        while not stored(store) and driver.poll() is None:
            time.sleep(PERIOD_S)
        with served(folder) as (serve, address):
            loaded = 0.0
            while driver.poll() is None:
                with contextlib.suppress(psutil.Error):
                    launches = stored(store)
                    own = of_process(psutil.Process(driver.pid)) | {"files": float(files_of(driver.pid))}
                    readings.add("driver", launches, own)
                    told = of_process(psutil.Process(serve.pid))
                    readings.add("serve", launches, {what: told[what] for what in OF_SERVE})
                if time.monotonic() - loaded > RELOAD_S:
                    loaded = time.monotonic()
                    with urllib.request.urlopen(address, timeout=END_S) as page:
                        page.read()
                time.sleep(PERIOD_S)
    return readings, driver.returncode, stored(store)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_session")
    parser.add_argument("out", type=Path)
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--shared", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=100)
    asked = parser.parse_args()
    sessions = {
        "alone": SUITE.format(caps=1, launches=asked.launches, rounds=0),
        "shared": SUITE.format(caps=(1, 25), launches=asked.shared, rounds=asked.rounds),
    }
    bad = False
    for name, suite in sessions.items():
        began = time.monotonic()
        readings, code, launches = watched(asked.out / name, suite)
        bad |= code != 0
        keep(asked.out / f"{name}.csv", readings)
        readings = before_the_end(readings, launches)
        print(f"{name}: {launches} launches in {time.monotonic() - began:.0f} s, exit code {code}", flush=True)
        for (who, what), rows in readings.rows.items():
            found = slope(rows)
            if found is None:
                print(f"  {who}, {what}: too few readings ({len(rows)})")
                continue
            bad |= found.grows
            last = np.mean([value for _, value in rows[-BLOCKS:]])
            said = f"{1000 * found.value:+.3g} in 1,000 launches ({1000 * found.low:+.3g} to {1000 * found.high:+.3g})"
            print(f"  {who}, {what}: {last:.0f} at the end, {said}{': it grows' if found.grows else ''}", flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
