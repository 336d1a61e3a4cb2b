"""Observe the user's own training loop with `watch`.

with watch(model, optimizer) as steps:
    for batch in steps(loader):
        ...
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from torch import nn

from parabench.errors import UsageError
from parabench.files import launch_folder, shared_memory_folder
from parabench.launch.results import as_json
from parabench.machine import accelerator
from parabench.machine.machine import this_machine
from parabench.machine.nvml import Used, keep_nvml
from parabench.plan.schedule import TrainingSchedule
from parabench.probes.devices import sources_of
from parabench.probes.sampler import RankPids, Sampler, leave_pid
from parabench.session.progress import logger
from parabench.session.request import check_label
from parabench.session.resume import check_writable
from parabench.watching.group import FAILED_S, LEAVE_S, Group
from parabench.watching.observer import Observer
from parabench.watching.record import RankResult, record
from parabench.watching.schedule import Schedule
from parabench.watching.tune import ROUNDS, SETTLE, TIMED, checked

# The interval of the thread that samples the host and the device, in seconds. Sampling takes time from the loop.
PERIOD_S = 1.0


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    out: str | os.PathLike[str] = "parabench-results",
    name: str | None = None,
    label: str | None = None,
    global_batch: int | None = None,
    seq_len: int | None = None,
    warmup: int = 5,
    instrumented: int = 8,
    tune: Mapping[str, Sequence[float]] | None = None,
    rounds: int = ROUNDS,
    log: Callable[[str], None] | None = None,
) -> AbstractContextManager[Observer]:
    """Time the steps of a training loop on every rank of the default process group, or in a single process.

    In the `with` block, call the result with the batches, once per epoch. At the end, rank 0 writes a session and its
    report, and logs where the time went. The training does not change (docs/how-to/watch.md).

    Args:
        model: The module that the loop calls: wrapped by DDP, sharded, compiled or plain.
        optimizer: The optimizer whose step ends a training step.
        out: The folder for the results database and the report.
        name: The name of the model; by default its class.
        label: Runs with the same label, script and model are launches of one session.
        global_batch: Samples of a step over all ranks; by default from the first batch.
        seq_len: Tokens of a sample; by default from the first batch.
        warmup: The number of first steps that do not count.
        instrumented: The number of consecutive steps with instruments, starting at each step of
            `schedule.INSTRUMENTED_AT`; 0 for none.
        tune: DDP's bucket caps to try, such as {"bucket_mib": [1, 4, 25]}. They are interleaved after the warm-up, and
            the training goes on with the fastest.
        rounds: The number of rounds of this comparison.
        log: Receives the lines at the end; by default they go to stderr.

    Raises:
        UsageError: If the loop cannot be watched like this.
    """
    inner: Any = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps the optimizer
    kind = type(inner).__name__
    if not isinstance(model, nn.Module):
        raise UsageError(f"watch: {type(model).__name__} is not a torch.nn.Module; give the model that the loop calls")
    if not isinstance(inner, torch.optim.Optimizer):
        raise UsageError(f"watch: {kind} is not a torch.optim.Optimizer; give the one whose step() the loop calls")
    if not getattr(type(inner).step, "hooked", False):  # Optimizer.__init__ sets it
        raise UsageError(
            f"watch: {kind} does not call Optimizer.__init__, so its step() cannot be observed; "
            "give the inner optimizer, the one whose step() it calls"
        )
    if not isinstance(out, (str, os.PathLike)):
        raise UsageError(f"watch: out is {out!r}; give the path of a folder")
    if label is not None:
        check_label(label)
    caps = checked(tune, model) if tune is not None else ()
    turns = TrainingSchedule(rounds=rounds, settle=SETTLE, timed=(TIMED,) * len(caps))
    options = {
        "module": model,
        "optimizer": inner,
        "schedule": Schedule(warmup, instrumented, turns if caps else None),
        "caps": caps,
        "name": name,
        "global_batch": global_batch,
        "seq_len": seq_len,
        "out": Path(out),
        "label": label,
        "log": log or logger(Console(file=sys.stderr)),
    }
    return _block(options)


@contextmanager
def _block(options: dict[str, Any]) -> Iterator[Observer]:
    group = Group.enter()
    if group.rank == 0:
        check_writable(options["out"], option="out")
    with launch_folder(shared_memory_folder()) as folder:
        clock = group.clock_offset()
        observer = Observer(group=group, folder=folder, began_s=perf_counter(), **options)
        options.clear()  # they hold the model
        observer.case()  # raises if a value is not valid
        leave_pid(folder, group.rank)
        sampler = _sampler(observer)
        error: BaseException | None = None
        with StopSignal() as stop:
            try:
                with sampler, observer.watching():
                    yield observer
            except BaseException as why:
                error = why
                raise
            finally:
                stop.deferred = True
                _finish(observer, sampler, clock, error, stop)
                observer.release()
                error = None  # its traceback holds this frame


def _finish(
    observer: Observer,
    sampler: Sampler,
    clock: dict[str, float] | None,
    error: BaseException | None,
    stop: StopSignal,
) -> None:
    """Send the results of this rank to rank 0, or record the results of all ranks on rank 0. Errors are logged."""
    group = observer.group
    result: RankResult | None = None
    try:
        try:
            result = RankResult.of(observer, sampler, clock, error)
        finally:
            if group.rank:
                group.send(as_json(result))  # even if it is None, because rank 0 waits for it
        if group.rank:
            return
        began_s = perf_counter()
        others = group.collect(LEAVE_S if error is None else FAILED_S, lambda: stop.received)
        if error is None and not observer.steps:
            observer.log(f"watch: nothing is recorded: {observer.why_no_step()}")
        else:
            results = [result, *map(RankResult.from_json, others)]
            record(observer, results, perf_counter() - began_s)
    except Exception as why:
        kind = "" if isinstance(why, (UsageError, OSError)) else f"{type(why).__name__}: "
        with suppress(Exception):
            observer.log(f"watch: the results of rank {group.rank} are not recorded: {kind}{why}")


class StopSignal:
    """Let SIGTERM end the block as `sys.exit` does, unless the user has a handler.

    While it is `deferred`, a signal only sets `received`, and acts after the block, when the results are recorded.
    """

    def __init__(self) -> None:
        self.deferred = self.received = False

    def __enter__(self) -> StopSignal:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._receive)
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = self.deferred
        if not self.deferred:
            sys.exit(128 + number)

    def __exit__(self, *_: object) -> None:
        if signal.getsignal(signal.SIGTERM) == self._receive:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if self.received:
                signal.raise_signal(signal.SIGTERM)


def _sampler(observer: Observer) -> Sampler:
    """Return the sampler for this rank's process and device, and for other processes on its host."""
    launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else os.getpid()
    gpus = this_machine().gpus if observer.device.type == accelerator.TYPE else ()
    at = observer.device.index or 0
    used = [Used(gpu.index, gpu.address) for gpu in gpus[at : at + 1] if gpu.address is not None]
    if used:
        keep_nvml()
    pids = RankPids(observer.folder, [observer.group.rank])
    sources = sources_of(observer.began_s, pids, (lambda: used) if used else None, launcher)
    return Sampler(observer.began_s, sources, period_s=PERIOD_S)
