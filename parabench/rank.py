"""What every rank does, whatever it measures: tie its life to the driver's, join the group, hand over what it saw."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing.forkserver
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from parabench.collectives import membership
from parabench.lifeline import die_with_parent
from parabench.probes.pids import leave_pid
from parabench.record import AnyCase


class RankJob(Protocol):
    """What the driver sends to every rank. `folder` is where ranks meet and leave their results."""

    @property
    def case(self) -> AnyCase: ...  # noqa: D102
    @property
    def folder(self) -> Path: ...  # noqa: D102
    @property
    def timeout_s(self) -> float: ...  # noqa: D102
    @property
    def environment(self) -> Mapping[str, str]: ...  # noqa: D102


AJob = TypeVar("AJob", bound=RankJob)


def hand_over(job: AJob, measure: Callable[[AJob, int], dict[str, Any]]) -> None:
    """Call `measure(job, rank)` and leave what it returns, or why it could not, in the job's folder.

    A rank is a fresh process with torch elastic's environment (RANK, WORLD_SIZE, ...).
    """
    rank = int(os.environ["RANK"])
    leave_pid(job.folder, rank)
    # Ranks inherit what the fork server's environment was when it started; a launch's own travels with its job.
    os.environ.update(job.environment)
    failed = False
    try:
        text = json.dumps({"rank": rank, **measure(job, rank)})
    except BaseException as error:
        failed = True
        told = {
            "at": time.perf_counter(),
            "message": in_a_line(error),
            "traceback": traceback.format_exc(),
            "oom": is_out_of_memory(error),
        }
        text = json.dumps({"rank": rank, "error": told})
    _write(job.folder / f"rank{rank}.json", text)
    if failed:
        # When a rank dies, its peers fail a moment later: let the driver see the first cause first.
        time.sleep(0.25)
        sys.exit(1)


def in_a_line(error: BaseException) -> str:
    """What went wrong, without the text that wraps it.

    torch's pipelining raises another error from the first one, whose message begins with an empty line, and its
    DataLoader puts a worker's whole traceback into one: there the cause, or the last line, is what was really said.
    """
    cause = error
    while cause.__cause__ is not None and not str(cause).partition("\n")[0].strip():
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    if not lines:
        return type(cause).__name__
    if lines[0].startswith("Caught ") and len(lines) > 1:
        return f"{lines[-1]} ({lines[0].rstrip('.')})"
    return f"{type(cause).__name__}: {lines[0]}"


def tie_to_driver() -> None:
    """Make this rank die with the driver, however that ends; a stopped rank too.

    Every rank inherits the descriptor that keeps the fork server alive; closing it lets the server see that the
    driver is gone. The server's end then is this process' death signal.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A hanging rank is asked for its stack before it is ended.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    server: Any = multiprocessing.forkserver._forkserver
    alive = getattr(server, "_forkserver_alive_fd", None)
    if alive is not None:
        os.close(alive)
        server._forkserver_alive_fd = None
    die_with_parent(os.getppid())
    # If the driver is still there now, the server was until then: it goes only after the driver.
    driver = multiprocessing.parent_process()
    if driver is None or not driver.is_alive():
        os.kill(os.getpid(), signal.SIGKILL)


def device_of(case: AnyCase, rank: int) -> torch.device:
    """This rank's device, made the current one; with more ranks than devices (gloo) they share."""
    if case.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def join_group(job: RankJob, rank: int) -> None:
    """Join the other ranks through a file: nothing listens but the backend, and that on loopback only."""
    case = job.case
    membership.join(
        algorithm=case.algorithm,
        backend=case.backend,
        rank=rank,
        world_size=case.world_size,
        ranks_per_node=case.ranks_per_node,
        init_method=f"file://{job.folder / 'store'}",
        timeout_s=job.timeout_s,
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the rank ran out of memory, on the device or the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)


def _write(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)
