"""Simulate gates with known truth and count their right answers; `benchmarks.certainty` prints the shares."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.simulator import PURE, QUIET, SHARED, UNLIKE, Machine, Noise
from parabench.analysis.compare.comparison import ALPHA, TOLERANCE, Outcome, speed
from parabench.analysis.compare.gate import Verdict
from parabench.analysis.compare.sides import ALLOWANCE, FEWEST_SESSIONS
from parabench.analysis.launch_number import compared
from parabench.analysis.stats.contrasts import MOST_LAUNCHES, Between, TTest, judge

Numbers = np.ndarray[Any, np.dtype[np.float64]]

CASES = 10
KINDS = {"quiet": QUIET, "shared": SHARED, "pure": PURE, "unlike": UNLIKE}


def truth_of(cases: int) -> Numbers:
    """Return step times in seconds, from short to long."""
    return np.geomspace(0.02, 0.2, cases)


def gate(base: Numbers, candidate: Numbers, *, paired: bool, before: list[Numbers] | None = None) -> dict[int, TTest]:
    """Return the tests of one gate, from logarithms of shape (cases, launches).

    `before` are the earlier sessions of the baseline's database, if the variants were not interleaved. With the
    baseline, FEWEST_SESSIONS of them determine the variance between sessions, as in `between.between_sessions`; with
    fewer, the allowance replaces it. None: the variance between sessions is 0.
    """
    between = None
    if before is not None and len(before) + 1 >= FEWEST_SESSIONS:
        between = {i: Between.measured([base[i], *(session[i] for session in before)]) for i in range(len(base))}
    elif before is not None:
        between = {i: Between.allowed([base[i], candidate[i]], ALLOWANCE) for i in range(len(base))}
    return judge({i: (base[i], candidate[i]) for i in range(len(base))}, paired=paired, between=between)


def verdict(tests: dict[int, TTest]) -> Verdict:
    """Return the verdict of a gate with these tests."""
    outcomes = {speed(test, TOLERANCE, ALPHA)[0] for test in tests.values()}
    if Outcome.SLOWER in outcomes:
        return Verdict.REGRESSION
    return Verdict.INCONCLUSIVE if Outcome.UNCLEAR in outcomes else Verdict.NO_REGRESSION


# For each session the logarithms of several gates, of shape (gates, cases, launches).
Drawn = list[Numbers]
# The number of gates that are drawn at once.
BATCH = 100


def draw(
    machine: Machine, gates: int, cases: int, repetitions: int, *, slowdown: float, paired: bool, earlier: int = 0
) -> Drawn:  # fmt: skip
    """Return a baseline, a candidate whose middle case is slower, and `earlier` sessions, of each gate."""
    slower = np.ones(cases)
    slower[cases // 2] += slowdown
    loudness = machine.loudness(gates * cases)
    moods = [np.array([machine.mood(repetitions) for _ in range(gates)]) for _ in range(2 + earlier)]
    if paired:
        moods[1] = moods[0]
    found = []
    for at, mood in enumerate(moods):
        truth = truth_of(cases) * (slower if at == 1 else 1.0)
        seconds = machine.session(np.tile(truth, gates), loudness, np.repeat(mood, cases, axis=0))
        found.append(np.log(seconds).reshape(gates, cases, repetitions))
    return found


def gates(
    noise: Noise, repetitions: int, *, gates: int, cases: int = CASES, slowdown: float = 0.0, paired: bool = True,
    sessions: int = 1, alone: bool = False, seed: int = 0
) -> Iterator[Verdict]:  # fmt: skip
    """Yield the verdicts of `gates` gates.

    `sessions` counts the sessions of the baseline's database, with the baseline. `alone` ignores the variance between
    sessions.
    """
    machine = Machine(noise, seed)
    for begun in range(0, gates, BATCH):
        count = min(BATCH, gates - begun)
        drawn = draw(machine, count, cases, repetitions, slowdown=slowdown, paired=paired, earlier=sessions - 1)
        if cases == 1:
            # All gates in one call, because each case is judged separately except for Holm's adjustment.
            base, candidate, *before = (each[:, 0] for each in drawn)
            tests = gate(base, candidate, paired=paired, before=None if paired or alone else before)
            found = list(tests.values())
            p = stats.t.sf([test.difference / test.error for test in found], [test.df for test in found])
            for test, p_slower in zip(found, p, strict=True):
                yield verdict({0: replace(test, p_slower=float(p_slower))})
            continue
        for base, candidate, *before in zip(*drawn, strict=True):
            yield verdict(gate(base, candidate, paired=paired, before=None if paired or alone else before))


def share(verdicts: Iterator[Verdict], wanted: Verdict) -> float:
    """Return the share of gates with the wanted verdict."""
    return float(np.mean([each is wanted for each in verdicts]))


def false_alarms(noise: Noise, repetitions: int, **more: Any) -> float:
    """Return the share of A/A gates that fail."""
    return share(gates(noise, repetitions, **more), Verdict.REGRESSION)


def wrong_passes(noise: Noise, repetitions: int, **more: Any) -> float:
    """Return the share of gates that pass although one case is slower by exactly the tolerance."""
    return share(gates(noise, repetitions, slowdown=TOLERANCE, **more), Verdict.NO_REGRESSION)


def as_asked(noise: Noise, pilot: int, *, gates: int, cases: int = CASES, seed: int = 0) -> tuple[float, float]:
    """Return how interleaved A/A gates do with the number of launches that a first gate of `pilot` launches asked for.

    The result is the share of gates that pass, and the median number of launches.
    """
    machine = Machine(noise, seed)
    passed, asked = 0, []
    for _ in range(gates):
        (base,), (candidate,) = draw(machine, 1, cases, pilot, slowdown=0.0, paired=True)
        tests = gate(base, candidate, paired=True)
        asked.append(max(test.launches_for(TOLERANCE) or MOST_LAUNCHES for test in tests.values()))
        (base,), (candidate,) = draw(machine, 1, cases, asked[-1], slowdown=0.0, paired=True)
        passed += verdict(gate(base, candidate, paired=True)) is Verdict.NO_REGRESSION
    return passed / gates, float(np.median(asked))


# The standard deviation of a turn (docs/explanation/certainty.md), with the tails of Student's t for other processes.
TURN_SD, TURN_DF = 0.10, 3


def gates_in_turns(
    gates: int, *, launches: int, rounds: int, slowdown: float, of_launch: float, tolerance: float, seed: int = 0
) -> float:
    """Return the share of gates of one case that fail if the variants are interleaved in rounds, as in `parabench ab`.

    `of_launch` is the standard deviation of pairs of launches beyond the noise of their turns.
    """
    random, found = np.random.default_rng(seed), 0
    sd = TURN_SD / np.sqrt(TURN_DF / (TURN_DF - 2))
    truth = np.log1p(np.array([0.0, slowdown]))[:, None]
    for _ in range(gates):
        turns = sd * random.standard_t(TURN_DF, (launches, 2, rounds)) + truth
        turns[:, 1] += of_launch * random.standard_normal(launches)[:, None]
        numbers = np.array([compared(each) for each in turns])
        (test,) = judge({0: (numbers[:, 0], numbers[:, 1])}, paired=True).values()
        found += speed(test, tolerance, ALPHA)[0] is Outcome.SLOWER
    return found / gates


def print_turns(count: int) -> None:
    """Print the share of gates of one case, interleaved in rounds, that fail."""
    deviations = (0.0, 0.01, 0.015, 0.02)
    for launches, slowdown, tolerance in ((8, 0.0, 0.02), (8, 0.05, 0.02), (20, 0.02, 0.01)):
        many = 10 * count if slowdown == 0 else count
        fields: dict[str, Any] = {"launches": launches, "rounds": 60, "slowdown": slowdown, "tolerance": tolerance}
        rates = [f"{sd:.1%}: {gates_in_turns(many, of_launch=sd, **fields):.2%}" for sd in deviations]
        gate_of = f"{launches} launches of 60 rounds, {slowdown:.0%} slower, tolerance {tolerance:.0%}"
        print(f"{gate_of}: gates that fail if launches differ by {', '.join(rates)}", flush=True)


def print_alarms(count: int) -> None:
    """Print false alarms. Gates of one case are cheap, so there are more of them."""
    many = {1: 4 * count, CASES: count}
    print(f"A/A: gates that fail, of 1 case ({many[1]:,} gates) and of 10")
    for (name, noise), repetitions in itertools.product(KINDS.items(), (2, 3, 5, 10)):
        rates = [
            false_alarms(noise, repetitions, gates=n, cases=cases, paired=paired)
            for paired in (True, False)
            for cases, n in many.items()
        ]
        interleaved, apart = (f"{one:6.1%} {ten:6.1%}" for one, ten in (rates[:2], rates[2:]))
        print(f"{name:7} {repetitions:3} launches: interleaved {interleaved}, not interleaved {apart}", flush=True)


def print_sessions(count: int) -> None:
    """Print false alarms of variants that were not interleaved, if sessions differ by 2%."""
    many = {1: 2 * count, CASES: max(1, count // 2)}
    print("A/A, not interleaved, 5 launches, sessions differ by 2%: gates that fail, by baseline sessions; 1, 10 cases")
    for name in ("quiet", "shared"):
        noise = replace(KINDS[name], session=0.02)
        ways: dict[str, dict[str, Any]] = {str(n): {"sessions": n} for n in (1, 4, 6, 10)}
        for way, options in (ways | {"launches alone": {"alone": True}}).items():
            rates = [false_alarms(noise, 5, gates=n, cases=k, paired=False, **options) for k, n in many.items()]
            print(f"{name:7} {way:>14}: {rates[0]:6.1%} {rates[1]:6.1%}", flush=True)


def print_passes(count: int) -> None:
    """Print wrong passes."""
    print(f"One case slower by exactly the tolerance: gates that pass, of 1 case ({10 * count:,} gates)")
    for name, noise in KINDS.items():
        rates = [f"{n}: {wrong_passes(noise, n, gates=10 * count, cases=1, seed=n):.1%}" for n in (2, 3, 5, 10, 20, 40)]
        print(f"{name:7} launches {', '.join(rates)}", flush=True)


def print_power(count: int) -> None:
    """Print power and planning."""
    print("One of 10 cases slower: gates that detect it / that pass, interleaved, by its slowdown in tolerances")
    for name, repetitions in (("quiet", 5), ("pure", 40)):
        for times in (0.0, 0.5, 1.0, 1.25, 1.5, 2.0):
            seen = Counter(gates(KINDS[name], repetitions, gates=max(1, count // 4), slowdown=times * TOLERANCE))
            detected, passed = (seen[each] / seen.total() for each in (Verdict.REGRESSION, Verdict.NO_REGRESSION))
            print(f"{name:6} {repetitions:3} launches, {times:4g}: {detected:4.0%} / {passed:4.0%}", flush=True)
    print("Equal variants with the launches that a gate of 3 or 5 asked for: gates that pass; launches (median)")
    for name, cases, pilot in itertools.product(("quiet", "pure"), (1, CASES), (3, 5)):
        passed, asked = as_asked(KINDS[name], pilot, cases=cases, gates=max(1, count // 5))
        print(f"{name:6} {cases:2} cases, after {pilot}: {passed:.1%} {asked:.0f}", flush=True)
