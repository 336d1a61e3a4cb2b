"""One rank of a launch: tie its life to the driver's, join the group, build, train, hand over what it saw."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import multiprocessing.forkserver
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from parabench.case import Case
from parabench.collectives import membership
from parabench.data.batches import Split, batches, tokens
from parabench.models import MODELS
from parabench.models.model import Model
from parabench.probes.memory import peak_memory
from parabench.probes.steps import StepClock
from parabench.registry import find, load
from parabench.strategies import STRATEGIES
from parabench.strategies.recipe import Context, Parallel, Place
from parabench.trainer import Training, make_optimizer, train

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Job:
    """What the driver sends to every rank. `folder` is where ranks meet and leave their results."""

    case: Case
    steps: int
    folder: Path
    timeout_s: float
    environment: dict[str, str] = field(default_factory=dict)


def run(job: Job) -> None:
    """The entry of a rank, called in a fresh process with torch elastic's environment (RANK, WORLD_SIZE, ...)."""
    tie_to_driver()
    rank = int(os.environ["RANK"])
    # Ranks inherit what the fork server's environment was when it started; a launch's own travels with its job.
    os.environ.update(job.environment)
    failed = False
    try:
        text = json.dumps({"rank": rank, **measure(job, rank)})
    except BaseException as error:
        failed = True
        told = {
            "at": time.perf_counter(),
            "message": f"{type(error).__name__}: {error}",
            "traceback": traceback.format_exc(),
            "oom": is_out_of_memory(error),
        }
        text = json.dumps({"rank": rank, "error": told})
    _write(job.folder / f"rank{rank}.json", text)
    if failed:
        # When a rank dies, its peers fail a moment later: let the driver see the first cause first.
        time.sleep(0.25)
        sys.exit(1)


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
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent or parent == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def measure(job: Job, rank: int) -> dict[str, Any]:
    """Join the group, train, leave the group; returns losses, memory and facts.

    An error leaves the group as it is: its traceback keeps alive what uses the group, and the process ends anyway.
    """
    case = job.case
    torch.set_num_threads(case.threads)
    place = Place(rank, case.world_size, device_of(case, rank))
    grouped = case.strategy != "single"
    if grouped:
        join_group(job, rank)
    result = train_case(job, place)
    # What was built must be gone before the group goes: a DDP reducer that held the last reference to it would end
    # gloo's threads with the interpreter's lock held, and they may be waiting for that lock.
    gc.collect()
    if grouped:
        membership.leave()
    return result


def device_of(case: Case, rank: int) -> torch.device:
    """This rank's device, made the current one; with more ranks than devices (gloo) they share."""
    if case.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def train_case(job: Job, place: Place) -> dict[str, Any]:
    """Build, train and read what was seen."""
    training, parallel = build(job.case, place)
    clock = StepClock(job.folder / f"marks{place.rank}.f64", job.steps, place.device)
    train(training, clock, job.steps)
    clock.finish()
    return {
        "loss": [float(loss) for loss in training.losses],
        "grad_norm": training.grad_norm,
        "memory": peak_memory(place.device),
        "facts": {**parallel.facts(), "collectives": membership.calls()},
    }


def join_group(job: Job, rank: int) -> None:
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


def build(case: Case, place: Place) -> tuple[Training, Parallel]:
    """The case's model made parallel, with its optimizer and data. The same seed on every rank: one same model."""
    torch.manual_seed(case.seed)
    entry = find(MODELS, "model", case.model)
    factory = load(MODELS, "model", case.model)
    with place.device:
        model: Model = factory(entry) if entry else factory()
    parallel: Parallel = load(STRATEGIES, "strategy", case.strategy)(model, Context(case, place))
    stream = tokens(case, model.vocabulary)
    training = Training(
        model=model,
        module=parallel.module,
        optimizer=make_optimizer(parallel.module),
        batches=batches(case, stream, Split(parallel.data_rank, parallel.data_ranks), place.device),
        autocast=torch.autocast(place.device.type, torch.bfloat16, enabled=case.dtype == "bfloat16"),
        losses=[],
    )
    return training, parallel


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the rank ran out of memory, on the device or the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)


def _write(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)
