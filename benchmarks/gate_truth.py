"""How often the gate is right, in simulated launches whose truth is known: what `benchmarks.certainty` prints of it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.simulator import PURE, QUIET, SHARED, UNLIKE, Machine, Noise
from parabench.analysis.compare.between import ALLOWANCE, FEWEST_SESSIONS
from parabench.analysis.compare.cases import ALPHA, TOLERANCE, Outcome, speed
from parabench.analysis.compare.gate import Verdict
from parabench.analysis.stats.contrasts import MOST_LAUNCHES, Between, TTest, holm, judge
from parabench.analysis.turns import compared

Numbers = np.ndarray[Any, np.dtype[np.float64]]

CASES = 10
KINDS = {"quiet": QUIET, "shared": SHARED, "pure": PURE, "unlike": UNLIKE}


def truth_of(cases: int) -> Numbers:
    """Step latencies in seconds, from short to long."""
    return np.geomspace(0.02, 0.2, cases)


def gate(base: Numbers, candidate: Numbers, *, paired: bool, before: list[Numbers] | None = None) -> dict[int, TTest]:
    """The tests of one gate: logs of shape (cases, launches). `before` are the earlier sessions of base's store, for
    sides that did not take turns: as `between.between_sessions` has it, FEWEST_SESSIONS with base tell how sessions
    differ, and of fewer the allowance stands for it. None: sessions are taken not to differ."""
    between = None
    if before is not None and len(before) + 1 >= FEWEST_SESSIONS:
        between = {i: Between.measured([base[i], *(session[i] for session in before)]) for i in range(len(base))}
    elif before is not None:
        between = {i: Between.allowed([base[i], candidate[i]], ALLOWANCE) for i in range(len(base))}
    return judge({i: (base[i], candidate[i]) for i in range(len(base))}, paired=paired, between=between)


def verdict(tests: dict[int, TTest]) -> Verdict:
    """What a gate of these cases says."""
    outcomes = {speed(test, TOLERANCE, ALPHA)[0] for test in tests.values()}
    if Outcome.SLOWER in outcomes:
        return Verdict.REGRESSION
    return Verdict.INCONCLUSIVE if Outcome.UNCLEAR in outcomes else Verdict.NO_REGRESSION


# One session each of several gates: logs of shape (gates, cases, launches).
Drawn = list[Numbers]
# So many gates are drawn at once.
BATCH = 100


def draw(
    machine: Machine, gates: int, cases: int, blocks: int, *, slowdown: float, paired: bool, earlier: int = 0
) -> Drawn:  # fmt: skip
    """Base, a candidate whose middle case is slower by `slowdown`, and so many earlier sessions, of several gates."""
    slower = np.ones(cases)
    slower[cases // 2] += slowdown
    loudness = machine.loudness(gates * cases)
    base = np.array([machine.mood(blocks) for _ in range(gates)])
    moods = [base, *(np.array([machine.mood(blocks) for _ in range(gates)]) for _ in range(1 + earlier))]
    if paired:
        moods[1] = base
    truths = [truth_of(cases), truth_of(cases) * slower, *[truth_of(cases)] * earlier]
    return [
        np.log(machine.numbers(machine.session(np.tile(truth, gates), loudness, np.repeat(mood, cases, axis=0))))
        .reshape(gates, cases, blocks)
        for truth, mood in zip(truths, moods, strict=True)
    ]  # fmt: skip


def gates(
    noise: Noise, blocks: int, *, gates: int, cases: int = CASES, slowdown: float = 0.0, paired: bool = True,
    sessions: int = 1, alone: bool = False, seed: int = 0,
) -> Iterator[Verdict]:  # fmt: skip
    """The verdicts of so many gates. `sessions` are those of base's store, base among them; `alone`: launches alone are
    judged, as if sessions did not differ."""
    machine = Machine(noise, seed)
    for begun in range(0, gates, BATCH):
        drawn = draw(
            machine, min(BATCH, gates - begun), cases, blocks, slowdown=slowdown, paired=paired, earlier=sessions - 1
        )
        if cases == 1:
            # All in one call: a case is judged by itself, but for Holm's adjustment.
            base, candidate, *before = (each[:, 0] for each in drawn)
            tests = gate(base, candidate, paired=paired, before=None if paired or alone else before)
            found = list(tests.values())
            p = stats.t.sf([test.difference / test.error for test in found], [test.df for test in found])
            for test, p_slower in zip(found, p, strict=True):
                yield verdict({0: replace(test, p_slower=float(p_slower))})
            continue
        for base, candidate, *before in zip(*drawn, strict=True):
            yield verdict(gate(base, candidate, paired=paired, before=None if paired or alone else before))


def share(verdicts: Iterator[Verdict], of: Verdict) -> float:
    """How many of them are that one."""
    return float(np.mean([each is of for each in verdicts]))


def false_alarms(noise: Noise, blocks: int, **more: Any) -> float:
    """The share of gates of a machine against itself that fail."""
    return share(gates(noise, blocks, **more), Verdict.REGRESSION)


def wrong_passes(noise: Noise, blocks: int, **more: Any) -> float:
    """The share of gates that pass where one case is slower by exactly the tolerance."""
    return share(gates(noise, blocks, slowdown=TOLERANCE, **more), Verdict.NO_REGRESSION)


def pooled_alarms(noise: Noise, blocks: int, *, gates: int, seed: int = 0) -> float:
    """False alarms where all steps of all launches are taken as independent: what no gate should do."""
    machine = Machine(noise, seed)
    alarms = 0
    for _ in range(gates):
        pair = machine.pair(truth_of(CASES), blocks, interleaved=True)
        base, candidate = (np.log(side.reshape(CASES, -1)) for side in pair)
        p = [stats.ttest_ind(c, b, alternative="greater").pvalue for b, c in zip(base, candidate, strict=True)]
        beyond = candidate.mean(axis=1) - base.mean(axis=1) > np.log1p(TOLERANCE)
        alarms += bool((beyond & (np.array(holm(p)) <= ALPHA)).any())
    return alarms / gates


def as_asked(noise: Noise, pilot: int, *, gates: int, cases: int = CASES, seed: int = 0) -> tuple[float, float]:
    """(share of interleaved gates of two equal sides that pass with as many launches as a first one of `pilot` asked
    for, median of these launches)."""
    machine = Machine(noise, seed)
    passed, asked = 0, []
    for _ in range(gates):
        (base,), (candidate,) = draw(machine, 1, cases, pilot, slowdown=0.0, paired=True)
        tests = gate(base, candidate, paired=True)
        asked.append(max(test.launches_for(TOLERANCE) or MOST_LAUNCHES for test in tests.values()))
        (base,), (candidate,) = draw(machine, 1, cases, asked[-1], slowdown=0.0, paired=True)
        passed += verdict(gate(base, candidate, paired=True)) is Verdict.NO_REGRESSION
    return passed / gates, float(np.median(asked))


# The standard deviation of a turn (docs/explanation/certainty.md), with the tails of Student's t: now and then another
# process comes into one.
TURN_SD, TURN_DF = 0.10, 3


def gates_in_turns(
    gates: int, *, launches: int, rounds: int, slowdown: float, of_launch: float, tolerance: float, seed: int = 0
) -> float:
    """The share of gates of one case that fail where the sides take turns, as `parabench ab` has them. `of_launch` is
    the standard deviation by which pairs of launches differ beyond what their turns do."""
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
    """Gates of one case whose sides take turns: those that fail."""
    for launches, rounds, slowdown, tolerance in ((8, 60, 0.0, 0.02), (8, 60, 0.05, 0.02), (20, 60, 0.02, 0.01)):
        said = []
        for of_launch in (0.0, 0.01, 0.015, 0.02):
            many = 10 * count if slowdown == 0 else count
            rate = gates_in_turns(
                many, launches=launches, rounds=rounds, slowdown=slowdown, of_launch=of_launch, tolerance=tolerance
            )
            said.append(f"{of_launch:.1%}: {rate:.2%}")
        print(
            f"in turns, {launches} launches of {rounds} rounds, slower by {slowdown:.0%}, tolerance {tolerance:.0%}: "
            f"gates that fail where launches differ by {', '.join(said)}",
            flush=True,
        )


def print_alarms(count: int) -> None:
    """False alarms. Gates of one case are cheap, so there are more of them."""
    many = {1: 4 * count, CASES: count}
    print(f"A/A: gates that fail, of 1 case ({many[1]:,} gates) and of 10")
    for (name, noise), blocks in itertools.product(KINDS.items(), (2, 3, 5, 10)):
        said = []
        for how in ({"paired": True}, {"paired": False}):
            rates = [false_alarms(noise, blocks, gates=n, cases=cases, **how) for cases, n in many.items()]
            said.append(f"{rates[0]:6.1%} {rates[1]:6.1%}")
        pooled = pooled_alarms(noise, blocks, gates=max(1, count // 20))
        print(
            f"{name:7} {blocks:3} launches: interleaved {said[0]}, apart {said[1]}, steps pooled {pooled:.0%}",
            flush=True,
        )


def print_sessions(count: int) -> None:
    """False alarms of sides apart, where sessions differ."""
    many = {1: 2 * count, CASES: max(1, count // 2)}
    print("A/A, apart, 5 launches: gates that fail where sessions differ, by sessions in base's store; 1, 10 cases")
    for name, sd in [*itertools.product(("quiet",), (0.0, 0.005, 0.01, 0.02)), ("shared", 0.0), ("shared", 0.02)]:
        noise = replace(KINDS[name], session=sd)
        said = []
        for stored in (1, 4, 6, 10):
            rates = [false_alarms(noise, 5, gates=n, cases=k, paired=False, sessions=stored) for k, n in many.items()]
            said.append(f"{stored}: {rates[0]:.1%} {rates[1]:.1%}")
        rates = [false_alarms(noise, 5, gates=n, cases=k, paired=False, alone=True) for k, n in many.items()]
        print(f"{name:7} {sd:.1%}: {', '.join(said)}, launches alone: {rates[0]:.1%} {rates[1]:.1%}", flush=True)


def print_passes(count: int) -> None:
    """Wrong passes."""
    many = {1: 4 * count}
    print(f"One case slower by exactly the tolerance: gates that pass, of 1 case ({10 * count:,} gates)")
    for name, noise in KINDS.items():
        rates = [f"{n}: {wrong_passes(noise, n, gates=10 * count, cases=1, seed=n):.1%}" for n in (2, 3, 5, 10, 20, 40)]
        print(f"{name:7} launches {', '.join(rates)}", flush=True)
    for stored, sd in itertools.product((4, 6, 10), (0.0, 0.002, 0.01)):
        noise = replace(QUIET, session=sd)
        rate = wrong_passes(noise, 10, gates=many[1], cases=1, paired=False, sessions=stored)
        print(f"apart, quiet, 10 launches, sessions differ by {sd:.1%}, {stored} in the store: {rate:.1%}", flush=True)


def print_power(count: int) -> None:
    """Print power and planning."""
    print("One of 10 cases slower: gates that find it / that pass, interleaved, by its slowdown in tolerances")
    for name, blocks in [
        *itertools.product(("quiet",), (3, 5, 10, 20)),
        *itertools.product(("pure",), (10, 20, 40, 80)),
    ]:
        said = []
        for times in (0.0, 0.5, 1.0, 1.25, 1.5, 2.0):
            seen = Counter(gates(KINDS[name], blocks, gates=max(1, count // 4), slowdown=times * TOLERANCE))
            total = seen.total()
            said.append(
                f"{times:g}: {seen[Verdict.REGRESSION] / total:.0%} / {seen[Verdict.NO_REGRESSION] / total:.0%}"
            )
        print(f"{name:6} {blocks:3} launches: {', '.join(said)}", flush=True)
    print("Two equal sides with as many launches as a gate of 3 or 5 asked for: gates that pass; launches (median)")
    for name, cases, pilot in itertools.product(("quiet", "pure"), (1, CASES), (3, 5)):
        passed, asked = as_asked(KINDS[name], pilot, cases=cases, gates=max(1, count // 5))
        print(f"{name:6} {cases:2} cases, after {pilot}: {passed:.1%} {asked:.0f}", flush=True)
