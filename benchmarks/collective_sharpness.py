"""How much sharper algorithms are compared in launches that they share than in launches of their own.

    python -m benchmarks.collective_sharpness [LAUNCHES]

Native, ring and tree all-reduce between two ranks, LAUNCHES of each kind, alternately. Printed for each size and each
two algorithms: the standard deviation over launches of the logarithm of the ratio of their times, with launches of
their own and with shared ones, in percent; and what that saves: for the same certainty launches of their own have to be
so many times as many.
"""

from __future__ import annotations

import itertools
import sys

import numpy as np

from parabench.analysis.turns import compared
from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.plan.collective_case import CollectiveCase, size_text
from parabench.plan.collective_protocol import ROUNDS, CollectiveProtocol
from parabench.store.record import MIB, Launch, Status

ALGORITHMS = ("native", "ring", "tree")
CASES = tuple(
    CollectiveCase(
        op="all_reduce",
        algorithm=name,
        min_bytes=MIB // 16,
        max_bytes=16 * MIB,
        factor=16,
        device="cpu",
        backend="gloo",
    )
    for name in ALGORITHMS
)
DEADLINE_S = 600.0


def run(protocol: CollectiveProtocol, *cases: CollectiveCase) -> list[Launch]:
    """A launch of these cases: what each of them measured."""
    seen = launch(LaunchSpec(kind="collectives", cases=cases, protocol=protocol, deadline_s=DEADLINE_S))
    assert seen.status is Status.OK, seen.failure
    return seen.arms or [seen]


def main() -> None:
    launches = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    together = CollectiveProtocol(rounds=ROUNDS)
    own: dict[int, list[np.ndarray]] = {size: [] for size in CASES[0].sizes}
    shared: dict[int, list[np.ndarray]] = {size: [] for size in CASES[0].sizes}
    random = np.random.default_rng(0)
    for number in range(launches):
        order = [CASES[at] for at in random.permutation(len(CASES))]
        for alone in (True, False):
            arms = [arm for case in order for arm in run(together.alone(), case)] if alone else run(together, *order)
            by_case = {arm.case: arm for arm in arms}
            for size in own:
                batches = np.array([by_case[case].call_durations(size) for case in CASES])
                if alone:
                    own[size].append(np.log(batches.mean(axis=1)))
                else:
                    shared[size].append(compared(np.log(batches)))
        print(f"# {number + 1} of {launches}", file=sys.stderr, flush=True)
    for size, (one, other) in itertools.product(own, itertools.combinations(range(len(CASES)), 2)):
        apart, inside = (float(np.std([row[one] - row[other] for row in rows[size]], ddof=1)) for rows in (own, shared))
        print(
            f"{size_text(size):>8}  {ALGORITHMS[one]:>6} / {ALGORITHMS[other]:<6}  own {100 * apart:5.1f} %  "
            f"shared {100 * inside:5.1f} %  {(apart / inside) ** 2:5.1f} x launches",
            flush=True,
        )


if __name__ == "__main__":
    main()
