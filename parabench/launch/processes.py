"""Run the ranks of a launch in new processes, with torch elastic and a fork server. All launches use this module.

The fork server imports torch once. All ranks are forked from it, so a launch takes tenths of a second.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from parabench.errors import LOG_LEVEL, SILENT
from parabench.files import check_own_folder, sockets_in_own_folder
from parabench.launch import rendezvous
from parabench.launch.rendezvous import FAILED, HUNG, LaunchContext
from parabench.signals import HANG_REQUEST, Interrupted, adopt_orphans, signals_restored, watched

PRELOAD = "parabench.launch.preload"

# The variable with the secret of the nodes (`cluster.agreement` reads it).
SECRET = "PARABENCH_SECRET"

# Torch elastic polls its ranks at this interval. On average, a launch takes half of it longer.
MONITOR_INTERVAL_S = 0.01

# Ranks end at once when they are asked to. torch elastic would give a stopped rank 30 s before it is killed.
SHUTDOWN_TIMEOUT_S = 2

# A hanging rank gets this time to write its stack and its position before it is ended.
STACK_GRACE_S = 1.0

# Killed processes end at once, unless a device or a file system holds them.
GONE_S = 2.0

# Each logger sets its level, so silencing a parent would not help.
TALKATIVE = (
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.multiprocessing.spawn",
)

# The line of faulthandler above the stacks of a process that dies, and the number of lines to keep before it.
FATAL = "Fatal Python error: "
REASON_LINES = 10


@dataclass(frozen=True, slots=True)
class ProcessOutcome:
    """The outcome of the processes of one node: success, a first failure, a hang, or an abort."""

    ok: bool  # no process failed
    hung: bool = False  # some were still running at the deadline
    rank: int | None = None  # the first that torch elastic found to have failed, counted over all nodes
    signal: str | None = None  # the signal that ended this rank
    aborted_by: str | None = None  # the reason if another node or a stop request ended the processes
    killed: tuple[int, ...] = ()  # the ids of the processes that were still running at the deadline or the abort


def start_launching() -> None:
    """Remove the files of killed drivers, and start the fork server.

    Raises UsageError if no temporary files can be written, and OSError if the machine has no process left.
    """
    check_own_folder()
    start_server()


@cache
def start_server() -> None:
    """Start the fork server, once per driver, and wait for the end of its imports, so that no launch includes them."""
    rendezvous_handler_registry.register(rendezvous.BACKEND, rendezvous.AgreedRendezvous)
    # Their messages are for users of torchrun; our record has the failures.
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # A process that a rank leaves behind becomes the fork server's child, or the driver's if the server is gone. It is
    # ended with the launch.
    adopt_orphans()
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SHUTDOWN_TIMEOUT_S))
    # Every node of a launch has the same number of ranks, so agents need not exchange it.
    os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"] = "1"
    # torch elastic counts devices before each launch. Through NVML this makes no context on them.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    # Ranks inherit the fork server's environment, and do not need the secret of the nodes.
    os.environ.pop(SECRET, None)
    multiprocessing.set_forkserver_preload([PRELOAD])
    atexit.register(_end_server)
    with signals_restored(), sockets_in_own_folder(), _errors_of_ranks():
        # Ctrl-C in a terminal reaches the server too; in the seconds of its imports it would die with a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        multiprocessing.forkserver.ensure_running()
    first = multiprocessing.get_context("forkserver").Process()
    with _starting():
        first.start()
    first.join()


def _end_server() -> None:
    """Kill the fork server when the driver ends. On a busy machine it would detect this end only seconds later."""
    pid = getattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", None)
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        # It is not reaped before: its process id is not used again.
        if pid is not None and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@contextmanager
def _errors_of_ranks() -> Iterator[None]:
    """Let C++ log errors in processes that start within the block, even if it is silent in the driver."""
    silent = os.environ.get(LOG_LEVEL) == SILENT
    if silent:
        os.environ[LOG_LEVEL] = "ERROR"
    try:
        yield
    finally:
        if silent:
            os.environ[LOG_LEVEL] = SILENT


@contextmanager
def _starting() -> Iterator[None]:
    """Raise OSError if a start in the block fails because the fork server has ended or no thread is left."""
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise OSError("the fork server, which starts the ranks, has ended") from error
    except RuntimeError as error:
        if str(error) != "can't start new thread":
            raise
        raise OSError(errno.EAGAIN, f"{error}: {os.strerror(errno.EAGAIN)}") from error


def run_processes(
    entry: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    size: int,
    deadline_s: float,
    logs: Path,
    context: LaunchContext | None = None,
) -> ProcessOutcome:
    """Run `entry(*args)` in `size` new processes on this node, and wait for all of them.

    By default, the launch has only this node. Raises Interrupted if the driver is asked to stop, and OSError if the
    machine has no process left.
    """
    context = context or LaunchContext(local_world_size=size)
    start_server()
    others = {child.pid for child in descendants_left()}
    config = LaunchConfig(
        min_nodes=context.num_nodes,
        max_nodes=context.num_nodes,
        nproc_per_node=size,
        run_id="parabench",
        rdzv_backend=rendezvous.BACKEND,
        rdzv_configs={"context": context},
        max_restarts=0,
        monitor_interval=MONITOR_INTERVAL_S,
        start_method="forkserver",
        signals_to_handle=",".join(number.name for number in watched()),
        logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=Std.ALL),
    )
    with _Deadline(deadline_s, others) as deadline, context.on_abort(deadline.end):
        try:
            with signals_restored():  # one more Ctrl-C, while the ranks are ended, is not torch elastic's to raise
                if signal.SIGTERM not in watched():
                    signal.signal(signal.SIGTERM, deadline.stop_if_forced)
                try:
                    with _starting():
                        elastic_launch(config, entry)(*args)
                finally:
                    deadline.over()
        except ChildFailedError as error:
            if context.aborted_by is None:
                context.tell(HUNG if deadline.passed else FAILED)
                rank, failure = next(iter(error.failures.items()))
                name = signal.Signals(-failure.exitcode).name if failure.exitcode < 0 else None
                if name == "SIGINT":  # the terminal's Ctrl-C reached the rank before the driver
                    raise Interrupted(signal.SIGINT) from None
                hung = deadline.passed
                return ProcessOutcome(ok=False, hung=hung, rank=rank, signal=name, killed=deadline.killed)
        except SignalException as stop:
            if context.aborted_by is None:
                if not deadline.forced:
                    raise Interrupted(int(stop.sigval)) from None
                context.tell(HUNG)
                return ProcessOutcome(ok=False, hung=True, killed=deadline.killed)
        finally:
            end_descendants(others)
    # If these ranks are done and another node's ranks are not, the launch has failed.
    return ProcessOutcome(ok=context.aborted_by is None, aborted_by=context.aborted_by, killed=deadline.killed)


def log_tail(logs: Path, rank: int, lines: int = 40) -> str:
    """Return the last lines that a rank wrote to stderr.

    If a fatal error wrote longer stacks, the result starts with the lines before them, which have the reason.
    """
    found = sorted(logs.glob(f"**/{rank}/stderr.log"))
    written = found[-1].read_text(errors="replace").splitlines() if found else []
    fatal = next((at for at, line in enumerate(written) if line.startswith(FATAL)), len(written))
    last = max(0, len(written) - lines)
    if fatal >= last:
        return "\n".join(written[last:])
    return "\n".join([*written[max(0, fatal - REASON_LINES) : fatal + 1], "...", *written[last:]])


class _Deadline:
    """A timer in the driver that ends the ranks at the deadline, because a deadlocked rank cannot end itself."""

    def __init__(self, seconds: float, others: set[int]) -> None:
        self.passed = False
        # Torch elastic did not return after the ranks had ended, so a signal had to stop it.
        self.forced = False
        # The ids of the processes that `end` has killed.
        self.killed: tuple[int, ...] = ()
        self._others = others
        self._over = threading.Event()
        self._forcing = threading.Lock()
        self._timer = threading.Timer(seconds, self._passed)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        with _starting():
            self._timer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.over()
        self._timer.cancel()

    def over(self) -> None:
        """Tell `end` that torch elastic has returned, so that it does not send the signal."""
        with self._forcing:
            self._over.set()

    def _passed(self) -> None:
        self.passed = True
        self.end(HUNG)

    def end(self, why: str) -> None:
        """Kill the ranks. With the reason HUNG, first request their positions and their stacks."""
        ranks = descendants_left(self._others)
        self.killed = tuple(process.pid for process in ranks)
        if why == HUNG:
            for number in (HANG_REQUEST, signal.SIGUSR1):
                for process in ranks:
                    _kill(process, number)
            psutil.wait_procs(ranks, timeout=STACK_GRACE_S)
        for process in ranks:
            _kill(process, signal.SIGKILL)
        # torch elastic would wait forever for a rank that exits with code 0 without a result.
        if self._over.wait(2 * SHUTDOWN_TIMEOUT_S):
            return
        with self._forcing:
            if not self._over.is_set():
                self.forced = True
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def stop_if_forced(self, number: int, _: object) -> None:
        """Handle SIGTERM: stop torch elastic if `end` sent it. The driver ignores it from other processes."""
        if self.forced:
            raise SignalException("", signal.Signals(number))


def descendants_left(others: Collection[int] = ()) -> list[psutil.Process]:
    """Return the descendants of this process, without the process ids of `others`."""
    return [child for child in psutil.Process().children(recursive=True) if child.pid not in others]


def end_descendants(others: Collection[int] = (), gone_s: float = GONE_S) -> None:
    """Kill all descendants of this process, including those that start meanwhile.

    Args:
        others: Process ids to spare.
        gone_s: The time to wait for killed processes, in seconds.
    """
    ended: set[int] = set()
    while found := [each for each in descendants_left(others) if each.pid not in ended]:
        for each in found:
            _kill(each, signal.SIGKILL)
        if gone_s:
            psutil.wait_procs(found, timeout=gone_s)
        ended |= {each.pid for each in found}


def _kill(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
