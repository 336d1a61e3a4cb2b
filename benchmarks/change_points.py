"""Count false and detected change points in simulated series of sessions with a known truth.

    python -m benchmarks.change_points [SERIES]

Each session of a series has 3 launches. By default, sessions differ by 1% (standard deviation), and launches differ by
1% within a session. A false alarm is any change point in a series of one level. A step is detected if there is exactly
one change point, at most one session from the true one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable

import numpy as np

from parabench.analysis.stats.change_point import levels_of

LAUNCHES = 3
SESSION_SD = LAUNCH_SD = 0.01
LENGTHS = (6, 10, 20, 30, 60, 200)
STEPS = (0.02, 0.03, 0.05, 0.1)
Numbers = np.ndarray[tuple[int], np.dtype[np.float64]]
Effects = Callable[[np.random.Generator, int], Numbers]


def normal(random: np.random.Generator, n: int) -> Numbers:
    return random.standard_normal(n)


def heavy(random: np.random.Generator, n: int) -> Numbers:
    return random.standard_t(3, n)


def outliers(random: np.random.Generator, n: int) -> Numbers:
    """One session in twenty is slower by 5 to 20 times the noise."""
    return random.standard_normal(n) + (random.random(n) < 0.05) * random.uniform(5, 20, n)


def alike(random: np.random.Generator, n: int) -> Numbers:
    """Neighbors have an autocorrelation of 0.3."""
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
    "neighbors are alike (0.3)": alike,
    "launches differ, sessions do not": none,
}


def series(random: np.random.Generator, n: int, effects: Effects, change: float = 0.0, at: int = 0) -> list[Numbers]:
    """Return the logarithms of each session's launches; from session `at` on, all are slower by `change`."""
    levels = math.log(0.04) + SESSION_SD * effects(random, n)
    levels[at:] += math.log1p(change)
    return [level + LAUNCH_SD * random.standard_normal(LAUNCHES) for level in levels]


def false_alarms(random: np.random.Generator, n: int, effects: Effects, many: int) -> float:
    """Return the share of series of one level in which a change is found."""
    return sum(len(levels_of(series(random, n, effects))[0]) > 1 for _ in range(many)) / many


def found(random: np.random.Generator, n: int, effects: Effects, change: float, at: int, many: int) -> float:
    """Return the share of series in which a step is detected."""
    hits = 0
    for _ in range(many):
        starts = [level.start for level in levels_of(series(random, n, effects, change, at))[0]][1:]
        hits += len(starts) == 1 and abs(starts[0] - at) <= 1
    return hits / many


def row(name: str, rates: Iterable[float]) -> None:
    print(f"{name:34}" + "".join(f"{rate:8.1%}" for rate in rates), flush=True)


def main(many: int = 400) -> None:
    random, half = np.random.default_rng(0), many // 2
    print(f"false alarms in {many} series ({many // 8} of 200 sessions), by sessions: {LENGTHS}")
    for name, effects in KINDS.items():
        row(name, (false_alarms(random, n, effects, many if n < 200 else many // 8) for n in LENGTHS))
    print(f"\ndetected in {half} series of 30 sessions, by step: {STEPS}")
    places = {"in the middle": 15, "3 sessions ago": 27, "2 sessions ago": 28, "the newest alone": 29}
    for name, at in places.items():
        row(name, (found(random, 30, normal, change, at, half) for change in STEPS))
    for name, effects in list(KINDS.items())[1:4]:
        row(f"middle, {name}", (found(random, 30, effects, change, 15, half) for change in STEPS))
    few = (6, 8, 10, 15)
    row(f"a step of 10%, by sessions: {few}", [found(random, n, normal, 0.1, n // 2, half) for n in few])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
