"""Count false alarms and detected slowdowns of the gate in real launches.

    python -m benchmarks.real_gate SHARE [GATES] [FOLDER] [OPTION ...]

Each gate runs `parabench ab` with these options: one case, interleaved variants. The step of variant B has a real delay
of SHARE (0: none). Prints one line for each gate, then the totals. FOLDER keeps the databases.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from parabench.analysis.answer import Answer
from parabench.analysis.compare.gate import Verdict, compare, line, the_verdict
from parabench.analysis.compare.sides import read_side

# One case with a short step, which benchmarks.slowed_model can delay.
SLOWED = ("--model", "benchmarks.slowed_model:slowed")
for axis in ("strategy=ddp", "algorithm=native", "world_size=2", "bucket_mib=25", "seq_len=32"):
    SLOWED += ("--set", axis)


def run_ab(folder: Path, a: str, b: str, *options: str) -> Answer:
    """Return the comparison that `parabench ab` makes. Raises RuntimeError if it fails."""
    command = [
        sys.executable,
        "-m",
        "parabench",
        "ab",
        "--baseline",
        a,
        "--candidate",
        b,
        *options,
        "--out",
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "200"})
    if done.returncode not in {verdict.exit_code for verdict in Verdict}:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    store = folder / "results.db"
    return compare(*(read_side(f"{store}@ab-{name}", role) for name, role in (("a", "base"), ("b", "candidate"))))


def main(share: float, gates: int = 60, folder: Path = Path("parabench-results/turns"), *options: str) -> None:
    found, spent = 0, []
    for number in range(gates):
        began, variants = time.perf_counter(), ("SLOWED_MODEL=0", f"SLOWED_MODEL={share}")
        out = folder / f"{number:03d}"
        seen = run_ab(out, *variants, "bucket_size", *SLOWED, "--seed", str(number), *options)
        spent.append(time.perf_counter() - began)
        found += the_verdict(seen)["verdict"] is Verdict.REGRESSION
        load, case = os.getloadavg()[0], seen.tables["cases"].iloc[0]
        print(
            f"{number + 1}/{gates}: {line(case)} ({spent[-1]:.0f} s, load {load:.1f})",
            flush=True,
        )
    what = "found" if share else "false alarms"
    times = f"{np.median(spent):.0f} s a gate, at most {max(spent):.0f}"
    print(f"a delay of {share:.0%}: {what} {found} of {gates}; {times}")


if __name__ == "__main__":
    share, *rest = sys.argv[1:]
    main(float(share), *map(int, rest[:1]), *map(Path, rest[1:2]), *rest[2:])
