"""`watch` observes the user's own training loop with parabench's instruments.

with watch(model, optimizer) as steps:
    for batch in steps(loader):
        ...
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any, NoReturn

import torch
from rich.console import Console
from torch import nn

from parabench.errors import UsageError
from parabench.files import launch_folder, shared_memory_folder
from parabench.launch.results import as_json
from parabench.machine import accelerator
from parabench.machine.machine import this_machine
from parabench.machine.nvml import Used, keep_nvml
from parabench.plan.turns import TurnsProtocol
from parabench.probes.devices import sources_of
from parabench.probes.sampler import RankPids, Sampler, leave_pid
from parabench.session.progress import logger
from parabench.session.request import check_label
from parabench.session.resume import check_writable
from parabench.watching.group import FAILED_S, LEAVE_S, Group
from parabench.watching.observer import Observer
from parabench.watching.record import Found, record
from parabench.watching.schedule import Schedule
from parabench.watching.tune import ROUNDS, SETTLE, TIMED, checked

# A thread of the rank reads the host at this interval: seldom, because it takes time from the loop.
READING_S = 1.0

Log = Callable[[str], None]


class Watching(contextlib.AbstractContextManager[Observer, bool | None]):
    """The result of `watch`, to be entered with `with`."""

    def __init__(self, block: contextlib.AbstractContextManager[Observer, bool | None]) -> None:
        self._block = block

    def __enter__(self) -> Observer:
        return self._block.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._block.__exit__(*error)

    def __call__(self, *_: Any) -> NoReturn:
        raise UsageError("watch is used without `with`; write `with watch(model, optimizer) as steps:`")

    __iter__ = __call__


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
    log: Log | None = None,
) -> Watching:
    """Time the steps of a training loop, on every rank of the default process group, or in one process without one.

    Call the result of the `with` block with the batches, once an epoch. At the end, rank 0 writes a session and its
    report to a folder, and logs where the time went. The training does not change. Except in instrumented steps and
    during tuning, no step waits for a device or another rank because of it.

    If an instrument fails, it is switched off, and the training goes on. An error that ends the block is recorded and
    raised again. If the block is stopped (Ctrl-C, SIGTERM, `sys.exit`), the steps so far are recorded.

    Args:
        model: The module that the loop calls: wrapped by DDP, sharded, compiled or plain.
        optimizer: The optimizer whose step ends a training step.
        out: The folder for the results database and the report.
        name: The name of the model; by default its class.
        label: Runs with the same label, script and model are launches of one session.
        global_batch: Samples of a step over all ranks; by default from the first batch.
        seq_len: Tokens of a sample; by default from the first batch.
        warmup: The number of first steps that do not count.
        instrumented: The number of consecutive steps with instruments, soon and then ever more seldom
            (`schedule.INSTRUMENTED_AT`); 0 for none.
        tune: DDP's bucket caps to try, such as {"bucket_mib": [1, 4, 25]}: they take turns after the warm-up, and the
            training goes on with the fastest.
        rounds: The number of turns of each cap.
        log: Receives the lines at the end; by default they go to stderr.

    Raises:
        UsageError: If the loop cannot be watched like this.
    """
    inner: Any = getattr(optimizer, "optimizer", optimizer)  # accelerate's wraps the real one
    kind = type(inner).__name__
    if not isinstance(model, nn.Module):
        raise UsageError(f"watch: {type(model).__name__} is not a torch.nn.Module; give the model that the loop calls")
    if not isinstance(inner, torch.optim.Optimizer):
        raise UsageError(f"watch: {kind} is not a torch.optim.Optimizer; give the one whose step() the loop calls")
    if not getattr(type(inner).step, "hooked", False):  # torch sets it in Optimizer.__init__
        raise UsageError(
            f"watch: {kind} does not call Optimizer.__init__, so its step() cannot be observed; "
            "give the inner optimizer, the one whose step() it calls"
        )
    if not isinstance(out, (str, os.PathLike)):
        raise UsageError(f"watch: out is {out!r}; give the path of a folder")
    if label is not None:
        check_label(label)
    caps = checked(tune, model) if tune is not None else ()
    turns = TurnsProtocol(rounds=rounds, settle=SETTLE, timed=TIMED)
    schedule = Schedule(warmup, instrumented, turns if caps else None, len(caps))
    observer = partial(
        Observer, module=model, optimizer=inner, schedule=schedule, caps=caps, name=name, global_batch=global_batch,
        seq_len=seq_len,
    )  # fmt: skip
    return Watching(_block(observer, Path(out), label, _unfailing(log)))


@contextlib.contextmanager
def _block(observer_of: Callable[..., Observer], out: Path, label: str | None, log: Log) -> Iterator[Observer]:
    group = Group.enter()
    where = Path.cwd()
    if group.rank == 0:
        check_writable(out, option="out")
    with launch_folder(shared_memory_folder()) as folder:
        clock = group.clock_offset()
        observer = observer_of(
            group=group, folder=folder, began_s=perf_counter(), log=log if group.rank == 0 else lambda line: None
        )
        del observer_of  # it has the model
        observer.case()  # raises for a value that a case cannot hold
        leave_pid(folder, group.rank)
        sampler = _sampler(observer)
        error: BaseException | None = None
        with Stoppable() as stoppable:
            try:
                with sampler, observer.watching():
                    yield observer
            except BaseException as why:
                error = why
                raise
            finally:
                stoppable.leaving = True
                out = out if Path.cwd() == where else where / out
                _finish(observer, sampler, clock, error, stoppable, out, label, log)
                observer.release()
                error = None  # its traceback has this frame


def _finish(
    observer: Observer,
    sampler: Sampler,
    clock: dict[str, float] | None,
    error: BaseException | None,
    stoppable: Stoppable,
    out: Path,
    label: str | None,
    log: Log,
) -> None:
    """Send the results of this rank to rank 0, which records them. The training is over, so errors are logged."""
    group = observer.group
    own: Found | None = None
    try:
        try:
            own = Found.of(observer, sampler, clock, error, log)
        finally:
            if group.rank:
                group.send(as_json(own))  # also if it is None: rank 0 must not wait for it
        if group.rank:
            return
        began_s = perf_counter()
        others = group.collect(LEAVE_S if error is None else FAILED_S, lambda: stoppable.asked)
        if error is None and not observer.steps:
            log(f"watch: nothing is recorded: {observer.why_no_step()}")
        else:
            found = [own, *map(Found.from_json, others)]
            record(observer, found, perf_counter() - began_s, out, label, log)
    except Exception as why:  # a successful training run must not end with an error of an instrument
        kind = "" if isinstance(why, (UsageError, OSError)) else f"{type(why).__name__}: "
        log(f"watch: the results of rank {group.rank} are not recorded: {kind}{why}")


class Stoppable:
    """Let SIGTERM, which a launcher sends to all ranks if one fails, end the block like `sys.exit`; once the block is
    `leaving`, only after the results are recorded. A handler of the user stays."""

    def __init__(self) -> None:
        self.leaving = self.asked = False

    def __enter__(self) -> Stoppable:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._stop)
        return self

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.asked = self.leaving
        if not self.leaving:
            sys.exit(128 + number)

    def __exit__(self, *_: object) -> None:
        if signal.getsignal(signal.SIGTERM) == self._stop:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if self.asked:
                signal.raise_signal(signal.SIGTERM)


def _unfailing(log: Log | None) -> Log:
    """Return `log`, or a function that writes to stderr if there is none or if it fails."""
    on_stderr = logger(Console(file=sys.stderr))
    if log is None:
        return on_stderr

    def write(line: str) -> None:
        try:
            log(line)
        except Exception as why:  # no error of `watch` ends a training run
            on_stderr(f"watch: log failed ({type(why).__name__}: {why}) with this line: {line}")

    return write


def _sampler(observer: Observer) -> Sampler:
    """Return the reader of this rank's process and device, and of the load of others on its host."""
    launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else os.getpid()
    # The model's device as NVML finds it; none on a CPU, or if NVML does not show it.
    gpus = this_machine().gpus if observer.device.type == accelerator.TYPE else ()
    at = observer.device.index or 0
    used = [Used(gpu.index, gpu.address) for gpu in gpus[at : at + 1] if gpu.address is not None]
    if used:
        keep_nvml()
    pids = RankPids(observer.folder, [observer.group.rank])
    sources = sources_of(observer.began_s, pids, (lambda: used) if used else None, launcher)
    return Sampler(observer.began_s, sources, period_s=READING_S)
