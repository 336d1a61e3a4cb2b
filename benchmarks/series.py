"""How often a series of proposals accepts one that gains nothing, and whether it accepts one that does.

    python -m benchmarks.series simulated [SERIES] [PROPOSALS] [FOLDER ...]
    python -m benchmarks.series real GAIN [PROPOSALS] [FOLDER] [OPTION ...]

`simulated`: series of proposals that change nothing, and proposals that gain 2 %; what pairs of launches differ by is
drawn from the A/A stores in the FOLDERs (of `benchmarks.real_gate turns 0`), exchanged by lot, or normal with a
standard deviation of 1 % where none is given. `real`: the command itself, with these options of it; the baseline of
each proposal has a real delay that the proposal has not, so that it saves GAIN of a step (0: both have none).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.real_gate import ONE, SLOWED, complete, differences
from parabench.ab.series import ROUNDS, read_series
from parabench.analysis.compare.proposal import LEAST, MOST_PAIRS, Judgement, alpha_of, judged
from parabench.analysis.stats.ttest import judge

SD, GAIN = 0.01, 0.02


def measured(folders: list[Path]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """What pairs of launches of equal sides differed by, in logarithms, of all cases."""
    stores = [store for folder in folders for store in sorted(folder.glob("*/results.db")) if complete(store)]
    found = np.array([each for store in stores for block in differences(store) for each in block.values()])
    print(f"{len(found)} pairs of launches in {len(stores)} stores, standard deviation {found.std(ddof=1):.2%}")
    return found


def proposed(
    lot: np.random.Generator, noise: np.ndarray[tuple[int], np.dtype[np.float64]], spend: float, gain: float
) -> Judgement:
    """What becomes of a proposal."""
    drawn = lot.choice(noise, MOST_PAIRS) * lot.choice((-1.0, 1.0), MOST_PAIRS) + np.log1p(-gain)
    for pairs in range(2, MOST_PAIRS + 1):
        said = judged(judge({0: (np.zeros(pairs), drawn[:pairs])}, paired=True)[0], pairs, spend, LEAST)
        if said.accept is not None:
            break
    return said


def simulated(series: int, proposals: int, folders: list[Path]) -> None:
    lot = np.random.default_rng(0)
    noise = measured(folders) if folders else SD * lot.standard_normal(10_000)
    false, pairs = 0, []
    for _ in range(series):
        for number in range(1, proposals + 1):
            said = proposed(lot, noise, alpha_of(number), 0.0)
            pairs.append(said.pairs)
            if said.accept:
                false += 1
                break
    print(
        f"{series} series of {proposals} proposals that change nothing: {false} with a false accept "
        f"({false / series:.2%}); a proposal took {np.median(pairs):.0f} pairs"
    )
    for number in (1, 10, 100, 1000):
        found = [proposed(lot, noise, alpha_of(number), GAIN) for _ in range(500)]
        kept = np.mean([each.accept is True for each in found])
        print(
            f"a gain of {GAIN:.0%}, proposal {number}: {kept:.1%} accepted, "
            f"after {np.median([each.pairs for each in found]):.0f} pairs"
        )


def real(gain: float, proposals: int, folder: Path, *options: str) -> None:
    sides = (f"SLOWED_MODEL={gain / (1 - gain)}", "SLOWED_MODEL=0")
    for number in range(1, proposals + 1):
        began = time.monotonic()
        command = [sys.executable, "-m", "parabench", "ab", "bucket_size", *SLOWED, *ONE, "--series", str(folder)]
        command += ["--a", sides[0], "--b", sides[1], "--seed", str(number), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode > 1:
            raise RuntimeError(done.stderr)
        there = read_series(folder)
        assert there is not None
        mine, load = there.proposals[-1], os.getloadavg()[0]
        told = f"{'accepted' if mine.accept else 'rejected'}: {mine.why} ({mine.pairs} pairs of {ROUNDS} rounds"
        print(f"{number}/{proposals}: {told}, {time.monotonic() - began:.0f} s, load {load:.1f})", flush=True)
    assert there is not None
    kept = sum(each.accept is True for each in there.proposals)
    seconds = [each.seconds for each in there.proposals]
    print(
        f"a gain of {gain:.0%}: {kept} of {proposals} accepted; {np.median(seconds):.0f} s a proposal, "
        f"at most {max(seconds):.0f}"
    )


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "simulated":
        counts = [*map(int, rest[:2]), *(500, 40)[len(rest[:2]) :]]
        simulated(counts[0], counts[1], [Path(each) for each in rest[2:]])
    else:
        given, count, where, *more = [*rest, *("0.02", "10", "parabench-results/series")[len(rest) :]]
        real(float(given), int(count), Path(where), *more)
