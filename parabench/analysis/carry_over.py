"""Does a configuration's turn depend on which configuration had its turn before?

Every session with shared launches is tested. The model is that of first-order residual effects in a crossover trial:
log(turn) = launch and round + launch and configuration + the configuration before + whether a round starts. Orders are
balanced by Williams' designs, so that each configuration follows each other one equally often. Sizes are fractions of
a step. E. J. Williams, "Experimental designs balanced for the estimation of residual effects of treatments", 1949;
B. Jones and M. G. Kenward, "Design and Analysis of Cross-Over Trials", 3rd ed., 2014.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from parabench.analysis.session import SessionData
from parabench.analysis.stats.block_model import SHARP_ENOUGH
from parabench.analysis.stats.crossover import Table, estimate
from parabench.analysis.text import format
from parabench.analysis.turns import SharedLaunch, shared_launches_of
from parabench.plan.turns import orders

# The chance of a warning if nothing interferes, as in the regression gate. With the outliers of a shared machine it
# stays below 5% (tests/unit/analysis/test_carry_over.py).
ALPHA = 0.01


@dataclass(frozen=True)
class Effect:
    """How much longer a step is in the turns after one of this configuration, as a fraction.

    `low` to `high` is the 95% interval for all configurations at once, and `p` is adjusted for them. `None` if the
    launches are too few to tell.
    """

    case_id: str
    size: float | None
    low: float | None
    high: float | None
    p: float | None


@dataclass(frozen=True)
class CarryOver:
    """The effect of each configuration on the turn after it, over `launches` shared launches.

    `last` are the configurations of the last launch. `found` is the most significant effect, if it is below ALPHA.
    """

    launches: int
    last: tuple[str, ...]
    effects: tuple[Effect, ...]
    found: Effect | None

    @property
    def matters(self) -> bool:
        """Whether the effect that was found is as large as differences that are reported."""
        return self.found is not None and abs(self.found.size or 0.0) > SHARP_ENOUGH


def carry_over(seen: SessionData) -> CarryOver | None:
    """Test a session. Return `None` if no configurations shared a launch."""
    launches = seen.once(shared_launches_of)
    return judge(launches) if launches else None


def judge(launches: Sequence[SharedLaunch]) -> CarryOver:
    """Test shared launches."""
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
            # The first turn of a round follows a pause, in which garbage is collected.
            before[arm, number, -1] = float(earlier != number)
        tables.append(Table(each.turns, before[list(each.rows)]))
    estimates = estimate(tables, len(names))
    among = max(1, int(np.isfinite(estimates.errors).sum()))
    effects = tuple(
        Effect(
            case_id=name,
            size=format.number_or_none(math.expm1(effect)),
            low=format.number_or_none(math.expm1(effect - width)),
            high=format.number_or_none(math.expm1(effect + width)),
            p=min(1.0, among * float(p)) if math.isfinite(p) else None,
        )
        for name, effect, width, p in zip(
            names, estimates.effects, estimates.half_widths(among), estimates.p_values(), strict=True
        )
    )
    significant = [each for each in effects if each.p is not None and each.p <= ALPHA]
    return CarryOver(
        launches=len(launches),
        last=tuple(launches[-1].cases),
        effects=effects,
        found=min(significant, key=lambda each: each.p or 0.0, default=None),
    )


def found_sentence(found: Effect, labels: Mapping[str, str]) -> str:
    """Describe the effect that was found."""
    size, interval = found.size or 0.0, ""
    if found.low is not None and found.high is not None:
        interval = f" (95 %: {format.signed(found.low)} to {format.signed(found.high)})"
    slower = f"{format.percent(abs(size))} {'slower' if size > 0 else 'faster'}"
    return (
        "Interference between interleaved configurations: the turn after one of "
        f"{labels.get(found.case_id, found.case_id)} is {slower} than after the others{interval}."
    )


def sentence(of: CarryOver, labels: Mapping[str, str]) -> str:
    """Describe the effect that was found, or how much is ruled out."""
    if of.found:
        return found_sentence(of.found, labels)
    launches = format.count(of.launches, "shared launch")
    measured = [each for each in of.effects if each.case_id in of.last]
    ends = [abs(end) for each in measured for end in (each.low, each.high) if end is not None]
    among = "" if len(measured) == len(of.effects) else "among the configurations of the last, "
    depends = f"{among}a turn depends on the configuration before it by less than"
    bound = f": {depends} {format.percent(max(ends))} (95 %)" if ends else ""
    return f"No interference between interleaved configurations was found in {launches}{bound}."
