"""`watch`: a training loop of the user's own, seen as parabench sees its trainer's.

with watch(model, optimizer) as steps:
    for batch in steps(loader):
        ...
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any, NoReturn, ParamSpec

import torch
from rich.console import Console
from torch import nn

from parabench.errors import UsageError
from parabench.files import launch_folder, shared_memory_folder
from parabench.launch.processes import ProcessOutcome
from parabench.launch.rank import error_of
from parabench.launch.results import NodeResult, as_json
from parabench.machine import accelerator
from parabench.machine.machine import this_machine
from parabench.machine.nvml import Used, keep_nvml
from parabench.plan.turns import TurnsProtocol
from parabench.probes import sources_of
from parabench.probes.sampler import RankPids, Sampler, Watched, leave_pid
from parabench.session.progress import logger
from parabench.session.request import check_label
from parabench.session.resume import check_writable
from parabench.store.record import DeviceSample, HostSample
from parabench.watching.group import FAILED_S, LEAVE_S, Group
from parabench.watching.hosts import of_this
from parabench.watching.observer import Observer
from parabench.watching.race import ROUNDS, SETTLE, TIMED, checked
from parabench.watching.record import Seen, record
from parabench.watching.schedule import Schedule

P = ParamSpec("P")

# Readings of the host, by a thread of the rank: seldom, for it takes time from the loop.
READING_S = 1.0


class Watching(contextlib.AbstractContextManager[Observer, bool | None]):
    """What `watch` returns, to be entered with `with`."""

    def __init__(self, context: contextlib.AbstractContextManager[Observer, bool | None]) -> None:
        self._context = context

    def __enter__(self) -> Observer:
        return self._context.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._context.__exit__(*error)

    def __call__(self, *_: Any) -> NoReturn:
        raise UsageError("watch is used without `with`; write `with watch(model, optimizer) as steps:`")

    __iter__ = __call__


def _entered_with(function: Callable[P, Iterator[Observer]]) -> Callable[P, Watching]:
    context = contextlib.contextmanager(function)

    @functools.wraps(function)
    def watching(*args: P.args, **named: P.kwargs) -> Watching:
        return Watching(context(*args, **named))

    return watching


@_entered_with
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
    race: Mapping[str, Sequence[float]] | None = None,
    rounds: int = ROUNDS,
    log: Callable[[str], None] | None = None,
) -> Iterator[Observer]:
    """Time the steps of a training loop, on every rank of the default process group, or in one process without one.

    `model` is what the loop calls (wrapped by DDP, sharded, compiled or plain), `optimizer` the one whose step ends a
    training step. What the block is given is called with the batches, once an epoch. At the end rank 0 writes a session
    into the store of the folder `out`, and its report, and says through `log` (else on stderr) what was found. Nothing
    of the training changes, and no step waits for a device or another rank because of it, but in instrumented steps and
    a race.

    `name` is what the model is called, else its class. Runs with one `label`, script and model are launches of one
    session. `global_batch` and `seq_len`, samples of a step over all ranks and tokens of each, are read from the first
    batch where they are not given. The first `warmup` steps do not count; `instrumented` steps follow one another with
    instruments on, soon and then ever more seldom (`schedule.INSTRUMENTED_AT`), 0 for none. In a `race`, such as
    {"bucket_mib": [1, 4, 25]}, DDP's bucket caps take turns in so many `rounds` after the warm-up; the training goes on
    with the fastest.

    An error of an instrument switches that instrument off, and leaves the training alone; the printed lines and the
    report give the reason. An error that ends the block is recorded and raised again. If the block is stopped (Ctrl-C,
    SIGTERM, `sys.exit`), the steps before are recorded.

    Raises UsageError, before the first step, for what cannot be watched.
    """
    inner: Any = getattr(optimizer, "optimizer", optimizer)  # accelerate's wraps the real one
    numbers = {"warmup": warmup, "instrumented": instrumented, "global_batch": global_batch, "seq_len": seq_len}
    check_asked(model, inner, **numbers, rounds=rounds)
    if not isinstance(out, (str, os.PathLike)):
        raise UsageError(f"watch: out is {out!r}; give the path of a folder")
    if log is not None and not callable(log):
        raise UsageError(f"watch: log is {log!r}; give a function that takes a line, or None")
    if label is not None:
        check_label(label)
    caps = checked(race, model) if race is not None else ()
    turns = TurnsProtocol(rounds=rounds, settle=SETTLE, timed=TIMED) if caps else None
    group = Group.enter()
    folder, where = Path(out), Path.cwd()
    if group.rank == 0:
        check_writable(folder, option="out")
    say = _unfailing(log)
    with launch_folder(shared_memory_folder()) as own:
        clock = group.clock_offset()
        observer = Observer(
            module=model,
            optimizer=inner,
            group=group,
            schedule=Schedule(warmup, instrumented, turns, len(caps)),
            folder=own,
            began_s=perf_counter(),
            caps=caps,
            log=say if group.rank == 0 else _silently,
            name=name,
            global_batch=global_batch,
            seq_len=seq_len,
        )
        observer.case()  # raises for what a case cannot hold
        leave_pid(own, group.rank)
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
                out = folder if Path.cwd() == where else where / folder
                _hand_in(observer, (sampler, clock), error, stoppable, out, label, say)
                observer.release()
                error = None  # its traceback has this frame


def check_asked(model: Any, optimizer: Any, **numbers: int | None) -> None:
    """Raise UsageError for what cannot be watched, and for a number that none of what is asked for can be."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"watch: {type(model).__name__} is no torch.nn.Module; give the model that the loop calls")
    if not isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        raise UsageError(f"watch: {kind} is no torch.optim.Optimizer; give the one whose step() the loop calls")
    if not getattr(type(optimizer).step, "hooked", False):  # torch sets it in Optimizer.__init__
        kind = type(optimizer).__name__
        raise UsageError(
            f"watch: {kind} does not call Optimizer.__init__, so its step() cannot be observed; "
            "give the inner optimizer, the one whose step() it calls"
        )
    for name, value in numbers.items():
        least = {"warmup": 2, "instrumented": 0}.get(name, 1)
        if value is not None and (not isinstance(value, (int, float)) or value < least):
            raise UsageError(f"watch: {name} is {value!r}; give {least} or more")


