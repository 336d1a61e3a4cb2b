"""Whether the carry-over test finds what disturbs the next turn, and finds nothing between ordinary configurations.

    python -m benchmarks.carry_over messy [SESSIONS [MESS ...]]
    python -m benchmarks.carry_over ordinary [LAUNCHES] [ROUNDS]

`messy`: sessions of the two shared launches with which a race begins, turns as long as in any race, in which two
ordinary cases take turns with one that leaves a mess behind after each of its steps: it fills the allocator's free
lists, keeps a thread busy into the next turn, or evicts the caches. It is caught where the test names it, in the turn
after it or in the first step, which does not count; one whose mess is over by then changes no answer. As many sessions
with a case that does nothing of it tell the false alarms.

`ordinary`: eight pairs with PyTorch's default, in one cohort. Their ratios from short turns, from turns four times as
long and from launches of their own, each with its 95 % interval over launches. Launches of short turns and of long ones
follow one another in one session, so that both meet the same machine; printed is also by how much they differ, block by
block, and whether launches of their own, a session of their own, agree with the short ones within both intervals.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import stdtrit

from parabench import Model
from parabench.analysis.carry_over import ALPHA, CarryOver, carry_over
from parabench.analysis.session import SessionData, session_data
from parabench.store.results import load
from parabench.strategies.base import ParallelModel, StrategyContext, adamw
from parabench.strategies.data_parallel import ddp

# Blocks that a freed heap is cut into: the next large allocation has to look through all that are free.
BLOCKS = 40_000
BUSY_S = 0.08
# Twice the last level of the caches of this machine.
SWEPT_BYTES = 64 * 2**20

_held: list[bytes] = []
_swept = np.zeros(SWEPT_BYTES // 8)


def _fill_free_lists(*_: Any) -> None:
    """Every second block is free, and none can be joined with the next."""
    _held.clear()
    _held.extend(bytes(1100 + 16 * (at % 150)) for at in range(BLOCKS))
    del _held[::2]


def _keep_busy(*_: Any) -> None:
    def work() -> None:
        until, matrix = time.perf_counter() + BUSY_S, torch.rand(128, 128)
        while time.perf_counter() < until:
            matrix @ matrix

    threading.Thread(target=work, daemon=True).start()


def _evict(*_: Any) -> None:
    np.add(_swept, 1.0, out=_swept)


def _leaving(mess: Callable[..., None]) -> Callable[[Model, StrategyContext], ParallelModel]:
    """DDP after each of whose steps there is a mess."""

    def strategy(model: Model, context: StrategyContext) -> ParallelModel:
        parallel = ddp(model, context)
        optimizer = adamw(parallel.module.parameters(), fused=context.case.fused)
        optimizer.register_step_post_hook(mess)
        return replace(parallel, optimizer=optimizer)

    return strategy


filling, busy, evicting, clean = map(_leaving, (_fill_free_lists, _keep_busy, _evict, lambda *_: None))

MESSES = ("filling", "busy", "evicting", "clean")

MESSY = """\"\"\"Is it caught?\"\"\"
from parabench import sweep
COMMON = dict(model="toy", world_size=2)
CASES = [
    sweep(strategy="ddp", bucket_mib=(1, 25), **COMMON),
    sweep(strategy="benchmarks.carry_over:{name}", **COMMON),
]
"""
ORDINARY = """\"\"\"Do ratios depend on how long turns are?\"\"\"
from parabench import sweep
COMMON = dict(model="gpt-nano", world_size=2, seq_len=32)
CASES = [
    sweep(strategy="ddp", bucket_mib=(None, 0.25, 1), **COMMON),
    sweep(strategy="ddp", algorithm=("ring", "tree", "halving_doubling"), **COMMON),
    sweep(strategy=("fsdp", "zero1", "tp"), **COMMON),
]
"""


# A `parabench` whose short turns are four times as long in every second shared launch: those of even blocks.
EVERY_SECOND_LONG = """
from dataclasses import replace
from parabench.cli import main
from parabench.session import runner
chosen = runner.turns_protocol
def alternating(protocol, seed, block, *more):
    made = chosen(protocol, seed, block, *more)
    return made if block % 2 else replace(made, own=tuple(4 * timed for timed in made.own))
