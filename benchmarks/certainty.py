"""How often the gate and the sweet spot are right, in simulated launches whose truth is known.

    python -m benchmarks.certainty [gates]

prints the figures of docs/certainty.md; 1,000 gates each by default, some minutes.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import numpy as np
from scipy import stats

from benchmarks.simulator import PURE, QUIET, SHARED, UNLIKE, Machine, Noise, launch_frame, launch_table
from parabench.analysis.gate.outcome import Outcome
from parabench.analysis.gate.rule import ALPHA, TOLERANCE, speed
from parabench.analysis.gate.significance import MOST_LAUNCHES, Test, holm, judge
from parabench.analysis.sweet_spot.best import answers
from parabench.analysis.sweet_spot.effects import MOST_BLOCKS, fit
from parabench.analysis.sweet_spot.undecided import candidates
from parabench.case import Case

CASES = 10
KINDS = {"quiet": QUIET, "shared": SHARED, "pure": PURE, "unlike": UNLIKE}


def gate(machine: Machine, sides: list[np.ndarray], *, paired: bool) -> dict[str, Test]:
    """The tests of one comparison of simulated sides."""
    base, candidate = (np.log(machine.numbers(side)) for side in sides)
    cases = {f"{i:02d}": (base[i], candidate[i]) for i in range(len(base))}
    return judge(cases, paired=paired)


def regressed(tests: dict[str, Test]) -> set[str]:
    """The cases for which the gate would fail."""
    return {case for case, test in tests.items() if speed(test, TOLERANCE, ALPHA)[0] is Outcome.SLOWER}


def false_alarms(noise: Noise, blocks: int, *, paired: bool, gates: int, seed: int = 0) -> float:
    """The share of gates of one machine against itself that fail."""
    machine = Machine(noise, seed)
    truth = np.geomspace(0.02, 0.2, CASES)
    return float(
        np.mean(
            [
                bool(regressed(gate(machine, machine.pair(truth, blocks, interleaved=paired), paired=paired)))
                for _ in range(gates)
            ]
        )
    )


def pooled_alarms(noise: Noise, blocks: int, *, gates: int, seed: int = 0) -> float:
    """The same where all steps of all launches are taken as independent: what no gate should do."""
    machine = Machine(noise, seed)
    truth = np.geomspace(0.02, 0.2, CASES)
    alarms = 0
    for _ in range(gates):
        base, candidate = (np.log(side.reshape(CASES, -1)) for side in machine.pair(truth, blocks, interleaved=True))
        p = [stats.ttest_ind(c, b, alternative="greater").pvalue for b, c in zip(base, candidate, strict=True)]
        beyond = candidate.mean(axis=1) - base.mean(axis=1) > np.log1p(TOLERANCE)
        alarms += bool((beyond & (np.array(holm(p)) <= ALPHA)).any())
    return alarms / gates


def recommended(machine: Machine, truth: np.ndarray, blocks: int, *, paired: bool) -> int:
    """How many launches a side the gate asks for, after a comparison of `blocks`."""
    tests = gate(machine, machine.pair(truth, blocks, interleaved=paired), paired=paired)
    return max(test.launches_for(TOLERANCE) or MOST_LAUNCHES for test in tests.values())


def caught(
    noise: Noise, pilot: int, *, paired: bool, gates: int, cases: int = CASES, slowdown: float = 0.05, seed: int = 0
) -> tuple[float, float]:
    """(share of gates that find one case slowed down, median of the launches that the gate had asked for)."""
    machine = Machine(noise, seed)
    truth = np.geomspace(0.02, 0.2, cases)
    slower = np.ones(cases)
    slower[cases // 2] += slowdown
    found, asked = 0, []
    for _ in range(gates):
        asked.append(recommended(machine, truth, pilot, paired=paired))
        sides = machine.pair(truth, asked[-1], slower=slower, interleaved=paired)
        found += f"{cases // 2:02d}" in regressed(gate(machine, sides, paired=paired))
    return found / gates, float(np.median(asked))


def sweet_spots(noise: Noise, blocks: int, *, gap: float, sessions: int, seed: int = 0) -> tuple[float, float]:
    """(share of sessions whose set holds the true best of 12, share whose set holds all 12).

    Each configuration is slower than the one before by `gap`; 0 is a flat curve.
    """
    machine = Machine(noise, seed)
    truth = 0.04 * (1 + gap) ** np.arange(12)
    right, whole = 0, 0
    for _ in range(sessions):
        seconds = machine.session(truth, machine.loudness(12), machine.mood(blocks))
        effects = fit(launch_frame(machine.numbers(seconds)))
        first = min(effects.cases, key=lambda case: effects.means[case])
        chosen = effects.indistinguishable(first)
        right += "00" in chosen
        whole += len(chosen) == 12
    return right / sessions, whole / sessions


def until_decided(noise: Noise, *, blocks: int, gap: float, sessions: int, seed: int = 0) -> tuple[float, float, float]:
    """(share of sessions whose set holds the true best of 12, share that ended decided, mean launches) of `parabench
    run --until-decided`: after the planned blocks, only the configurations that may still be the best."""
    machine = Machine(noise, seed)
    truth = 0.04 * (1 + gap) ** np.arange(12)
    cases = [Case(device="cpu", world_size=2, bucket_mib=float(i + 1)) for i in range(12)]
    right, decided, launches = 0, 0, 0
    for _ in range(sessions):
        loudness, mood = machine.loudness(12), machine.mood(MOST_BLOCKS)
        numbers = machine.numbers(machine.session(truth, loudness, mood))
        rows = [(case, block, numbers[i, block]) for block in range(blocks) for i, case in enumerate(cases)]
        block = blocks
        while (left := candidates(launch_table(rows))).cases and block < MOST_BLOCKS:
            rows += [(case, block, numbers[i, block]) for i, case in enumerate(cases) if case.id in left.cases]
            block += 1
        (answer,) = answers(launch_table(rows))
        assert answer.best is not None
        right += cases[0].id in {answer.best.case_id, *(each.case_id for each in answer.equals)}
        decided += answer.more_blocks is None
        launches += len(rows)
    return right / sessions, decided / sessions, launches / sessions


def main(gates: int) -> None:
    print(f"{gates:,} gates of {CASES} cases each, tolerance {TOLERANCE:.0%}, alpha {ALPHA:.0%}\n")
    print("A/A: share of gates that fail")
    print(f"{'noise':8} {'launches':>8} {'interleaved':>12} {'apart':>8} {'steps pooled':>13}")
    for name, noise in KINDS.items():
        for blocks in (3, 5, 10):
            rates = [false_alarms(noise, blocks, paired=paired, gates=gates) for paired in (True, False)]
            pooled = pooled_alarms(noise, blocks, gates=max(1, gates // 5))
            print(f"{name:8} {blocks:8} {rates[0]:12.2%} {rates[1]:8.2%} {pooled:13.1%}", flush=True)
    print("\nA/A, apart, where a day differs from another: share of gates that fail")
    for name in ("quiet", "shared"):
        for session in (0.005, 0.01, 0.02):
            moody = replace(KINDS[name], session=session)
            rate = false_alarms(moody, 5, paired=False, gates=gates)
            print(f"{name:8} sessions differ by {session:.1%} (standard deviation): {rate:.1%}", flush=True)
    print("\nOne case is 5 % slower, as many launches as the gate asked for after 3 or 5: share found")
    for name, cases, pilot in itertools.product(("quiet", "pure"), (1, CASES), (3, 5)):
        for paired in (True, False):
            share, asked = caught(KINDS[name], pilot, paired=paired, cases=cases, gates=max(1, gates // 5))
            how = "interleaved" if paired else "apart"
            print(f"{name:6} {cases:2} cases {how:12} {pilot}: {share:7.1%}  launches: {asked:.0f}", flush=True)
    print("\nThe sweet-spot set of 12 configurations: holds the true best; holds all of a flat curve")
    for name, noise in KINDS.items():
        for blocks in (3, 5, 10):
            right = sweet_spots(noise, blocks, gap=0.005, sessions=gates // 2)[0]
            flat = sweet_spots(noise, blocks, gap=0.0, sessions=gates // 2, seed=1)[1]
            print(f"{name:8} {blocks:3} blocks: {right:7.1%} {flat:7.1%}", flush=True)
    print("\n--until-decided, from 3 blocks: set holds the true best; decided; mean launches of 12 configurations")
    for name in ("quiet", "pure"):
        for gap in (0.0, 0.005, 0.02):
            right, decided, launches = until_decided(KINDS[name], blocks=3, gap=gap, sessions=gates // 20)
            print(f"{name:8} each {gap:.1%} slower: {right:7.1%} {decided:7.1%} {launches:6.0f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
