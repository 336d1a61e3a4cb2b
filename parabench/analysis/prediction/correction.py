"""By what predictions are corrected: the likeliest values, where trainings of few ranks and priors tell them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from parabench.analysis.stats.quantiles import Numbers
from parabench.collectives import is_backends
from parabench.plan.case import Case


class Expected(NamedTuple):
    """Standard deviations. Of logarithms: of a step time that was measured; of how many times as long a rank works in a
    training as alone (a machine's speed changes between sessions), and collectives take as by themselves; and of how
    many times as long each takes beside the other. Of `Costs.calls`, itself."""

    step: float
    work: float
    travel: float
    slowed: float
    calls: float


EXPECTED = Expected(step=0.02, work=0.1, travel=0.2, slowed=0.3, calls=1.0)

# How much the cost of a call of one strategy and algorithm differs from that of others, as a share of it, and how much
# where more calls are made than in any training of the strategy: of held-out trainings on two real cores
# (docs/explanation/foresight.md).
OTHER_CALLS, MORE_CALLS = 0.35, 1.0

# By how many times computing and communicating are looked whether they slow each other down, before that is refined.
_COMPUTE, _COLLECTIVE = np.linspace(1.0, 2.0, 6), np.linspace(1.0, 4.0, 7)


class Contention(NamedTuple):
    """How many times as long computing takes while its rank communicates, and sending and receiving while it computes:
    both share cores, memory, or the multiprocessors of a GPU."""

    compute: float = 1.0
    collective: float = 1.0


ALONE = Contention()


class Correction(NamedTuple):
    """How many times as long a rank works in a training as alone, and collectives take as by themselves."""

    work: float = 1.0
    travel: float = 1.0


NONE = Correction()


class Costs(NamedTuple):
    """What a call costs the rank that calls, apart from its bytes, in units of what it takes with the fewest bytes
    that were measured on one node: of the `backend`'s own algorithms, and of our `own`, which run in Python."""

    backend: float = 0.0
    own: float = 0.0

    def of(self, algorithm: str) -> float:
        """What a call by an algorithm costs."""
        return self.backend if is_backends(algorithm) else self.own


FREE = Costs()


def kind_of(case: Case) -> tuple[str, bool, int]:
    """What trainings have in common of which a few tell as much as many: the strategy, whether an algorithm is the
    backend's, and the number of nodes."""
    return case.strategy, is_backends(case.algorithm), case.nodes


def expected_costs(device: str) -> Costs:
    """What calls are expected to cost before trainings tell: while Python sends from the rank's own process on a core
    of the CPU, the rank does not compute. Beside a GPU, which computes by itself, nothing."""
    return Costs(backend=0.0, own=1.0 if device == "cpu" else 0.0)


def calls_spread(case: Case, calls: int, trained: Mapping[Case, int], costs: Costs) -> float:
    """The standard deviation of what a call of a case of so many `calls` costs, in units of `Costs`; `trained` are the
    trainings that tell `costs`, and how many calls each has. Of algorithms of which no training tells it is what is
    EXPECTED."""
    alike = [each for each in trained if is_backends(each.algorithm) == is_backends(case.algorithm)]
    if not alike:
        return 0.0 if is_backends(case.algorithm) else EXPECTED.calls
    cost = costs.of(case.algorithm)
    if calls > max((trained[each] for each in alike if each.strategy == case.strategy), default=calls):
        return MORE_CALLS * cost
    same = any((each.strategy, each.algorithm) == (case.strategy, case.algorithm) for each in alike)
    return 0.0 if same else OTHER_CALLS * cost


def likeliest_contention(off: Callable[[Contention, Costs], float], prior: Costs) -> tuple[Contention, Costs]:
    """Where `off` adds up how far steps are off, as squares in units of what is expected: by how much computing and
    communicating slow each other down, and what calls cost."""

    def unlikely(contention: Contention, costs: Costs) -> float:
        slowed = sum((math.log(each) / EXPECTED.slowed) ** 2 for each in contention)
        calls = sum(((each - mean) / EXPECTED.calls) ** 2 for each, mean in zip(costs, prior, strict=True))
        return slowed + calls + off(contention, costs)

    def read(found: Numbers) -> tuple[Contention, Costs]:
        c, k, backend, own = map(float, found)
        return Contention(math.exp(max(0.0, c)), math.exp(max(0.0, k))), Costs(max(0.0, backend), max(0.0, own))

    starts = ((Contention(float(c), float(k)), prior) for c in _COMPUTE for k in _COLLECTIVE)
    contention, costs = min(starts, key=lambda each: unlikely(*each))
    begin = np.array([*np.log(contention), *costs])
    simplex = begin + np.vstack([np.zeros(4), np.diag([0.1, 0.1, 0.3, 0.3])])
    best = minimize(
        lambda found: unlikely(*read(found)),
        begin,
        method="Nelder-Mead",
        options={"xatol": 1e-3, "fatol": 1e-2, "initial_simplex": simplex},
    )
    return read(best.x)


def likeliest(off: Callable[[Correction], float]) -> Correction:
    """The same of how many times as long a rank works, and collectives take."""

    def unlikely(logs: Numbers) -> float:
        work, travel = map(float, logs)
        prior = (work / EXPECTED.work) ** 2 + (travel / EXPECTED.travel) ** 2
        return prior + off(Correction(math.exp(work), math.exp(travel)))

    best = minimize(unlikely, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-2})
    return Correction(*np.exp(best.x).tolist())


def squares(ratios: Sequence[float]) -> float:
    """Logarithms of predicted by measured steps in units of what is expected, squared and added up."""
    return math.fsum((math.log(each) / EXPECTED.step) ** 2 for each in ratios)
