"""Fresh groups of processes, on torch elastic with a fork server: the one seam through which anything is launched.

The fork server imports torch once; each launch forks its ranks from it, which is what makes a launch cheap.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from torch._C._distributed_c10d import HashStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from parabench.interrupt import Interrupted, signals_restored, watched

PRELOAD = "parabench.preload"
PR_SET_CHILD_SUBREAPER = 36

# How often torch elastic looks at its ranks; on average half of it is added to a launch.
MONITOR_INTERVAL_S = 0.01

# Ranks that are told to stop do so at once; torch elastic would give a stopped one 30 s before it is killed.
SHUTDOWN_TIMEOUT_S = 2

# What a hanging rank gets to write down its stack before it is ended.
STACK_GRACE_S = 0.5

# Each sets its own level, so silencing a parent would not do.
TALKATIVE = (
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.multiprocessing.spawn",
)


class OneNode(RendezvousHandler):
    """A rendezvous with nobody: one agent, an in-memory store, nothing that listens."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._run_id = parameters.run_id

    def get_backend(self) -> str:  # noqa: D102 - RendezvousHandler's
        return "parabench-one-node"

    @property
    def use_agent_store(self) -> bool:  # noqa: D102
        return False

    def next_rendezvous(self) -> RendezvousInfo:  # noqa: D102
        return RendezvousInfo(HashStore(), 0, 1, RendezvousStoreInfo("127.0.0.1", 0))

    def is_closed(self) -> bool:  # noqa: D102
        return False

    def set_closed(self) -> None:  # noqa: D102
        pass

    def num_nodes_waiting(self) -> int:  # noqa: D102
        return 0

    def get_run_id(self) -> str:  # noqa: D102
        return self._run_id

    def shutdown(self) -> bool:  # noqa: D102
        return True


@dataclass(frozen=True, slots=True)
class Ended:
    """How a group of ranks ended. `rank` and `signal` tell of the first that torch elastic saw fail."""

    ok: bool
    hung: bool = False
    rank: int | None = None
    signal: str | None = None


def start_server() -> None:
    """Start the fork server, once per driver, and wait until it has imported: no launch's time includes that."""
    if "parabench-one-node" not in rendezvous_handler_registry._registry:
        rendezvous_handler_registry.register("parabench-one-node", OneNode)
        # Their messages are for people who run torchrun; what they say of a failure is in our record.
        for name in TALKATIVE:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        # What a rank starts and leaves behind becomes the driver's child, and is ended with the launch.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SHUTDOWN_TIMEOUT_S))
        multiprocessing.set_forkserver_preload([PRELOAD])
        with signals_restored():
            # Ctrl-C in a terminal reaches the server too; in the seconds of its imports it would die with a traceback.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            multiprocessing.forkserver.ensure_running()
        first = multiprocessing.get_context("forkserver").Process(target=_nothing)
        first.start()
        first.join()


def _nothing() -> None:
    """What the first process does: its start says that the server is there."""


def run_ranks(entry: Callable[..., Any], args: tuple[Any, ...], *, size: int, deadline_s: float, logs: Path) -> Ended:
    """Run `entry(*args)` in `size` fresh processes and wait for all of them, at most `deadline_s`.

    Their output goes below `logs`. Raises Interrupted when the driver is asked to stop; no rank is left then.
    """
    start_server()
    others = {child.pid for child in psutil.Process().children(recursive=True)}
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=size,
        run_id="parabench",
        rdzv_backend="parabench-one-node",
        max_restarts=0,
        monitor_interval=MONITOR_INTERVAL_S,
        start_method="forkserver",
        signals_to_handle=",".join(number.name for number in watched()),
        logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=Std.ALL),
    )
    with signals_restored(), _Deadline(deadline_s, others) as deadline:
        try:
            elastic_launch(config, entry)(*args)
        except ChildFailedError as error:
            rank, failure = next(iter(error.failures.items()))
            name = signal.Signals(-failure.exitcode).name if failure.exitcode < 0 else None
            if name == "SIGINT":  # the terminal's Ctrl-C reached the rank before the driver
                raise Interrupted(signal.SIGINT) from None
            return Ended(ok=False, hung=deadline.passed, rank=rank, signal=name)
        except SignalException as stop:
            if deadline.forced:
                return Ended(ok=False, hung=True)
            raise Interrupted(int(stop.sigval)) from None
        finally:
            left = _ranks(others)
            for process in left:
                _kill(process, signal.SIGKILL)
            psutil.wait_procs(left, timeout=SHUTDOWN_TIMEOUT_S)
    return Ended(ok=True)


def log_tail(logs: Path, rank: int, lines: int = 40) -> str:
    """The last lines that a rank wrote to stderr: what the interpreter said as it went down."""
    found = sorted(logs.glob(f"**/{rank}/stderr.log"))
    return "\n".join(found[-1].read_text(errors="replace").splitlines()[-lines:]) if found else ""


class _Deadline:
    """Ends the ranks of a launch that takes too long, from outside: a stopped or deadlocked rank can't end itself."""

    def __init__(self, seconds: float, others: set[int]) -> None:
        self.passed = False
        self.forced = False
        self._others = others
        self._over = threading.Event()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._timer.cancel()

    def _end(self) -> None:
        self.passed = True
        ranks = _ranks(self._others)
        for process in ranks:
            _kill(process, signal.SIGUSR1)
        psutil.wait_procs(ranks, timeout=STACK_GRACE_S)
        for process in ranks:
            _kill(process, signal.SIGKILL)
        # Ranks that left with exit code 0 and no result are no failure to torch elastic: it would wait for ever.
        if not self._over.wait(2 * SHUTDOWN_TIMEOUT_S):
            self.forced = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _ranks(others: set[int]) -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.pid not in others]


def _kill(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
