"""What the ranks of a trial train: DDP over a ring, in which a fault strikes one rank of one launch in one phase.

Which, says `FAULT` in the environment, as JSON of a `Fault`. Ranks count the launches that they take part in with a
file each, so no two of them have to agree.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
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

# In the order in which a rank comes to them. The steps in between are counted from the first warm-up step.
JOINING, BUILDING, STEPPING, FACTS, HANDING_OVER = "joining", "building", "stepping", "telling facts", "handing over"
PHASES = (JOINING, BUILDING, STEPPING, FACTS, HANDING_OVER)

# By what a rank can be hit.
RAISES, LEAVES, HANGS = "raises", "leaves", "hangs"
SIGNALS = ("SIGKILL", "SIGSEGV", "SIGSTOP")
KINDS = (*SIGNALS, LEAVES, RAISES)

# What a rank does besides: it goes on as if nothing were; goes on as a daemon, in a process that the driver did not
# start; loses all its descriptors; or takes more memory than its control group, whose folder is in MEMORY_GROUP, has.
GOES_ON, DAEMONISES, CLOSES, TAKES_MEMORY = "goes on", "daemonises", "closes", "takes memory"
MEMORY_GROUP = "PARABENCH_FAULT_MEMORY"

# What it can leave behind, all of it deaf to SIGTERM: a child; a daemon in a session of its own; a copy of itself, that
# holds all open that it had open; and fifty of those.
LEAVINGS = ("child", "daemon", "copy", "fifty copies")
# The file that says that it has.
LEFT = "left"


@dataclass(frozen=True, slots=True)
class Fault:
    """`kind` strikes `rank` in launch number `launch` (of those of several ranks, from 0), when it is in `phase`, for
    STEPPING in step `step`; with `launch` None in the last of every `every` launches. Processes that it `leaves`, of
    LEAVINGS, are started first."""

    kind: str
    phase: str
    rank: int = 1
    launch: int | None = 0
    step: int = 0
    every: int = 1
    leaves: tuple[str, ...] = ()

    def environment(self, folder: Path) -> dict[str, str]:
        """What tells the ranks of it; they count launches in `folder`."""
        return {FAULT: json.dumps(asdict(self)), FOLDER: str(folder)}

    def strikes(self, launch: int) -> bool:
        return launch % self.every == self.every - 1 if self.launch is None else launch == self.launch


def _fault() -> Fault | None:
    text = os.environ.get(FAULT)
    return Fault(**json.loads(text)) if text else None


@cache
def _launch() -> int:
    """Which launch this is of this rank: each is a process of its own."""
    path = Path(os.environ[FOLDER]) / f"launches{os.environ['RANK']}"
    with path.open("a") as file:
        file.write(".")
    return len(path.read_text()) - 1


def _reach(phase: str, step: int = 0) -> None:
    """This rank has come so far: meet the fault, where it strikes here."""
    fault = _fault() if "RANK" in os.environ else None  # the driver tries the algorithm too
    if fault is None or not fault.strikes(_launch()):
        return
    if (fault.phase, fault.step) != (phase, step) or fault.rank != int(os.environ["RANK"]):
        return
    for what in fault.leaves:
        _leave(what)
    if fault.leaves:
        (Path(os.environ[FOLDER]) / LEFT).touch()
    if fault.kind == DAEMONISES:
        _daemonise()
    if fault.kind == CLOSES:
        os.closerange(0, 4096)
    if fault.kind == TAKES_MEMORY:
        _take_memory()
    if fault.kind == RAISES:
        raise RuntimeError("a fault was injected here")
    if fault.kind == LEAVES:
        os._exit(0)
    if fault.kind == HANGS:
        threading.Event().wait()
    if fault.kind in SIGNALS:
        os.kill(os.getpid(), signal.Signals[fault.kind])
    # A signal reaches a thread of this process, not always before the call returns.
    if fault.kind in SIGNALS:
        threading.Event().wait()


def _leave(what: str) -> None:
    """Start what does not end when it is asked to."""
    if what in ("copy", "fifty copies"):
        for _ in range(1 if what == "copy" else 50):
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(1000)
                os._exit(0)
        return
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
    subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=what == "daemon")


def _daemonise() -> None:
    """Go on in a process whose parents have ended, in a session of its own."""
    for _ in range(2):
        if os.fork():
            os._exit(0)
        with suppress(PermissionError):  # the leader of a session already
            os.setsid()


def _take_memory() -> None:
    """Join the control group, and fill memory until the kernel ends this process."""
    (Path(os.environ[MEMORY_GROUP]) / "cgroup.procs").write_text(str(os.getpid()))
    taken = []
    while True:
        taken.append(bytearray(os.urandom(1)) * 2**24)


def ring(ranks_per_node: int | None) -> Algorithm:
    """The ring: this is called when a rank is about to join its group."""
    _reach(JOINING)
    return RING


def subject(model: Model, context: StrategyContext) -> ParallelModel:
    """DDP that comes to all other phases."""
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
    """DDP whose rank 1 is killed in its third step, in every launch."""
    return _struck(model, context, lambda: os.kill(os.getpid(), signal.SIGKILL))


def hanging(model: Model, context: StrategyContext) -> ParallelModel:
    """DDP whose rank 1 waits for ever in its third step, in every launch."""
    return _struck(model, context, threading.Event().wait)


def _struck(model: Model, context: StrategyContext, fault: Callable[[], object]) -> ParallelModel:
    parallel = ddp(model, context)
    steps = itertools.count()
    if context.rank == 1:
        parallel.module.register_forward_pre_hook(lambda *_: fault() if next(steps) == 2 else None)
    return parallel


def wrong(model: Model, context: StrategyContext) -> ParallelModel:
    """DDP that computes something else in the last of every so many launches: its inputs are shifted by a token."""
    parallel = ddp(model, context)
    every = int(os.environ[EVERY])
    if _launch() % every == every - 1:
        parallel.module.register_forward_pre_hook(lambda _, given: tuple(each.roll(1, -1) for each in given))
    return parallel


def _strike_in(phase: str) -> None:
    """Once the report of this rank is written, but not yet where it belongs, it reaches the phase."""
    whole: Callable[[Path, str], None] = rank_module.hand_over_file

    def hand_over(path: Path, text: str) -> None:
        path.with_suffix(".part").write_text(text[: len(text) // 2])
        if '"error": null' in text:
            _reach(phase)
        whole(path, text)

    rank_module.hand_over_file = hand_over
