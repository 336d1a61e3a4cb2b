"""Does a case's turn depend on which case had its turn before? Tested in every session in which cases share launches.

Four tests, each of which sees what others miss:

- `after`: turns by the case before, inside launches (first-order residual effects; orders are balanced by Williams'
  designs, so that each case follows each other one);
- `first`: the first step of a turn that counts against the later ones of the turn;
- `long`: turns that are several times as long, in which what was left behind is a smaller share, against short ones;
- `alone`: launches of its own against shared ones, as far as their noise allows.

`settling`, the same as `after` for the first step after a switch, which does not count, tells what settling steps are
for. Sizes are fractions of a step. E. J. Williams, "Experimental designs balanced for the estimation of residual
effects of treatments", 1949; B. Jones and M. G. Kenward, "Design and Analysis of Cross-Over Trials", 3rd ed., 2014.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from parabench.analysis.session import SessionData
from parabench.analysis.stats.block_model import SHARP_ENOUGH, fit
from parabench.analysis.stats.crossover import Estimates, Numbers, Table, estimate, mean_of, undisturbed
from parabench.analysis.turns import SharedLaunch, shared_launches_of
from parabench.plan.turns import orders

# What a difference between cases is worth: a carry-over above it asks for more settling steps.
MATTERS = SHARP_ENOUGH
# More settling steps than this would take longer than what is measured.
MOST_SETTLE = 8
# A launch of its own is compared with how the others differ from their shared launches, of which so many say something.
FEWEST_ALONE = 4
# Fewer launches do not tell how a case's long turns differ from its short ones.
FEWEST_LAUNCHES = 3
# The chance of a finding where nothing is carried over, as in the regression gate; with a shared machine's outliers it
# stays below 5 % (tests/unit/analysis/test_carry_over.py).
ALPHA = 0.01
# The tests of which a finding is made; `settling` is told, and is what settling steps are for.
TESTS = ("after", "first", "long", "alone")
# Those that settling steps can change; a launch of its own is one reading, which no later launch makes another.
SETTLED = ("after", "first", "long")


@dataclass(frozen=True)
class Effect:
    """`size` of one case (of all together where `case_id` is None), as a fraction of a step; `low` to `high` is its
    95 % interval, for all cases of the test at once, and `p` adjusted for them. None: the launches do not tell."""

    case_id: str | None
    size: float | None
    low: float | None
    high: float | None
    p: float | None


@dataclass(frozen=True)
class Position:
    """How much longer a step of turns takes than the later ones of its turn, over all cases, each with its own 95 %
    interval. `step` counts from the switch; the first `settle` of a turn do not count."""

    step: int
    size: float
    low: float
    high: float


@dataclass(frozen=True)
class CarryOver:
    """What was tested in `launches` shared launches, whose turns have `settle` settling steps, and some are `long`
    times as long as others. `last` are the cases of the last of them. `tests` holds of each test the effect of every
    case; `found` the largest of each that is significant, at ALPHA for all tests together (Holm)."""

    launches: int
    turns: int
    settle: int
    long: int
    last: tuple[str, ...]
    tests: dict[str, tuple[Effect, ...]]
    positions: tuple[Position, ...]
    found: dict[str, Effect]

    @property
    def matters(self) -> bool:
        """Whether one that was found is larger than what differences are worth."""
        return any(abs(each.size or 0.0) > MATTERS for each in self.found.values())


def settle_for(seen: CarryOver, look: int = 2) -> int | None:
    """How many settling steps the next launches should have: twice as many where what was found matters, None where
    MOST_SETTLE did not help, and launches of their own have the answer. The tests may be asked after each launch; the
    `look`, 2 or more, is how many there were, and the errors of all add up to ALPHA."""
    sure = ALPHA / (look * (look - 1)) / len(TESTS)
    found = [each for test, each in seen.found.items() if test in SETTLED]
    if not any(abs(each.size or 0.0) > MATTERS and (each.p or 0.0) <= sure for each in found):
        return seen.settle
    return None if seen.settle >= MOST_SETTLE else min(MOST_SETTLE, 2 * max(1, seen.settle))


def carry_over(seen: SessionData) -> CarryOver | None:
    """The tests of a session; None where no cases shared a launch. Where launches had more and more settling steps, of
    those with most."""
    launches = seen.once(shared_launches_of)
    if not launches:
        return None
    return judge(launches, _alone(seen))


def judge(launches: Sequence[SharedLaunch], alone: Mapping[str, float]) -> CarryOver:
    """The tests of shared launches with as many settling steps each. `alone` are logarithms of how much longer a step
    of a case takes in launches of its own than in shared ones."""
    protocol = launches[0].protocol
    tests = {
        "after": _after(launches, lambda of, row, number: float(of.parts(row, number)[0])),
        "first": _first(launches),
        "long": _long(launches),
        "alone": _outliers(alone),
    }
    found: dict[str, Effect] = {}
    least = {
        name: min((each for each in effects if each.p is not None), key=lambda each: each.p or 0.0, default=None)
        for name, effects in tests.items()
    }
    ordered = sorted((each.p or 0.0, name, each) for name, each in least.items() if each is not None)
    for rank, (p, name, each) in enumerate(ordered):
        if p * (len(ordered) - rank) > ALPHA:
            break
        found[name] = each
    if protocol.settle:
        tests["settling"] = _after(
            launches, lambda of, row, number: float(of.settling[row][number, 0] - of.timed[row][number].mean())
        )
    return CarryOver(
        launches=len(launches),
        turns=sum(len(each.rows) * each.protocol.rounds for each in launches),
        settle=protocol.settle,
        long=protocol.long,
        last=tuple(launches[-1].cases),
        tests=tests,
        positions=tuple(_positions(launches)),
        found={name: found[name] for name in TESTS if name in found},
    )


def _after(launches: Sequence[SharedLaunch], value: Any) -> tuple[Effect, ...]:
    """What each case makes of the turn after it. The first turn of a round follows a pause, in which garbage is
    collected: what that does is taken off."""
    names = list(dict.fromkeys(name for each in launches for name in each.names))
    place = {name: at for at, name in enumerate(names)}
    tables = []
    for each in launches:
        rounds = orders(len(each.names), each.protocol.rounds, each.protocol.seed)
        before = np.zeros((len(each.names), len(rounds), len(names) + 1))
        # Before the first turn the last case was warmed up.
        sequence = [(-1, len(each.names) - 1), *((number, arm) for number, order in enumerate(rounds) for arm in order)]
        for (earlier, predecessor), (number, arm) in pairwise(sequence):
            before[arm, number, place[each.names[predecessor]]] = 1.0
            before[arm, number, -1] = float(earlier != number)
        tables.append(Table(each.table(lambda row, number, of=each: value(of, row, number)), before[list(each.rows)]))
    return _effects(names, estimate(tables, len(names)))


def _first(launches: Sequence[SharedLaunch]) -> tuple[Effect, ...]:
    """The first step that counts against the later half of its turn, of all cases and of each."""
    own: dict[str | None, list[float]] = {None: []}
    for each in launches:
        for row, name in enumerate(each.cases):
            excess = [_excess(steps[0], steps) for steps in each.timed[row] if len(steps) > 1]
            own.setdefault(name, []).extend(excess)
            own[None] += excess
    means = [mean_of(np.array(values)) for values in own.values()]
    found = [
        _effects([name], Estimates(np.array([mean]), np.array([error]), df), among=len(own))[0]
        for name, (mean, error, df) in zip(own, means, strict=True)
    ]
    return tuple(found)


def _excess(step: float, steps: Numbers) -> float:
    """How much longer a step took than those of the later half of its turn. Each of these is compared by itself, and
    what is further off than `_FAR` counts as that: so it is 0 in the mean where steps are alike, however skewed."""
    return float(np.clip(step - steps[len(steps) // 2 :], -_FAR, _FAR).mean())


# A step that takes so much longer (a factor of 1.6) was met by another process.
_FAR = 0.5


def _positions(launches: Sequence[SharedLaunch]) -> list[Position]:
    """Settling steps, and those that count in the first half of a short turn."""
    protocol = launches[0].protocol
    found: dict[int, list[float]] = {}
    for each in launches:
        for row in range(len(each.rows)):
            for settling, steps in zip(each.settling[row], each.timed[row], strict=True):
                first = [*settling, *steps[: each.protocol.timed_of(each.rows[row]) // 2]]
                for at, step in enumerate(first, 1):
                    found.setdefault(at, []).append(_excess(step, steps))
    positions = []
    for at, values in sorted(found.items()):
        mean, error, df = mean_of(np.array(values))
        if df < 1 or at > protocol.settle + protocol.timed // 2:
            continue
        (width,) = Estimates(np.array([mean]), np.array([error]), df).half_widths(1)
        positions.append(Position(at, *(math.expm1(end) for end in (mean, mean - width, mean + width))))
    return positions


def _long(launches: Sequence[SharedLaunch]) -> tuple[Effect, ...]:
    """Each case's long turns against its short ones, and that against those of the others in its launch. Of a launch
    there is one number; a case that was in few does not count."""
    some = [each for each in launches if len(set(each.protocol.lengths)) > 1]
    if not some:
        return ()
    names = list(dict.fromkeys(name for each in some for name in each.cases))
    turns = [each.turns() for each in some]
    tables = []
    for each, left in zip(some, undisturbed(turns), strict=True):
        long = np.array(each.protocol.lengths) > 1
        apart = left[:, long].mean(axis=1) - left[:, ~long].mean(axis=1)
        design = np.array([[name == other for other in names] for name in each.cases], dtype=float)
        tables.append(Table(apart[:, None], design[:, None, :]))
    seen = estimate(tables, len(names), columns=False)
    counts = Counter(name for each in some for name in set(each.cases))
    few = np.array([counts[name] < FEWEST_LAUNCHES for name in names])
    return _effects(names, replace(seen, errors=np.where(few, np.nan, seen.errors)))


def _outliers(alone: Mapping[str, float]) -> tuple[Effect, ...]:
    """Each case against the others: with one launch of its own each, their scatter is all that tells of the noise."""
    values = np.array(list(alone.values()))
    n = len(values)
    if n < FEWEST_ALONE:
        return ()
    rest = np.array([np.delete(values, at) for at in range(n)])
    errors = rest.std(axis=1, ddof=1) * math.sqrt(1 + 1 / (n - 1))
    return _effects(list(alone), Estimates(values - rest.mean(axis=1), errors, n - 2))


def _effects(names: Sequence[str | None], seen: Estimates, among: int | None = None) -> tuple[Effect, ...]:
    among = among or max(1, int(np.isfinite(seen.errors).sum()))
    widths, ps = seen.half_widths(among), seen.p_values()
    return tuple(
        Effect(
            case_id=name,
            size=_fraction(effect),
            low=_fraction(effect - width),
            high=_fraction(effect + width),
            p=min(1.0, among * float(p)) if math.isfinite(p) else None,
        )
        for name, effect, width, p in zip(names, seen.effects, widths, ps, strict=True)
    )


def _fraction(log: float) -> float | None:
    return math.expm1(log) if math.isfinite(log) else None


def _alone(seen: SessionData) -> dict[str, float]:
    """By case: log(its step in launches of its own / in shared ones)."""
    valid, timed = seen.valid, seen.timed
    shared = timed[timed["in_turns"]]
    own = valid[~valid["in_turns"] & valid["case_id"].isin(shared["case_id"])]
    if own.empty:
        return {}
    apart, together = fit(own).means, fit(shared).means
    return {case: apart[case] - together[case] for case in apart}
