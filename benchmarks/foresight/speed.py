"""How fast predictions are made: `python -m benchmarks.foresight.speed STORE`, of what `parabench run foresight` wrote.

Of each strategy among 64 ranks the predictions a second, with their intervals, and the simulations a second; then how
long one takes among 10,000 ranks.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from parabench.analysis.prediction.base import base_of
from parabench.analysis.prediction.correction import ALONE
from parabench.analysis.prediction.network import given_link
from parabench.analysis.prediction.predict import Predictor
from parabench.analysis.prediction.question import cases
from parabench.analysis.prediction.schedule import BETWEEN
from parabench.store.results import load

SECONDS = 1.0


def per_second(act: Callable[[], object]) -> float:
    """How often it can be done in a second, once it was done."""
    act()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        act()
        count += 1
    return count / (time.perf_counter() - began)


def main() -> None:
    base = base_of([load(Path(sys.argv[1]))])
    predictor = Predictor(base, {BETWEEN: given_link("25GB/s,20us")})
    for ranks in (64, 10_000):
        for case in cases(base, [ranks], {}):
            if predictor.predict(case).refused:
                continue
            computed = predictor.computed(case)
            whole = per_second(lambda case=case: predictor.predict(case))  # type: ignore[misc]
            alone = per_second(lambda case=case, of=computed: predictor._alone(case, of, ALONE))  # type: ignore[misc]
            print(f"{case.label}: {whole:,.0f} predictions a second, {alone:,.0f} simulations")


if __name__ == "__main__":
    main()
