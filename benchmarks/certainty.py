"""Count the right answers of the gate, `best`, racing and `ab --series` in simulated launches with known truth.

    python -m benchmarks.certainty [GATES [PART ...]]

Prints the figures of docs/explanation/certainty.md, 1,000 gates each by default (some minutes on an idle machine).
"""

from __future__ import annotations

import sys

import numpy as np

from benchmarks.gate_truth import KINDS, print_alarms, print_passes, print_power, print_sessions, print_turns
from benchmarks.race import print_race
from benchmarks.series import print_series
from benchmarks.simulator import Machine, Noise, launch_frame, numbers
from parabench.analysis.ranking.race import undecided
from parabench.analysis.ranking.ranking import ranked
from parabench.analysis.stats.contrasts import MOST_REPETITIONS, fit
from parabench.plan.case import Case


def sweet_spots(noise: Noise, repetitions: int, *, gap: float, sessions: int, seed: int = 0) -> tuple[float, float]:
    """Return the share of sessions whose set contains the true best of 12, and the mean size of the set over 12.

    Each configuration is slower than the previous one by `gap`; with 0, all are equal.
    """
    machine = Machine(noise, seed)
    truth = 0.04 * (1 + gap) ** np.arange(12)
    right, kept = 0, 0
    for _ in range(sessions):
        seconds = machine.session(truth, machine.loudness(12), machine.mood(repetitions))
        effects = fit(launch_frame(machine.numbers(seconds)))
        first = min(effects.cases, key=lambda case: effects.means[case])
        chosen = effects.indistinguishable(first)
        right += "00" in chosen
        kept += len(chosen)
    return right / sessions, kept / sessions / 12


def until_decided(
    noise: Noise, *, repetitions: int, gap: float, sessions: int, seed: int = 0
) -> tuple[float, float, float]:
    """Simulate `parabench run --until-decided`, which repeats only configurations that may still be the best.

    Returns the share of sessions whose set contains the true best of 12, the share of sessions that ended with a clear
    winner, and the mean number of launches.
    """
    machine = Machine(noise, seed)
    truth = 0.04 * (1 + gap) ** np.arange(12)
    cases = [Case(device="cpu", world_size=2, bucket_mib=float(i + 1)) for i in range(12)]
    right, decided, launches = 0, 0, 0
    for _ in range(sessions):
        loudness, mood = machine.loudness(12), machine.mood(MOST_REPETITIONS)
        seconds = machine.numbers(machine.session(truth, loudness, mood))
        rows = [
            (case, repetition, seconds[i, repetition])
            for repetition in range(repetitions)
            for i, case in enumerate(cases)
        ]
        repetition = repetitions
        while (left := undecided(numbers(rows), raced=False)).cases and repetition < MOST_REPETITIONS:
            rows += [
                (case, repetition, seconds[i, repetition]) for i, case in enumerate(cases) if case.id in left.cases
            ]
            repetition += 1
        (found,) = ranked(numbers(rows))
        right += cases[0].id in [row["case_id"] for row in found["candidates"] if row["place"] in ("best", "tied")]
        decided += found["workloads"][0]["more_repetitions"] is None
        launches += len(rows)
    return right / sessions, decided / sessions, launches / sessions


def print_best(gates: int) -> None:
    """Print the figures of the set of the fastest."""
    print("The set of the fastest of 12: contains the true best; contains one of 12 equal ones")
    for name, noise in KINDS.items():
        for repetitions in (3, 5, 10):
            right = sweet_spots(noise, repetitions, gap=0.005, sessions=gates // 2)[0]
            flat = sweet_spots(noise, repetitions, gap=0.0, sessions=gates // 2, seed=1)[1]
            print(f"{name:8} {repetitions:3} repetitions: {right:7.1%} {flat:7.1%}", flush=True)
    print("\n--until-decided, from 3 repetitions: contains the true best; decided; mean launches of 12 configurations")
    for name in ("quiet", "pure"):
        for gap in (0.0, 0.005, 0.02):
            right, decided, launches = until_decided(KINDS[name], repetitions=3, gap=gap, sessions=gates // 20)
            print(f"{name:8} each {gap:.1%} slower: {right:7.1%} {decided:7.1%} {launches:6.0f}", flush=True)


PARTS = {
    "alarms": print_alarms,
    "sessions": print_sessions,
    "passes": print_passes,
    "power": print_power,
    "turns": print_turns,
    "best": print_best,
    "race": print_race,
    "series": print_series,
}

if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    for part in sys.argv[2:] or PARTS:
        PARTS[part](number)
        print()
