"""Count false and correct accepts of `ab --series`.

    python -m benchmarks.series simulated [SERIES] [PROPOSALS]
    python -m benchmarks.series real GAIN [PROPOSALS] [FOLDER] [OPTION ...]

`simulated`: series of proposals that change nothing, and proposals that gain 2%. Pairs of launches differ by a normal
distribution with a standard deviation of 1%. `real` runs the command with these options. The baseline of each proposal
has a real delay, so the proposal saves GAIN of a step (0: no delay).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.real_gate import SLOWED
from parabench.ab.series import ROUNDS, read_series
from parabench.analysis.compare.proposal import LEAST, MOST_PAIRS, Judgement, alpha_of, judged
from parabench.analysis.stats.contrasts import judge

SD, GAIN = 0.01, 0.02
FOLDER = Path("parabench-results/series")


def proposed(random: np.random.Generator, spend: float, gain: float) -> Judgement:
    """Return the judgement of one proposal."""
    drawn = SD * random.standard_normal(MOST_PAIRS) + np.log1p(-gain)
    for pairs in range(2, MOST_PAIRS + 1):
        found = judged(judge({0: (np.zeros(pairs), drawn[:pairs])}, paired=True)[0], pairs, spend, LEAST)
        if found.accept is not None:
            break
    return found


def simulated(series: int = 500, proposals: int = 40) -> None:
    random = np.random.default_rng(0)
    false, pairs = 0, []
    for _ in range(series):
        for number in range(1, proposals + 1):
            found = proposed(random, alpha_of(number), 0.0)
            pairs.append(found.pairs)
            if found.accept:
                false += 1
                break
    print(
        f"{series} series of {proposals} proposals that change nothing: {false} with a false accept "
        f"({false / series:.2%}); a proposal took {np.median(pairs):.0f} pairs"
    )
    for number in (1, 10, 100, 1000):
        many = [proposed(random, alpha_of(number), GAIN) for _ in range(500)]
        accepted, pairs_needed = np.mean([one.accept is True for one in many]), np.median([one.pairs for one in many])
        print(f"a gain of {GAIN:.0%}, proposal {number}: {accepted:.1%} accepted, after {pairs_needed:.0f} pairs")


def real(gain: float = 0.02, proposals: int = 10, folder: Path = FOLDER, *options: str) -> None:
    for number in range(1, proposals + 1):
        began = time.monotonic()
        command = [sys.executable, "-m", "parabench", "ab", "bucket_size", *SLOWED, "--series", str(folder)]
        command += [
            "--baseline",
            f"SLOWED_MODEL={gain / (1 - gain)}",
            "--candidate",
            "SLOWED_MODEL=0",
            "--seed",
            str(number),
        ]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if done.returncode > 1:
            raise RuntimeError(done.stderr)
        there = read_series(folder)
        assert there is not None
        mine, load = there.proposals[-1], os.getloadavg()[0]
        text = f"{'accepted' if mine.accept else 'rejected'}: {mine.why} ({mine.pairs} pairs of {ROUNDS} rounds"
        print(f"{number}/{proposals}: {text}, {time.monotonic() - began:.0f} s, load {load:.1f})", flush=True)


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "simulated":
        simulated(*map(int, rest))
    else:
        real(*map(float, rest[:1]), *map(int, rest[1:2]), *map(Path, rest[2:3]), *rest[3:])
