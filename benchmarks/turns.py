"""How sharp an answer is after how long: with launches that cases share, and with launches of their own.

    python -m benchmarks.turns [LAUNCHES] [ROUNDS]

Twelve cases (native, ring and two_level; 0.5, 2, 10 and 25 MiB; two ranks; gpt-nano) are run with `--rounds`, then
without it for about as long. After each block: the seconds of all launches so far, and the largest simultaneous 95 %
half-width of a comparison with the fastest. The two sessions follow one another, so a neighbour may meet one alone.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from parabench.analysis.session import SessionData, session_data
from parabench.analysis.stats.block_model import fit
from parabench.store.results import load

AXES = ("algorithm=native,ring,two_level", "bucket_mib=0.5,2,10,25", "seq_len=32")


def run(out: Path, *options: str) -> SessionData:
    """A session of the cases with these options."""
    sets = [word for axis in AXES for word in ("--set", axis)]
    command = [sys.executable, "-m", "parabench", "run", "bucket_size", *sets, *options, "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return session_data(load(out / "results.db"))


def half_width(launches: pd.DataFrame) -> float:
    """The largest half-width of a comparison with the fastest, as a fraction."""
    effects = fit(launches)
    best = min(effects.cases, key=lambda case: effects.means[case])
    return math.expm1(float(np.max(effects.best_half_widths(best))))


def main(launches: int = 5, rounds: int = 20) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shared = run(Path(folder) / "shared", "--rounds", str(rounds), "--launches", str(launches))
        seconds = shared.launches.groupby("block")["wall_s"].sum()
        # In its first block each case has a launch of its own.
        blocks = max(2, round(seconds.sum() / seconds[0]))
        alone = run(Path(folder) / "alone", "--launches", str(blocks))
        for name, seen in (("shared launches", shared), ("launches of their own", alone)):
            spent = seen.launches.groupby("block")["wall_s"].sum().cumsum()
            for block in sorted(seen.timed["block"].unique())[1:]:
                width = half_width(seen.timed[seen.timed["block"] <= block])
                print(f"{name}: {spent[block]:6.0f} s  ±{100 * width:.1f} %")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
