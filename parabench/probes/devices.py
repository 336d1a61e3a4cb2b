"""Read the devices of a launch through NVML: their state, the memory of ranks, and other processes."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

from parabench.machine import nvml
from parabench.probes.host import Host, descendants
from parabench.probes.sampler import PERIOD_S, RankPids, Source
from parabench.store.record import MAY_HAVE_WRAPPED, DeviceSample

FOREIGN = ("foreign_processes", "foreign_bytes")

# Processes that do not compute, by the first 15 characters of their names: the server of CUDA's Multi-Process Service,
# and NVIDIA's Data Center GPU Manager.
MPS = "nvidia-cuda-mps"
MONITORS = ("nv-hostengine", "dcgm-exporter")
PROC = Path("/proc")

UNLISTED = "NVML does not list this launch's ranks: they have not started, or they are in another namespace"
UNREPORTED = "NVML does not report this process's memory"
WRAPPED = "the counter was reset"

# The time between two readings of a counter that may overflow between two ticks. A 32-bit counter of a PCIe 5 x16 link
# overflows after 68 ms or more.
PAIR_S = 0.02


class Devices(Source):
    """Read the devices that `used` returns after the start of NVML. Processes that `ours` started are not foreign."""

    name = "nvml"

    def __init__(
        self,
        began_s: float,
        pids: RankPids,
        used: Callable[[], Sequence[nvml.Used]],
        *,
        sleep: Callable[[float], None] = time.sleep,
        **more: Any,
    ) -> None:
        super().__init__(began_s, pids, **more)
        self._used, self._sleep = used, sleep
        self._nvml = ExitStack()
        self._devices: list[_Device] = []
        self._a_rank_was_listed = False

    def start(self) -> None:
        """Find the devices. Raises pynvml.NVMLError if NVML is not available or fails."""
        with ExitStack() as begun:
            begun.enter_context(nvml.session())
            self._devices = [_Device(one, self) for one in self._used()]
            self._nvml = begun.pop_all()

    def tick(self) -> None:
        ranks = {pid: rank for rank, pid in self._pids.look().items()}
        for device in self._devices:
            for reading in nvml.READINGS:
                if self._ticks % reading.every == 0 and reading not in device.fast:
                    device.read(reading)
            if self._ticks % nvml.SELDOM == 0:
                self._read_processes(device, ranks)
        fast = [(device, reading) for device in self._devices for reading in device.fast]
        if fast and self._ticks % nvml.SELDOM == 0:
            # All fast counters are read twice, at the end of a tick, so that no other reading is late.
            for device, reading in fast:
                device.restart(reading)
            self._sleep(PAIR_S)
            for device, reading in fast:
                device.read(reading)
        self._ticks += 1

    def stop(self) -> None:
        """Read slow readings once more, because a launch may be shorter than their period."""
        for device in self._devices:
            for reading in nvml.READINGS:
                if reading.every > 1:
                    device.read(reading)
        self._nvml.close()

    def _read_processes(self, device: _Device, ranks: dict[int, int]) -> None:
        there = device.ask(FOREIGN, (nvml.processes,))
        if there is None:
            return
        for pid in sorted(there.keys() & ranks.keys()):
            self._a_rank_was_listed = True
            held = there[pid]
            device.tell("used_bytes", held, None if held is not None else UNREPORTED, rank=ranks[pid])
        if not self._a_rank_was_listed:
            for metric in FOREIGN:
                device.tell(metric, None, UNLISTED)
            return
        me = os.getpid()
        # The processes of the launch that this one is interleaved with (`ab`).
        partners = set() if self._ours == me else {*descendants(self._ours)} - {*descendants(me)}
        strangers = {pid: _name(pid) for pid in there if pid not in {*ranks, me, *partners}}
        device.tell("mps_servers", float(sum(name == MPS for name in strangers.values())))
        others = [there[pid] for pid, name in strangers.items() if name not in (MPS, *MONITORS)]
        known = [held for held in others if held is not None]
        device.tell("foreign_processes", float(len(others)))
        unknown = len(known) < len(others)
        device.tell("foreign_bytes", None if unknown else sum(known), UNREPORTED if unknown else None)


def _name(pid: int) -> str | None:
    """Return the kernel's name of a process; None if it has ended or is in another namespace."""
    try:
        return (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return None


class _Device:
    """One device and its supported calls. `source` keeps its rows. `fast` counters may overflow between two ticks."""

    def __init__(self, used: nvml.Used, source: Source) -> None:
        self._used, self._source = used, source
        self._handle: Any = None
        self._mig = False
        self._t_s = 0.0
        self._asks: dict[tuple[str, ...], tuple[Callable[[Any], Any], ...]] = {}
        self._counted: dict[tuple[str, ...], tuple[float, nvml.Counts]] = {}
        self.fast: list[nvml.Reading] = []

    def read(self, reading: nvml.Reading) -> None:
        """Make one reading, and keep it as rows."""
        seen = self.ask(reading.metrics, reading.asks)
        if seen is None:
            self._counted.pop(reading.metrics, None)
        elif isinstance(seen, nvml.Counts):
            if reading not in self.fast and seen.most is not None and seen.most * PERIOD_S >= seen.period:
                self.fast.append(reading)
            self._read_rates(reading.metrics, seen)
        else:
            for metric, number in zip(reading.metrics, seen if isinstance(seen, tuple) else (seen,), strict=True):
                self.tell(metric, number)

    def restart(self, reading: nvml.Reading) -> None:
        """Read counters. The rate of the next reading starts here."""
        self._counted.pop(reading.metrics, None)
        self.read(reading)

    def _read_rates(self, metrics: tuple[str, ...], counts: nvml.Counts) -> None:
        before_s, before = self._counted.get(metrics, (self._t_s, counts))
        self._counted[metrics] = self._t_s, counts
        passed_s = self._t_s - before_s
        if passed_s <= 0:
            return
        # If the counter may have overflowed twice, or the link's speed is unknown, the rate is unknown.
        lost = counts.period < math.inf and (counts.most is None or counts.most * passed_s >= counts.period)
        for metric, first, last in zip(metrics, before.numbers, counts.numbers, strict=True):
            grown = last - first if counts.period == math.inf else (last - first) % counts.period
            reason = MAY_HAVE_WRAPPED if lost else WRAPPED if grown < 0 else None
            self.tell(metric, None if reason else grown / passed_s, reason)

    def ask(self, metrics: tuple[str, ...], asks: tuple[Callable[[Any], Any], ...]) -> Any:
        """Return the result of the first of `asks` that this device supports; else None, with a row for the reason.

        Calls that are not supported or not permitted are not made again.
        """
        self._t_s = self._source.now_s()
        left = self._asks.setdefault(metrics, asks)
        reason = None
        while left:
            try:
                if self._handle is None:
                    self._handle = self._used.handle()
                    self._mig = nvml.mig_is_on(self._handle)
                return left[0](self._handle)
            except Exception as error:
                reason = nvml.reason_of(error, mig=self._mig)
                if not nvml.refused(error):
                    break
                left = self._asks[metrics] = left[1:]
        if reason is not None:
            for metric in metrics:
                self.tell(metric, None, reason)
        return None

    def tell(self, metric: str, value: float | None, reason: str | None = None, *, rank: int | None = None) -> None:
        """Keep one row, with the time of the last call."""
        self._source.keep(DeviceSample(self._used.number, self._t_s, metric, value, rank, reason))


def sources_of(
    began_s: float, pids: RankPids, used: Callable[[], Sequence[nvml.Used]] | None, ours: int
) -> list[Source]:
    """Return the sources of a launch. `used` returns the devices of its ranks, and is None for CPUs."""
    host = Host(began_s, pids, ours=ours)
    return [host] if used is None else [host, Devices(began_s, pids, used, ours=ours)]


def unreadable_metrics() -> tuple[list[tuple[int, dict[str, str]]], str | None]:
    """Return [(device, {metric: why it cannot be read})] of CUDA's devices, and the reason if there are none."""
    devices, reason = nvml.asked(
        lambda: [(one.number, _unread(one)) for one in nvml.devices_at(nvml.visible_devices())]
    )
    return devices or [], reason


def _unread(used: nvml.Used) -> dict[str, str]:
    source = Source(perf_counter(), RankPids(Path(), ()))
    device = _Device(used, source)
    for reading in nvml.READINGS:
        device.ask(reading.metrics, reading.asks)
    device.ask(FOREIGN, (nvml.processes,))
    return {row.metric: row.reason for row in source.samples}
