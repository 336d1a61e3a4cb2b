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

from parabench.analysis.session import session_data
from parabench.analysis.stats.block_model import fit
from parabench.store.results import load

AXES = ("algorithm=native,ring,two_level", "bucket_mib=0.5,2,10,25", "seq_len=32")


def run(out: Path, *options: str) -> pd.DataFrame:
    """The timed launches of a session with these options; `end` is the seconds of all launches until each was over."""
    sets = [word for axis in AXES for word in ("--set", axis)]
    command = [sys.executable, "-m", "parabench", "run", "bucket_size", *sets, *options, "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seen = session_data(load(out / "results.db"))
    spent = seen.launches["wall_s"].cumsum()
    return seen.timed.assign(end=spent)


def half_width(launches: pd.DataFrame) -> float:
    """The largest half-width of a comparison with the fastest, as a fraction; infinite of one block."""
    effects = fit(launches)
    best = min(effects.cases, key=lambda case: effects.means[case])
    return math.expm1(float(np.max(effects.half_widths(best))))


def main(launches: int = 5, rounds: int = 20) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shared = run(Path(folder) / "shared", "--rounds", str(rounds), "--launches", str(launches))
        blocks = max(2, round(shared["end"].max() / shared.loc[shared["block"] == 1, "wall_s"].sum()))
        alone = run(Path(folder) / "alone", "--launches", str(blocks))
    for name, table in (("shared launches", shared), ("launches of their own", alone)):
        for block in sorted(table["block"].unique())[1:]:
            so_far = table[table["block"] <= block]
            print(f"{name}: {so_far['end'].max():6.0f} s  ±{100 * half_width(so_far):.1f} %")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