@dataclass
class Stoppable:
    """SIGTERM, with which a launcher ends the other ranks of one that failed, ends the block like `sys.exit`, but once
    it is `leaving` only when what was seen is recorded. A handler of the user's own stays."""

    leaving: bool = False
    asked: bool = False
    _ours: bool = False

    def __enter__(self) -> Stoppable:
        here = threading.current_thread() is threading.main_thread()
        self._ours = here and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if self._ours:
            signal.signal(signal.SIGTERM, self._stop)
        return self

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.asked = self.leaving
        if not self.leaving:
            sys.exit(128 + number)

    def __exit__(self, *_: object) -> None:
        if self._ours and signal.getsignal(signal.SIGTERM) == self._stop:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if self.asked:
                signal.raise_signal(signal.SIGTERM)


def _unfailing(log: Callable[[str], None] | None) -> Callable[[str], None]:
    """Return a `log` that writes to stderr if there is none, or if it fails: its errors must not end a training."""
    on_stderr = logger(Console(file=sys.stderr))
    if log is None:
        return on_stderr

    def say(line: str) -> None:
        try:
            log(line)
        except Exception as why:
            on_stderr(f"watch: log failed ({type(why).__name__}: {why}) with this line: {line}")

    return say


def _silently(line: str) -> None:
    """What another rank than the first says."""


def _sampler(observer: Observer) -> Sampler:
    """What reads this rank's process and its device, and how much others compute on its host."""
    launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else os.getpid()
    began_s, used = observer.began_s, _used(observer.device)
    if used:
        keep_nvml()
    pids = RankPids(observer.folder, [observer.group.rank])
    watched = Watched(began_s=began_s, pids=pids, devices=(lambda: used) if used else None, ours=launcher)
    return Sampler(began_s, sources_of(watched), period_s=READING_S)


def _used(device: torch.device) -> list[Used]:
    """The device that the model is on, as NVML finds it; none on a CPU, or where NVML shows it not."""
    gpus = this_machine().gpus if device.type == accelerator.TYPE else ()
    at = device.index or 0
    return [Used(gpus[at].index, address)] if at < len(gpus) and (address := gpus[at].address) is not None else []


def _told(
    observer: Observer,
    sampler: Sampler,
    clock: dict[str, float] | None,
    error: BaseException | None,
    log: Callable[[str], None],
) -> dict[str, Any]:
    """Return what this rank hands over: {"result": a NodeResult of one rank, "about": facts of its host, "stopped":
    True if it was asked to end}."""
    group = observer.group
    stopped = isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit))
    failed = error if not stopped else None
    report, marks = observer.read(error_of(failed) if failed is not None else None, log)
    report.clock = clock
    result = NodeResult(
        node=group.node,
        host=group.hosts[group.rank],
        first_rank=group.rank,
        reports=[report],
        marks=[marks],
        outcome=ProcessOutcome(ok=failed is None),
        began_s=observer.began_s,
        tails=[] if failed is None else [""],
        device_samples=sampler.samples(DeviceSample),
        host_samples=[each for each in sampler.samples(HostSample) if each.rank is not None or group.local_rank == 0],
        sampler=sampler.facts(),
    )
    return {"result": as_json(result), "about": of_this(group, this_machine()), "stopped": stopped}


def _hand_in(
    observer: Observer,
    read: tuple[Sampler, dict[str, float] | None],
    error: BaseException | None,
    stoppable: Stoppable,
    folder: Path,
    label: str | None,
    log: Callable[[str], None],
) -> None:
    """Hand over what this rank saw; at rank 0 record what all did. The training is over: what goes wrong here is said,
    and nothing more."""
    group = observer.group
    told: dict[str, Any] = {}
    try:
        try:
            told = _told(observer, *read, error, log)
        finally:
            if group.rank:
                group.publish("seen", told)  # also that it is nothing: nobody is to wait for it
        if group.rank:
            return
        began_s = perf_counter()
        came = group.collect("seen", told, LEAVE_S if error is None else FAILED_S, lambda: stoppable.asked)
        waited_s = perf_counter() - began_s
        if error is None and not observer.steps:
            log(f"watch: nothing is recorded: {observer.why_no_step()}")
            return
        record(Seen(observer=observer, came=came, out=folder, label=label, waited_s=waited_s), log)
    except Exception as why:  # whatever it is: a training that went well is not to end with an error of ours
        kind = "" if isinstance(why, (UsageError, OSError)) else f"{type(why).__name__}: "
        log(f"watch: what rank {group.rank} saw is not recorded: {kind}{why}")
