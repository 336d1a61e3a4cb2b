"""Is the truth in the answer? DDP arms whose steps are longer by a known share take turns, each twice.

    python -m benchmarks.known_delays [SESSIONS] [LAUNCHES] [ROUNDS]

The delay is real: after each optimizer step a rank keeps its core busy for that share of what the step took so far, and
tells for how long it did. One long session is read as SESSIONS of LAUNCHES launches each, of which none knows the
others. Printed: how often the set of the best held an arm without a delay; how far estimates were in the mean from what
the ranks have really waited, against the mean of both arms without a delay; and how many pairs of two copies differed
significantly at 95 %.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit
from torch import nn

from parabench import Model
from parabench.analysis.session import SessionData, session_data
from parabench.analysis.stats.block_model import fit
from parabench.store.results import load
from parabench.strategies.base import ParallelModel, StrategyContext, adamw
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


def run(suite: str, out: Path, *options: str) -> SessionData:
    """Run a session of the suite with these options."""
    path = out.with_suffix(".py")
    path.write_text(suite)
    command = [sys.executable, "-m", "parabench", "run", str(path), *options, "--out", str(out)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(done.stdout)
    return session_data(load(out / "results.db"))


def ratio(logs: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return the mean and the half-width of its 95% interval."""
    return float(logs.mean()), float(stdtrit(len(logs) - 1, 0.975) * logs.std(ddof=1) / math.sqrt(len(logs)))


class Delay:
    """Begins to count where a step's forward pass begins, and waits where its optimizer has ended."""

    def __init__(self, share: float) -> None:
        self.share, self.began = share, 0.0
        self.waited_s, self.worked_s = 0.0, 0.0

    def begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.began = time.perf_counter()

    def wait(self, *_: Any) -> None:
        now = time.perf_counter()
        until = now + self.share * (now - self.began)
        while (ended := time.perf_counter()) < until:
            pass
        self.waited_s += ended - now
        self.worked_s += now - self.began


def _delayed(share: float) -> Callable[[Model, StrategyContext], ParallelModel]:
    def strategy(model: Model, context: StrategyContext) -> ParallelModel:
        delay = Delay(share)
        parallel = ddp(model, context)
        parallel.module.register_forward_pre_hook(delay.begin)
        optimizer = adamw(parallel.module.parameters(), fused=context.case.fused)
        optimizer.register_step_post_hook(delay.wait)
        facts = parallel.facts
        told = lambda: facts() | {"delay": delay.waited_s / delay.worked_s}  # noqa: E731
        return replace(parallel, optimizer=optimizer, facts=told)

    return strategy


none, one, two, five = map(_delayed, DELAYS.values())
none_again, one_again, two_again, five_again = map(_delayed, DELAYS.values())


def main(sessions: int = 50, launches: int = 4, rounds: int = 12) -> None:
    with tempfile.TemporaryDirectory() as folder:
        options = ("--rounds", str(rounds), "--launches", str(sessions * launches), "--instrumented", "0")
        seen = run(SUITE, Path(folder) / "session", *options)
        timed = seen.timed[seen.timed["in_turns"]]
        told = dict(zip(seen.results.launch_columns["id"], seen.results.launch_columns["facts"], strict=True))
        timed = timed.assign(delay=[json.loads(told[launch])["delay"] for launch in timed["launch_id"]])
    name_of = {
        case: strategy.rpartition(":")[2] for case, strategy in zip(timed["case"], timed["strategy"], strict=True)
    }
    held, apart, pairs = 0, 0, 0
    found: dict[str, list[float]] = {name: [] for name in DELAYS}
    for first in range(1, sessions * launches, launches):
        own = timed[timed["repetition"].between(first, first + launches - 1)]
        effects = fit(own)
        means = {name_of[case]: mean for case, mean in effects.means.items()}
        near = {name_of[case] for case in effects.indistinguishable(min(effects.cases, key=effects.means.__getitem__))}
        held += sum(f"none{copy}" in near for copy in COPIES)
        default = np.mean([means[f"none{copy}"] for copy in COPIES])
        logs = {name_of[case]: np.log(one["step_s"].to_numpy()) for case, one in own.groupby("case")}
        waited = np.log1p(own.groupby("case")["delay"].mean()).rename(name_of)
        for name in DELAYS:
            found[name] += [float(means[f"{name}{copy}"] - default - waited[f"{name}{copy}"]) for copy in COPIES]
            difference, width = ratio(logs[f"{name}{COPIES[1]}"] - logs[name])
            apart, pairs = apart + (abs(difference) > width), pairs + 1
    print(f"{sessions} sessions of {launches} launches of {rounds} rounds of {len(name_of)} arms")
    print(f"an arm without a delay is in the set of the best in {held} of {len(COPIES) * sessions}")
    for name, delay in DELAYS.items():
        if delay:
            error, width = ratio(np.reshape(found[name], (sessions, -1)).mean(axis=1))
            print(f"a delay of {100 * delay:g} %: error in the mean {100 * error:+.2f} % (±{100 * width:.2f})")
    print(f"two copies differ significantly in {apart} of {pairs} pairs")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
