"""Interleave DDP configurations with known delays, each twice, and compare the answers with the truth.

    python -m benchmarks.known_delays [SESSIONS] [LAUNCHES] [ROUNDS]

The delays are real (`benchmarks.slowed_model`). One long session is read as SESSIONS independent ones of LAUNCHES
launches each. Prints how often the set of the best contained a configuration without a delay, the mean error of the
estimates, and the number of pairs of copies that differed significantly at 95%.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.ratios import mean_ratio
from benchmarks.slowed_model import Delay
from parabench import Model
from parabench.analysis.session import session_data
from parabench.analysis.stats.contrasts import fit
from parabench.store.results import load
from parabench.strategies.base import ParallelModel, StrategyContext
from parabench.strategies.data_parallel import ddp

DELAYS = {"none": 0.0, "one": 0.01, "two": 0.02, "five": 0.05}
COPIES = ("", "_again")
SUITE = f'''"""Which has no delay?"""
from parabench import sweep
CASES = sweep(
    strategy={tuple(f"benchmarks.known_delays:{name}{copy}" for name in DELAYS for copy in COPIES)},
    world_size=2,
    seq_len=32,
)
'''


def _delayed(share: float) -> Callable[[Model, StrategyContext], ParallelModel]:
    def strategy(model: Model, context: StrategyContext) -> ParallelModel:
        parallel = ddp(model, context)
        parallel.module.register_forward_pre_hook(Delay(share))
        return parallel

    return strategy


none, one, two, five = map(_delayed, DELAYS.values())
none_again, one_again, two_again, five_again = map(_delayed, DELAYS.values())


def main(sessions: int = 50, launches: int = 4, rounds: int = 12) -> None:
    with tempfile.TemporaryDirectory() as name:
        suite = Path(name, "suite.py")
        suite.write_text(SUITE)
        command = [sys.executable, "-m", "parabench", "run", str(suite), "--rounds", str(rounds), "--instrumented", "0"]
        command += ["--launches", str(sessions * launches), "--out", name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        timed = session_data(load(Path(name, "results.db"))).timed
    timed = timed[timed["in_turns"]]
    timed = timed.assign(name=timed["strategy"].str.rpartition(":")[2])
    name_of = dict(zip(timed["case"], timed["name"], strict=True))
    held, apart = 0, 0
    found: dict[str, list[float]] = {name: [] for name in DELAYS}
    for first in range(1, sessions * launches, launches):
        own = timed[timed["repetition"].between(first, first + launches - 1)]
        effects = fit(own)
        means = {name_of[case]: mean for case, mean in effects.means.items()}
        near = {name_of[case] for case in effects.indistinguishable(min(effects.cases, key=effects.means.__getitem__))}
        held += sum(f"none{copy}" in near for copy in COPIES)
        default = np.mean([means[f"none{copy}"] for copy in COPIES])
        logs = {name: np.log(one["step_s"].to_numpy()) for name, one in own.groupby("name")}
        for name, delay in DELAYS.items():
            found[name].append(np.mean([means[f"{name}{copy}"] for copy in COPIES]) - default - np.log1p(delay))
            copies = mean_ratio(logs[f"{name}{COPIES[1]}"] - logs[name])
            apart += not copies.low <= 1 <= copies.high
    print(f"a configuration without a delay is in the set of the best in {held} of {len(COPIES) * sessions}")
    for name, delay in DELAYS.items():
        if delay:
            print(f"a delay of {delay:.0%}: estimate / truth {mean_ratio(found[name])}")
    print(f"two copies differ significantly in {apart} of {len(DELAYS) * sessions} pairs")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