runner.turns_protocol = alternating
main()
"""


def run(suite: str, out: Path, *options: str, program: tuple[str, str] = ("-m", "parabench")) -> SessionData:
    """A session of the suite with these options."""
    path = out.with_suffix(".py")
    path.write_text(suite)
    command = [sys.executable, *program, "run", str(path), *options, "--out", str(out)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(done.stdout)
    return session_data(load(out / "results.db"))


def named(tested: CarryOver) -> dict[str, list[str | None]]:
    """By test the cases that it names by themselves."""
    return {
        test: [each.case_id for each in effects if each.p is not None and each.p <= ALPHA]
        for test, effects in tested.tests.items()
    }


def messy(sessions: int = 20, *names: str) -> None:
    for name in names or MESSES:
        caught: Counter[str] = Counter()
        sizes: list[float] = []
        findings: list[str] = []
        for _ in range(sessions):
            with tempfile.TemporaryDirectory() as folder:
                options = ("--budget", "0.01", "--steps", "10", "--instrumented", "0")
                seen = run(MESSY.format(name=name), Path(folder) / "session", *options)
                tested = seen.once(carry_over)
                (case,) = {each for each in seen.cases["case_id"] if name in each}
            assert tested is not None
            tests = named(tested)
            caught.update(test for test in ("after", "settling") if case in tests.get(test, []))
            caught["caught"] += any(case in tests.get(test, []) for test in ("after", "settling"))
            caught["a finding"] += bool(tested.found)
            findings += [f"{test} {100 * (each.size or 0.0):+.1f} %" for test, each in tested.found.items()]
            sizes += [each.size or 0.0 for each in tested.tests["settling"] if each.case_id == case]
        told = ", ".join(f"{test} {caught[test]}" for test in ("caught", "after", "settling", "a finding"))
        print(f"{name} ({sessions} sessions): {told}; first step after it {100 * np.median(sizes):+.1f} %", flush=True)
        print(f"  findings: {', '.join(findings) or 'none'}", flush=True)


def ratio(logs: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The mean and the half-width of its 95 % interval."""
    return float(logs.mean()), float(stdtrit(len(logs) - 1, 0.975) * logs.std(ddof=1) / math.sqrt(len(logs)))


def ordinary(launches: int = 12, rounds: int = 40) -> None:
    with tempfile.TemporaryDirectory() as folder:  # stores are read when they are asked
        at = Path(folder)
        both = ("--launches", str(2 * launches), "--rounds", str(rounds))
        turns = run(ORDINARY, at / "turns", *both, program=("-c", EVERY_SECOND_LONG))
        own = run(ORDINARY, at / "own", "--launches", str(launches), "--instrumented", "0")
        _compare(turns, own)


def _compare(turns: SessionData, own: SessionData) -> None:
    """Print each pair's ratios, and whether they agree."""
    labels = dict(zip(own.cases["case_id"], own.cases["label"], strict=True))
    shared = _logs(turns.timed[turns.timed["in_turns"]])
    numbers = {"short": shared[shared.index % 2 == 1], "long": shared[shared.index % 2 == 0], "own": _logs(own.timed)}
    default = next(case for case, label in labels.items() if label == "ddp native, 2 ranks")
    for case in labels.keys() - {default}:
        logs = {kind: (of[case] - of[default]).dropna().to_numpy() for kind, of in numbers.items()}
        said = [f"{kind} {_said(*ratio(values))}" for kind, values in logs.items()]
        pairs = min(len(logs["short"]), len(logs["long"]))
        longer, width = ratio(logs["long"][:pairs] - logs["short"][:pairs])
        short, other = ratio(logs["short"]), ratio(logs["own"])
        print(
            f"{labels[case]}: {'; '.join(said)}; long against short {_said(longer, width)}: "
            f"{'agree' if abs(longer) <= width else 'differ'}; own: "
            f"{'agree' if abs(other[0] - short[0]) <= math.hypot(other[1], short[1]) else 'differ'}",
            flush=True,
        )
    tested = turns.once(carry_over)
    assert tested is not None
    print(f"found: {dict(tested.found) or 'nothing'}")


def _logs(timed: Any) -> Any:
    """The logarithms of launches' numbers, a row a block and a column a case."""
    return np.log(timed.pivot_table(index="block", columns="case_id", values="launch_step_s"))


def _said(mean: float, width: float) -> str:
    return f"{100 * math.expm1(mean):+.1f} % ±{100 * width:.1f}"


if __name__ == "__main__":
    given = [int(word) if word.isdecimal() else word for word in sys.argv[2:]]
    {"messy": messy, "ordinary": ordinary}[sys.argv[1]](*given)
