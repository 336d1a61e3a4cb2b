"""Simulate racing of 36 configurations; `benchmarks.certainty` prints the steps, and how often the fastest is lost.

The logarithms of the true step times are uniform between the fastest and twice its time. The noise is 10% per turn and
10% per launch, as on two quiet cores (docs/explanation/certainty.md). The fastest takes 20 ms per step. Each race goes
on until its remaining cases are compared within ±2.5% (simultaneous 95%). Equal treatment is the same without
elimination.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis.ranking.race import FIRST_LOOK, confidences
from parabench.analysis.stats.contrasts import fit
from parabench.plan.protocol import Protocol
from parabench.plan.schedule import BUILD

CASES, STEP_S, TURN_SD, LAUNCH_SD, SHARP, MOST_LAUNCHES = 36, 0.02, 0.10, 0.10, 0.025, 400


def truth_of(lot: np.random.Generator, cases: int) -> Any:
    """Return the step times of the cases, the fastest first."""
    behind = np.sort(lot.uniform(0, math.log(2), cases - 1))
    return STEP_S * np.exp(np.concatenate([[0.0], behind]))


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
        truth = truth_of(lot, CASES)
        steps, near = simulated(lot, truth, leaves=True)
        held += 0 in near
        if number < 2 * races // 5:
            shares.append(steps / simulated(lot, truth, leaves=False)[0])
    print(f"{CASES} cases, {races} races: the fastest in the final set in {held} ({held / races:.1%})")
    spread = f"median {np.median(shares):.3f}, {min(shares):.3f} to {max(shares):.3f} ({len(shares)} races)"
    print(f"steps of a race over steps of equal treatment until ±{SHARP:.1%}: {spread}")
