"""Strategies and algorithms with a fault on one rank, and strategies that look around."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from hang_helpers import came

from parabench import Model
from parabench.collectives.algorithm import Algorithm
from parabench.collectives.ring import RING
from parabench.strategies.base import ParallelModel, StrategyContext
from parabench.strategies.data_parallel import ddp

# Where the faults strike.
FAULTY_RANK, FAULTY_STEP = 1, 3


def _faulty(
    fault: Callable[[], object], *, backward: bool = False
) -> Callable[[Model, StrategyContext], ParallelModel]:
    """DDP in which rank 1 meets `fault` in the forward pass of step 3, or within its backward pass."""

    def strategy(model: Model, context: StrategyContext) -> ParallelModel:
        parallel = ddp(model, context)
        calls = itertools.count()

        def hook(*_: object) -> None:
            if next(calls) == FAULTY_STEP:
                came()
                if context.rank == FAULTY_RANK:
                    fault()

        if backward:
            # The head's gradient is the first; the embeddings' bucket is not yet complete.
            model.module.blocks[-1].register_full_backward_hook(hook)
        else:
            model.module.register_forward_pre_hook(hook)
        return parallel

    return strategy


def _faulty_build(fault: Callable[[], object]) -> Callable[[Model, StrategyContext], ParallelModel]:
    """DDP that rank 1 meets `fault` before building, while its peers already wait for it there."""

    def strategy(model: Model, context: StrategyContext) -> ParallelModel:
        came()
        if context.rank == FAULTY_RANK:
            fault()
        return ddp(model, context)

    return strategy


def _raise(error: BaseException) -> None:
    raise error


def _signal(number: int) -> None:
    os.kill(os.getpid(), number)


def _wait_forever() -> None:
    threading.Event().wait()


raising = _faulty(lambda: _raise(RuntimeError("the dog ate it")))
raising_in_backward = _faulty(lambda: _raise(RuntimeError("the dog ate it")), backward=True)
raising_in_build = _faulty_build(lambda: _raise(RuntimeError("no such layer")))
out_of_device_memory = _faulty(lambda: _raise(torch.OutOfMemoryError("CUDA out of memory")))
out_of_memory = _faulty(lambda: _raise(MemoryError()))
allocating_too_much = _faulty(lambda: torch.empty(1 << 60, dtype=torch.uint8))
killed = _faulty(lambda: _signal(signal.SIGKILL))
killed_in_backward = _faulty(lambda: _signal(signal.SIGKILL), backward=True)
killed_in_build = _faulty_build(lambda: _signal(signal.SIGKILL))
segfaulting = _faulty(lambda: _signal(signal.SIGSEGV))
vanishing = _faulty(lambda: os._exit(3))


def leaving_a_child(model: Model, context: StrategyContext) -> ParallelModel:
    """A rank that starts a process and forgets it, in a session of its own."""
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    return ddp(model, context)


def telling_nonsense(model: Model, context: StrategyContext) -> ParallelModel:
    """A strategy whose facts cannot be written down."""
    return replace(ddp(model, context), facts=lambda: {"model": model})


def all_vanishing(model: Model, context: StrategyContext) -> ParallelModel:
    """Every rank leaves with exit code 0 and without a result: no failure to whoever only looks at exit codes."""
    os._exit(0)


exiting = _faulty(lambda: sys.exit("enough"))
waiting = _faulty(_wait_forever)
waiting_in_build = _faulty_build(_wait_forever)


def all_waiting_in_build(model: Model, context: StrategyContext) -> ParallelModel:
    """No rank comes to a collective."""
    came()
    _wait_forever()
    return ddp(model, context)


stopping = _faulty(lambda: _signal(signal.SIGSTOP))
stopping_in_backward = _faulty(lambda: _signal(signal.SIGSTOP), backward=True)
stopping_in_build = _faulty_build(lambda: _signal(signal.SIGSTOP))


def _fatal_algorithm(fault: Callable[[], object]) -> Callable[[int | None], Algorithm]:
    """An algorithm's factory that rank 1 does not survive: the group never forms."""

    def factory(ranks_per_node: int | None) -> Algorithm:
        if int(os.environ["RANK"]) == FAULTY_RANK:
            fault()
        return RING

    return factory


killed_before_the_group = _fatal_algorithm(lambda: _signal(signal.SIGKILL))
raising_before_the_group = _fatal_algorithm(lambda: _raise(RuntimeError("no such link")))


# -- strategies that look around ------------------------------------------------------------------------------------


def observing(model: Model, context: StrategyContext) -> ParallelModel:
    """DDP whose facts are what this rank's process sees: environment, and who listens where."""
    parallel = ddp(model, context)

    def facts() -> dict[str, Any]:
        me = psutil.Process()
        server, driver = me.parents()[:2]
        return {
            "environment": dict(os.environ),
            "listening": [
                [who, connection.laddr.ip]
                for who, process in (("rank", me), ("server", server), ("driver", driver))
                for connection in process.net_connections(kind="inet")
                if connection.status == psutil.CONN_LISTEN
            ],
        }

    return replace(parallel, facts=facts)


def leaving_traces(model: Model, context: StrategyContext) -> ParallelModel:
    """DDP that sets an environment variable in its own process."""
    os.environ["PARABENCH_TEST_TRACE"] = "1"
    return ddp(model, context)


# -- a strategy that the tests of the driver hold up ----------------------------------------------------------------


def held_up(model: Model, context: StrategyContext) -> ParallelModel:
    """DDP that notes each launch in $PARABENCH_TEST_FOLDER; there the second launch tells through a pipe that it has
    come so far, and waits for ever. With a file `go` nothing is held up; with a file `stop` rank 1 stops itself. Files
    `rank1`, ... hold the process ids of the other ranks."""
    folder = Path(os.environ["PARABENCH_TEST_FOLDER"])
    log, process_id = folder / "launches", folder / "rank1"
    parallel = ddp(model, context)
    if context.rank == 0:
        with log.open("a") as file:
            file.write(context.case.id + "\n")
    else:
        (folder / f"rank{context.rank}").write_text(str(os.getpid()))
    dist.barrier()
    if (folder / "go").exists() or len(log.read_text().splitlines()) != 2:
        return parallel
    stop = (folder / "stop").exists()
    if context.rank == 0:
        peer = psutil.Process(int(process_id.read_text()))
        while stop and peer.status() != psutil.STATUS_STOPPED:
            pass
        (folder / "pipe").write_text("held up")
    elif stop and context.rank == 1:
        _signal(signal.SIGSTOP)
    _wait_forever()
    return parallel
