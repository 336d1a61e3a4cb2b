"""The process of a rank, for all kinds of measurement: end with the driver, join the process group, write a report."""

from __future__ import annotations

import faulthandler
import gc
import json
import multiprocessing.forkserver
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from parabench.collectives import join
from parabench.data.loader import end_workers
from parabench.errors import worker_error
from parabench.files import hand_over_file
from parabench.launch import hang
from parabench.launch.outcome import is_echo
from parabench.launch.results import RankError, RankReport, as_json
from parabench.launch.spec import LaunchSpec, RankEnv, Workload
from parabench.machine import accelerator
from parabench.probes.sampler import leave_pid
from parabench.signals import die_with_parent
from parabench.store.record import AnyCase

T = TypeVar("T")

# The time that a failed rank waits before it ends: until its peers have failed, too; or, if it failed because a peer is
# gone, until the driver has detected the end of that peer.
CAUSE_S, ECHO_S = 0.25, 2.0


def main(workload: Workload, spec: LaunchSpec, env: RankEnv) -> None:
    """Measure in a new process with torch elastic's environment (RANK, WORLD_SIZE, ...), and write the report.

    If the measurement fails, the report has the error, and the process exits with 1.
    """
    die_with_driver()
    rank = int(os.environ["RANK"])
    leave_pid(env.folder, rank)
    hang.listen(env.folder, rank)
    # Ranks inherit the environment that the fork server had when it started; a launch's variables travel with it.
    os.environ.update(env.environment)
    why = None
    try:
        text = json.dumps(as_json(workload.measure(spec, env, rank)))
    except BaseException as error:
        why = error_of(error)
        hang.settle()
        text = json.dumps(as_json(RankReport(rank=rank, error=why)))
    hand_over_file(report_path(env.folder, rank), text)
    if why is not None:
        # Peers fail a moment after this rank. The driver must detect the first cause first, even if it is busy.
        time.sleep(ECHO_S if is_echo(why) else CAUSE_S)
        sys.exit(1)


def report_path(folder: Path, rank: int) -> Path:
    """Return the path of a rank's report."""
    return folder / f"rank{rank}.json"


def error_of(error: BaseException) -> RankError:
    """Return the RankError of an exception that is being handled, with its traceback."""
    return RankError(time.perf_counter(), in_a_line(error), traceback.format_exc(), is_out_of_memory(error))


def in_a_line(error: BaseException) -> str:
    """Return an error as one line: the type, and the first line of the message or a remedy of `REMEDIES`.

    If the message begins with an empty line, as of the second error of torch's pipelining, its cause is returned.
    """
    cause = error
    while cause.__cause__ is not None and not str(cause).partition("\n")[0].strip():
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    if not lines:
        return type(cause).__name__
    if of_worker := worker_error(str(cause)):
        return of_worker
    remedy = next((remedy for pattern, remedy in REMEDIES.items() if pattern in str(cause)), None)
    if remedy is not None:
        return f"{type(cause).__name__}: {lines[0].partition('. ')[0].rstrip('.')}: {remedy}"
    return f"{type(cause).__name__}: {lines[0]}"


# {part of a message of DDP (torch/csrc/distributed/c10d/reducer.cpp) or of FSDP's freed storage: the reason, and the
# remedy as an option of parabench}. The first match counts.
REMEDIES = {
    # DDP proposes this argument only if it is not set. With it, DDP still expects a gradient for each parameter that
    # the output depends on (pytorch#47562). It only searches outputs that torch's pytrees flatten, so no dataclasses.
    "You can enable unused parameter detection": (
        "the loss does not depend on every parameter; use --set find_unused_parameters=on"
    ),
    "your module has parameters that were not used in producing loss": (
        "a parameter affects the output but not the loss; return a dict or a tuple, not a dataclass, or let the loss "
        "depend on every output of module"
    ),
    "Expected to mark a variable ready only once": (
        "a parameter is used more than once in backward, as in reentrant checkpointing; use --set static_graph=on"
    ),
    "out of bounds for storage of size 0": (
        "a parameter is needed after FSDP freed it, as by a second backward (gradient penalty); use --set strategy=ddp"
    ),
}


