"""Count the right answers of the gate, `best`, racing and `ab --series` in simulated launches with known truth.

    python -m benchmarks.certainty [GATES [PART ...]]

Prints the figures of docs/explanation/certainty.md, 1,000 gates each by default (some minutes on an idle machine).
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.gate_truth import KINDS, print_alarms, print_passes, print_power, print_sessions, print_turns
from benchmarks.simulator import Machine, Noise, launch_frame, numbers
from parabench.analysis.compare.proposal import LEAST, MOST_PAIRS, Judgement, alpha_of, judged
from parabench.analysis.ranking import ranked
from parabench.analysis.ranking.race import FIRST_LOOK, confidences, undecided
from parabench.analysis.stats.contrasts import MOST_REPETITIONS, fit, judge
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.plan.schedule import BUILD


def sweet_spots(noise: Noise, repetitions: int, *, gap: float, sessions: int, seed: int = 0) -> tuple[float, float]:
    """Return the share of sessions whose set contains the true best of 12, and the mean size of the set over 12.

    Each configuration is slower than the previous one by `gap`; with 0, all are equal.
    """
    machine = Machine(noise, seed)
    truth = 0.04 * (1 + gap) ** np.arange(12)
    right, kept = 0, 0
    for _ in range(sessions):
        seconds = machine.session(truth, machine.loudness(12), machine.mood(repetitions))
        effects = fit(launch_frame(seconds))
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
        seconds = machine.session(truth, loudness, mood)
        rows = [(cases[i], repetition, seconds[i, repetition]) for repetition in range(repetitions) for i in range(12)]
        repetition = repetitions
        while (left := undecided(numbers(rows), raced=False)[0]) and repetition < MOST_REPETITIONS:
            again = [i for i in range(12) if cases[i].id in left]
            rows += [(cases[i], repetition, seconds[i, repetition]) for i in again]
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
            right, decided, launches = until_decided(KINDS[name], repetitions=3, gap=gap, sessions=max(1, gates // 20))
            print(f"{name:8} each {gap:.1%} slower: {right:7.1%} {decided:7.1%} {launches:6.0f}", flush=True)


# Races of 36 configurations. The logarithms of the true step times are uniform between the fastest (20 ms) and twice
# its time. The noise is 10% per turn and 10% per launch, as on two quiet cores (docs/explanation/certainty.md). A race
# goes on until the remaining configurations are compared within SHARP.
CASES, STEP_S, TURN_SD, LAUNCH_SD, SHARP, MOST_LAUNCHES = 36, 0.02, 0.10, 0.10, 0.025, 400


def simulated(lot: np.random.Generator, truth: Any, leaves: bool) -> tuple[int, list[int]]:
    """Return the steps of all cases and the final set of a race, or of equal treatment."""
    rows: dict[str, list[Any]] = {name: [] for name in ("case", "repetition", "shared_launch", "turns", "step_s")}
    racing, steps = list(range(len(truth))), 0
    for repetition in range(1, MOST_LAUNCHES):
        step_s = [float(truth[case]) for case in racing]
        schedule = Protocol().shared(f"0, {repetition}", step_s, "cpu")
        steps += sum(turn.steps for turn in schedule.turns() if turn.round != BUILD)
        turns, level = schedule.rounds, lot.normal(0, LAUNCH_SD)
        for case in racing:
            number = truth[case] * math.exp(level + lot.normal(0, TURN_SD / math.sqrt(turns)))
            for name, value in zip(rows, (f"{case:03}", repetition, repetition, turns, number), strict=True):
                rows[name].append(value)
        # Without elimination, not every look is needed.
        if repetition < FIRST_LOOK or not (leaves or repetition % 5 == 0):
            continue
        launches = pd.DataFrame(rows)
        effects = fit(launches)
        best = effects.means.idxmin()
        near = effects.indistinguishable(best, confidences(launches, effects.cases))
        widths = effects.best_half_widths(best)
        if math.expm1(max(widths[case] for case in (near if leaves else effects.cases))) <= SHARP or len(near) == 1:
            return steps, [int(case) for case in effects.indistinguishable(best)]
        if leaves:
            racing = sorted(int(case) for case in near)
    raise RuntimeError(f"not decided after {MOST_LAUNCHES} launches")


def print_race(count: int) -> None:
    """Print how often the fastest is in the final set, and the saved steps of two fifths of the races."""
    lot, races = np.random.default_rng(1), max(5, count // 10)
    held, shares = 0, []
    for number in range(races):
        behind = np.sort(lot.uniform(0, math.log(2), CASES - 1))
        truth = STEP_S * np.exp(np.concatenate([[0.0], behind]))
        steps, near = simulated(lot, truth, leaves=True)
        held += 0 in near
        if number < 2 * races // 5:
            shares.append(steps / simulated(lot, truth, leaves=False)[0])
    print(f"{CASES} cases, {races} races: the fastest in the final set in {held} ({held / races:.1%})")
    spread = f"median {np.median(shares):.3f}, {min(shares):.3f} to {max(shares):.3f} ({len(shares)} races)"
    print(f"steps of a race over steps of equal treatment until ±{SHARP:.1%}: {spread}")


# The standard deviation of pairs of launches, the gain of a proposal, and the proposals of a series.
SD, GAIN, PROPOSALS = 0.01, 0.02, 40


def proposed(random: np.random.Generator, spend: float, gain: float) -> Judgement:
    """Return the judgement of one proposal."""
    drawn = SD * random.standard_normal(MOST_PAIRS) + np.log1p(-gain)
    for pairs in range(2, MOST_PAIRS + 1):
        found = judged(judge({0: (np.zeros(pairs), drawn[:pairs])}, paired=True)[0], pairs, spend, LEAST)
        if found.accept is not None:
            break
    return found


def print_series(count: int) -> None:
    """Print the false accepts of series without a gain, and the accepts of single proposals with one."""
    random, series = np.random.default_rng(0), max(1, count // 2)
    false, pairs = 0, list[int]()
    for _ in range(series):
        for number in range(1, PROPOSALS + 1):
            found = proposed(random, alpha_of(number), 0.0)
            pairs.append(found.pairs)
            if found.accept:
                false += 1
                break
    text = f"{false} with a false accept ({false / series:.2%}); a proposal took {np.median(pairs):.0f} pairs"
    print(f"{series} series of {PROPOSALS} proposals that change nothing: {text}")
    for number in (1, 10, 100, 1000):
        many = [proposed(random, alpha_of(number), GAIN) for _ in range(series)]
        accepted, needed = np.mean([one.accept is True for one in many]), np.median([one.pairs for one in many])
        print(f"a gain of {GAIN:.0%}, proposal {number}: {accepted:.1%} accepted, after {needed:.0f} pairs")


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
