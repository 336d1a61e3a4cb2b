"""The training run of a trial: DDP over a ring, with a fault in one rank of one launch in one phase.

The environment variable `FAULT` has the `Fault` as JSON. Each rank counts its launches in a separate file.
"""

import itertools
import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from parabench import Model
from parabench.collectives.algorithm import Algorithm
from parabench.collectives.ring import RING
from parabench.launch import rank as rank_module
from parabench.strategies.base import ParallelModel, StrategyContext
from parabench.strategies.data_parallel import ddp

FAULT, FOLDER, EVERY = "PARABENCH_FAULT", "PARABENCH_FAULT_FOLDER", "PARABENCH_FAULT_EVERY"

# The phases of a rank, in order. Steps are counted from the first warm-up step.
JOINING, BUILDING, STEPPING, FACTS, HANDING_OVER = "joining", "building", "stepping", "telling facts", "handing over"
PHASES = (JOINING, BUILDING, STEPPING, FACTS, HANDING_OVER)

# The kinds of faults.
RAISES, LEAVES = "raises", "leaves"
SIGNALS = ("SIGKILL", "SIGSEGV", "SIGSTOP")
KINDS = (*SIGNALS, LEAVES, RAISES)

# The rank takes more memory than the control group allows whose folder is in the variable MEMORY_GROUP.
TAKES_MEMORY = "takes memory"
MEMORY_GROUP = "PARABENCH_FAULT_MEMORY"


@dataclass(frozen=True, slots=True)
class Fault:
    """`kind` happens to `rank` in launch number `launch` (from 0, launches of several ranks only) in `phase`; for
    STEPPING, in step `step`.
    """

    kind: str
    phase: str
    rank: int = 1
    launch: int = 0
    step: int = 0

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the variables that describe the fault to the ranks, which count launches in `folder`."""
        return {FAULT: json.dumps(asdict(self)), FOLDER: str(folder)}


def _fault() -> Fault | None:
    text = os.environ.get(FAULT)
    return Fault(**json.loads(text)) if text else None


@cache
def _launch() -> int:
    """Return the number of this rank's launch. Each rank of a launch is a new process."""
    path = Path(os.environ[FOLDER]) / f"launches{os.environ['RANK']}"
    with path.open("a") as file:
        file.write(".")
    return len(path.read_text()) - 1


def _reach(phase: str, step: int = 0) -> None:
    """Reach a phase or step, and execute the fault if it is planned here."""
    fault = _fault() if "RANK" in os.environ else None  # the driver tries the algorithm too
    if fault is None or fault.launch != _launch():
        return
    if (fault.phase, fault.step) != (phase, step) or fault.rank != int(os.environ["RANK"]):
        return
    if fault.kind == TAKES_MEMORY:
        _take_memory()
    if fault.kind == RAISES:
        raise RuntimeError("a fault was injected here")
    if fault.kind == LEAVES:
        os._exit(0)
    if fault.kind in SIGNALS:
        os.kill(os.getpid(), signal.Signals[fault.kind])
    # A signal may arrive after the call returned.
    if fault.kind in SIGNALS:
        threading.Event().wait()


def _take_memory() -> None:
    """Join the control group, and fill memory until the kernel ends this process."""
    (Path(os.environ[MEMORY_GROUP]) / "cgroup.procs").write_text(str(os.getpid()))
    taken = []
    while True:
        taken.append(bytearray(os.urandom(1)) * 2**24)


def ring(ranks_per_node: int | None) -> Algorithm:
    """Return the ring. A rank calls this when it joins its group."""
    _reach(JOINING)
    return RING


def subject(model: Model, context: StrategyContext) -> ParallelModel:
    """Return DDP with a fault in any of the other phases."""
    _reach(BUILDING)
    parallel = ddp(model, context)
    steps = itertools.count()
    parallel.module.register_forward_pre_hook(lambda *_: _reach(STEPPING, next(steps)))

    def facts() -> dict[str, Any]:
        _reach(FACTS)
        _strike_in(HANDING_OVER)
        return parallel.facts()

    return replace(parallel, facts=facts)


def crashing(model: Model, context: StrategyContext) -> ParallelModel:
    """Return DDP whose rank 1 is killed in its third step of every launch."""
    return _struck(model, context, lambda: os.kill(os.getpid(), signal.SIGKILL))


def hanging(model: Model, context: StrategyContext) -> ParallelModel:
    """Return DDP whose rank 1 hangs in its third step of every launch."""
    return _struck(model, context, threading.Event().wait)


def _struck(model: Model, context: StrategyContext, fault: Callable[[], object]) -> ParallelModel:
    parallel = ddp(model, context)
    steps = itertools.count()
    if context.rank == 1:
        parallel.module.register_forward_pre_hook(lambda *_: fault() if next(steps) == 2 else None)
    return parallel


def wrong(model: Model, context: StrategyContext) -> ParallelModel:
    """Return DDP that computes wrong results in every n-th launch: its inputs are shifted by a token."""
    parallel = ddp(model, context)
    every = int(os.environ[EVERY])
    if _launch() % every == every - 1:
        parallel.module.register_forward_pre_hook(lambda _, given: tuple(each.roll(1, -1) for each in given))
    return parallel


def _strike_in(phase: str) -> None:
    """Let the rank reach the phase after it wrote its report, and before the report has its final name."""
    whole: Callable[[Path, str], None] = rank_module.hand_over_file

    def hand_over(path: Path, text: str) -> None:
        path.with_suffix(".part").write_text(text[: len(text) // 2])
        if '"error": null' in text:
            _reach(phase)
        whole(path, text)

    rank_module.hand_over_file = hand_over