def die_with_driver() -> None:
    """Let the kernel end this rank when the driver ends, even if the rank is stopped.

    Close the inherited descriptor that keeps the fork server alive, so that the fork server ends with the driver. The
    kernel kills this process with the fork server.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The driver requests the stack of a hanging rank before it ends the rank.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    server: Any = multiprocessing.forkserver._forkserver
    alive = getattr(server, "_forkserver_alive_fd", None)
    if alive is not None:
        os.close(alive)
        server._forkserver_alive_fd = None
    die_with_parent(os.getppid())
    # If the driver still runs now, the fork server did when the line above ran, because it ends only after the driver.
    driver = multiprocessing.parent_process()
    if driver is None or not driver.is_alive():
        os.kill(os.getpid(), signal.SIGKILL)


def device_of(case: AnyCase) -> torch.device:
    """Make this rank's device the current one, and return it. If a node has too few devices, ranks share them."""
    if case.device == "cpu":
        return torch.device("cpu")
    device = torch.device(accelerator.TYPE, int(os.environ["LOCAL_RANK"]) % accelerator.api().device_count())
    accelerator.api().set_device(device)
    return device


@contextmanager
def in_group(join_ranks: Callable[[], T]) -> Iterator[T]:
    """Call `join_ranks`, yield its result, and leave the process group at the end of the block.

    After an error the process does not leave it, because the traceback keeps objects alive that use the group.
    """
    yield join_ranks()
    end_workers()
    # Free the model before the group. A DDP reducer with the last reference to the group would end gloo's threads while
    # it holds the interpreter's lock, which they may be waiting for.
    gc.collect()
    if dist.is_initialized():
        join.leave()


def join_group(case: AnyCase, env: RankEnv, rank: int) -> dict[str, float] | None:
    """Join the process group of all ranks. Return the result of `RendezvousPoint.clock_offset`; None with one node.

    On one node, the rendezvous store is a file, so only the backend listens, and only on loopback.
    """
    point = env.rendezvous
    store = point.store(env.timeout_s) if point else FileStore(str(env.folder / "store"), case.world_size)
    join.join(
        algorithm=case.algorithm,
        backend=case.backend,
        rank=rank,
        world_size=case.world_size,
        ranks_per_node=case.ranks_per_node,
        store=store,
        timeout_s=env.timeout_s,
    )
    return point.clock_offset(store, rank) if point else None


def loaded_nccl(case: AnyCase) -> dict[str, str]:
    """Return {"nccl_version": version} of the NCCL that this process has loaded; {} for other backends.

    LD_PRELOAD or LD_LIBRARY_PATH may select another version than the installed wheel.
    """
    if case.backend != "nccl":
        return {}
    numbers: tuple[Any, ...] = accelerator.api().nccl.version()
    return {"nccl_version": ".".join(map(str, numbers[:3])) + "".join(numbers[3:])}


# Messages of a plain RuntimeError or DistBackendError that mean "out of memory". Their sources:
# - torch's allocator on the host;
# - CUDA, for a context, a module or an event: cudaGetErrorString of cudaErrorMemoryAllocation is "out of memory". NCCL
#   quotes it as "Cuda failure 2 'out of memory'", in older versions without the number;
# - cuBLAS and cuSPARSE, for their workspaces and handles;
# - cuDNN, which names the kind of allocation that failed since version 9;
# - torch's CUDA allocator, which asks NVML for the free memory before it raises OutOfMemoryError. On MIG, NVML refuses,
#   and the failed assertion replaces the error (pytorch issues 112377 and 112569).
# HIP uses the same words: hipGetErrorString of hipErrorOutOfMemory is "out of memory".
OUT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator: can't allocate memory"
    r"|(?:CUDA|HIP) out of memory"
    r"|(?:CUDA|HIP) error: out of memory"
    r"|CUDA driver error: out of memory"
    r"|CUDA_ERROR_OUT_OF_MEMORY"
    r"|Cuda failure (?:\d+ )?'out of memory'"
    r"|CU(?:BLAS|SPARSE|SOLVER)_STATUS_ALLOC_FAILED"
    r"|CUFFT_ALLOC_FAILED"
    r"|CUDNN_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR_(?:HOST|DEVICE)_ALLOCATION_FAILED)"
    r"|NVML_SUCCESS == r INTERNAL ASSERT FAILED at .*CUDACachingAllocator\.cpp"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error or a cause of it means that the device or the host has no memory left."""
    visited: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in visited:
        visited.add(id(at))
        if isinstance(at, (torch.OutOfMemoryError, MemoryError)):
            return True
        if isinstance(at, RuntimeError) and OUT_OF_MEMORY.search(str(at)):
            return True
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    return False
