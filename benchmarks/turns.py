"""How sharp an answer is after how long: a race, shared launches of all cases, launches of their own.

    python -m benchmarks.turns [MINUTES] [race|equal|alone ...]

Twelve cases (native, ring and two_level; 0.5, 2, 10 and 25 MiB; two ranks; gpt-nano) are run in each of these ways for
MINUTES, the first 4.9. After each block: the seconds of all launches so far, and the largest simultaneous 95 %
half-width of a comparison with the fastest, of a race among those still in it. At the end the wall time of the command,
everything included. The sessions follow one another, so a neighbour may meet one alone.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from parabench.analysis.ranking.ranking import spots
from parabench.analysis.session import SessionData, session_data
from parabench.analysis.stats.block_model import fit
from parabench.store.results import load

AXES = ("algorithm=native,ring,two_level", "bucket_mib=0.5,2,10,25", "seq_len=32")


def run(out: Path, *options: str) -> tuple[SessionData, float]:
    """A session of the cases with these options, and the seconds that the command took."""
    sets = [word for axis in AXES for word in ("--set", axis)]
    command = [sys.executable, "-m", "parabench", "run", "bucket_size", *sets, *options, "--out", str(out)]
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return session_data(load(out / "results.db")), time.monotonic() - began


def widths(seen: SessionData) -> Iterator[tuple[float, float, int]]:
    """(seconds of launches, largest half-width, cases compared) after each block from the second on."""
    spent = seen.numbers.groupby("repetition")["wall_s"].sum().cumsum()
    for block in sorted(seen.timed["repetition"].unique())[1:]:
        effects = fit(seen.timed[seen.timed["repetition"] <= block])
        best = min(effects.cases, key=lambda case: effects.means[case])
        yield spent[block], math.expm1(float(np.max(effects.best_half_widths(best)))), len(effects.cases)


def main(minutes: float = 4.9, *ways: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for way in ways or ("race", "equal", "alone"):
            out = Path(folder) / way
            if way == "race":
                seen, took = run(out, "--budget", f"{minutes:g}")
                looks = [look for answer in seen.once(spots) for look in answer.race]
                lines = [(look.seconds, look.half_width or math.inf, len(look.racing)) for look in looks]
            else:
                # A shared launch of all cases takes about 15 s, a block of launches of their own too.
                options = ("--rounds", "5") if way == "equal" else ("--rounds", "0")
                seen, took = run(out, *options, "--launches", str(max(3, round(minutes * 4))))
                lines = list(widths(seen))
            for seconds, width, cases in lines:
                print(f"{way}: {seconds:6.0f} s  ±{100 * width:.1f} % of {cases} cases")
            print(f"{way}: {took:.0f} s in all", flush=True)


if __name__ == "__main__":
    main(*([float(sys.argv[1])] if sys.argv[1:] else []), *sys.argv[2:])
