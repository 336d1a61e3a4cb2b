"""How often are change points false, and which changes are found? Simulated series of sessions with a known truth.

    python -m benchmarks.change_points [SERIES]

Every series has 3 launches a session. Its sessions differ by 1% (standard deviation), its launches by 1% within them,
unless said otherwise. A false alarm is any change point in a series of one level; a step is found when there is exactly
one change point, at most one session from the truth.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np

from parabench.analysis.stats.change_point import levels_of

LAUNCHES = 3
SESSION_SD = LAUNCH_SD = 0.01
LENGTHS = (6, 10, 20, 30, 60, 200)
Numbers = np.ndarray[tuple[int], np.dtype[np.float64]]
Effects = Callable[[np.random.Generator, int], Numbers]


def normal(random: np.random.Generator, n: int) -> Numbers:
    return random.standard_normal(n)


def heavy(random: np.random.Generator, n: int) -> Numbers:
    return random.standard_t(3, n)


def outliers(random: np.random.Generator, n: int) -> Numbers:
    """One session in twenty is 5 to 20 times the noise slower."""
    return random.standard_normal(n) + (random.random(n) < 0.05) * random.uniform(5, 20, n)


def alike(random: np.random.Generator, n: int) -> Numbers:
    """Neighbours are alike: autocorrelation 0.3."""
    effects = random.standard_normal(n)
    for i in range(1, n):
        effects[i] = 0.3 * effects[i - 1] + math.sqrt(1 - 0.3**2) * effects[i]
    return effects


def none(random: np.random.Generator, n: int) -> Numbers:
    return np.zeros(n)


KINDS: dict[str, Effects] = {
    "sessions differ by 1%": normal,
    "with heavy tails (t, 3 df)": heavy,
    "with 5% slow outliers": outliers,
    "neighbours are alike (0.3)": alike,
    "launches differ, sessions do not": none,
}


def series(random: np.random.Generator, n: int, effects: Effects, change: float = 0.0, at: int = 0) -> list[Numbers]:
    """Logs of each session's launches; from session `at` on all are slower by the fraction `change`."""
    levels = math.log(0.04) + SESSION_SD * effects(random, n)
    levels[at:] += math.log1p(change)
    return [level + LAUNCH_SD * random.standard_normal(LAUNCHES) for level in levels]


def false_alarms(random: np.random.Generator, n: int, effects: Effects, many: int) -> float:
    """The share of series of one level in which a change is found."""
    return sum(len(levels_of(series(random, n, effects))[0]) > 1 for _ in range(many)) / many


def found(random: np.random.Generator, n: int, effects: Effects, change: float, at: int, many: int) -> float:
    """The share of series with one step in which exactly one is found, at most one session away."""
    hits = 0
    for _ in range(many):
        starts = [level.start for level in levels_of(series(random, n, effects, change, at))[0]][1:]
        hits += len(starts) == 1 and abs(starts[0] - at) <= 1
    return hits / many


def main() -> None:
    many = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    random = np.random.default_rng(0)
    print(f"false alarms, of {many} series ({many // 8} of 200 sessions)")
    print(f"{'':34}" + "".join(f"{n:>8}" for n in LENGTHS) + "  sessions")
    for name, effects in KINDS.items():
        rates = [false_alarms(random, n, effects, many if n < 200 else many // 8) for n in LENGTHS]
        print(f"{name:34}" + "".join(f"{rate:8.1%}" for rate in rates), flush=True)
    print(f"\nfound, exactly one and at most one session away, of {many // 2} series of 30 sessions")
    print(f"{'':34}" + "".join(f"{change:8.0%}" for change in (0.02, 0.03, 0.05, 0.1)) + "  step")
    for name, at in (("in the middle", 15), ("3 sessions ago", 27), ("2 sessions ago", 28), ("the newest alone", 29)):
        rates = [found(random, 30, normal, change, at, many // 2) for change in (0.02, 0.03, 0.05, 0.1)]
        print(f"{name:34}" + "".join(f"{rate:8.1%}" for rate in rates), flush=True)
    for name, effects in list(KINDS.items())[1:4]:
        rates = [found(random, 30, effects, change, 15, many // 2) for change in (0.02, 0.03, 0.05, 0.1)]
        print(f"{'middle, ' + name:34}" + "".join(f"{rate:8.1%}" for rate in rates), flush=True)
    print("\na step of 10% in the middle of few sessions")
    for n in (6, 8, 10, 15):
        print(f"{n:>4} sessions: {found(random, n, normal, 0.1, n // 2, many // 2):.1%}", flush=True)


if __name__ == "__main__":
    main()
