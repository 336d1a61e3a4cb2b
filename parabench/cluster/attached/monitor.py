"""What looks at a host and its devices while ranks measure: a process beside them, so that no rank's time goes into it.

Where `parabench run` has its driver, a group that somebody else started has none.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from parabench.machine.nvml import Used, keep_nvml
from parabench.probes import SOURCES, sources_of
from parabench.probes.sampler import PATIENCE_S, PERIOD_S, RankPids, Sampler, Watched
from parabench.signals import die_with_parent
from parabench.store.record import DeviceSample, HostSample

# A spawned process imports Python's and our modules first.
BEGIN_S = 60.0

GONE = "the process that reads is gone"


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be looked at: from `began_s` on, so many seconds before the first reading, the ranks of this host with
    their process ids, the host itself or not, and those `devices`. `folder` is the launch's."""

    folder: Path
    began_s: float
    pids: Mapping[int, int]
    host: bool = True
    devices: Sequence[Used] = ()


@dataclass(frozen=True, slots=True)
class Readings:
    """What it read, and what reading cost, as `Sampler.facts` tells."""

    devices: list[DeviceSample] = field(default_factory=list)
    hosts: list[HostSample] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


class HostMonitor:
    """The process that looks. It ends with this one, however that ends."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        context.Process(target=_serve, args=(theirs, os.getpid()), name="parabench watch", daemon=True).start()
        theirs.close()
        with suppress(EOFError, OSError):
            if self._pipe.poll(BEGIN_S):  # no launch's time includes its imports
                self._pipe.recv()

    def begin(self, ask: Request) -> None:
        with suppress(OSError):
            self._pipe.send(ask)

    def end(self) -> Readings:
        """Look no more; what there was to be seen."""
        with suppress(EOFError, OSError):
            self._pipe.send(None)
            if self._pipe.poll(2 * PATIENCE_S):
                seen = self._pipe.recv()
                assert isinstance(seen, Readings)
                return seen
        self._pipe.close()
        unread = dict.fromkeys(SOURCES, GONE)
        return Readings(facts={"period_s": PERIOD_S, "ticks": 0, "missed": 0, "cpu_s": None, "unread": unread})


def _serve(pipe: Connection, rank: int) -> None:
    # Ctrl-C in a terminal reaches this one too; SIGTERM is how a rank that ends has it ended.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the rank may ignore it
    die_with_parent(rank)
    # mpirun binds a rank to a core, and what the rank starts with it: there every reading would be in its way.
    with suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    with suppress(EOFError, OSError):
        pipe.send(None)
        while True:
            ask: Request = pipe.recv()
            pipe.send(_look(ask, pipe))


def _look(ask: Request, pipe: Connection) -> Readings:
    ranks: Sequence[int] = list(ask.pids)
    for rank, pid in ask.pids.items():
        (ask.folder / f"pid{rank}").write_text(str(pid))
    known = RankPids(ask.folder, ranks)
    if ask.devices:
        keep_nvml()
    devices = (lambda: ask.devices) if ask.devices else None
    sources = sources_of(Watched(began_s=ask.began_s, pids=known, host=ask.host, devices=devices))
    with Sampler(ask.began_s, sources) as sampler:
        pipe.recv()
    return Readings(sampler.samples(DeviceSample), sampler.samples(HostSample), sampler.facts())
