"""Read the devices of a launch through NVML, in SI units: their state, the memory of ranks, and other processes.

If a device or driver does not support a reading, pynvml raises NVMLError. Names follow NVIDIA's nvml.h.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import pynvml

from parabench.machine import nvml
from parabench.probes.sampler import PERIOD_S, Host, RankPids, Source, descendants
from parabench.store.record import MAY_HAVE_WRAPPED, NOT_SUPPORTED, DeviceSample

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

# {NVML's type of a field: the name of its value}
_HELD = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
# All links of a device together.
_ALL_LINKS = 0xFFFFFFFF

_REASONS = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission",
    pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU is lost: it fell off the bus or has hung",
    pynvml.NVML_ERROR_NOT_FOUND: "NVML does not show this device to this process",
}

Numbers = tuple[float, ...]

# The maximum bytes per second in one direction: {generation: rate of a PCIe lane} (PCI-SIG), and the rate of NVLink 5.
PCIE_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
NVLINK_MOST = 900e9


@dataclass(frozen=True, slots=True)
class Counters:
    """Values of counters that wrap around after `period` (or infinity), and grow by at most `most` per second."""

    numbers: Numbers
    period: float
    most: float | None


@dataclass(frozen=True)
class Reading:
    """A reading of NVML and its metrics. Metrics of `Counters` are rates per second.

    `calls` are tried in order until the device supports one. The reading is made once in `every` ticks.
    """

    metrics: tuple[str, ...]
    calls: tuple[Callable[[Any], float | Numbers | Counters], ...]
    every: int = 1


def _reader(function: str, *arguments: int, unit: float = 1) -> Callable[[Any], float]:
    """Return a function that calls NVML's `function` and multiplies its value by `unit`."""
    return lambda handle: float(getattr(pynvml, function)(handle, *arguments) * unit)


def _utilization(handle: Any) -> Numbers:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu / 100, rates.memory / 100


def _pcie(handle: Any) -> Counters:
    """Read the byte counters of the PCIe link. Many devices have 32-bit counters.

    nvmlDeviceGetPcieThroughput is not used: it blocks for 20 ms in each direction.
    """
    values = _values(handle, pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES)
    try:
        generation = pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        most = PCIE_LANE[generation] * pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
    except (pynvml.NVMLError, KeyError):
        most = None
    return _counts(values, 1, most)


def _nvlink(handle: Any) -> Counters:
    sent, received = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
    return _counts(_values(handle, (sent, _ALL_LINKS), (received, _ALL_LINKS)), 1024, NVLINK_MOST)


def _ecc(handle: Any) -> Numbers:
    kinds = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    return tuple(float(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_VOLATILE_ECC)) for kind in kinds)


def _power(handle: Any) -> float:
    return _counts(_values(handle, pynvml.NVML_FI_DEV_POWER_INSTANT), 1e-3, None).numbers[0]


def _values(handle: Any, *names: Any) -> list[Any]:
    """Return the values of NVML's fields, which are given as numbers, or as pairs of number and scope."""
    values = pynvml.nvmlDeviceGetFieldValues(handle, list(names))
    for field in values:
        if field.nvmlReturn == pynvml.NVML_ERROR_INVALID_ARGUMENT:  # this driver does not have the field
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if field.nvmlReturn != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(field.nvmlReturn)
    return list(values)


def _counts(values: Sequence[Any], unit: float, most: float | None) -> Counters:
    numbers = tuple(float(getattr(field.value, _HELD[int(field.valueType)])) * unit for field in values)
    short = any(int(field.valueType) == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT for field in values)
    return Counters(numbers, 2.0**32 * unit if short else math.inf, most)


# Process lists, means of the last second and slowly changing values are read once a second: the readings of all devices
# must fit into 100 ms.
SELDOM = 10

# NVML counts energy in mJ, power in mW, clocks in MHz and utilization in percent.
READINGS = (
    Reading(("used_bytes",), (lambda handle: float(pynvml.nvmlDeviceGetMemoryInfo(handle).used),)),
    Reading(("energy_j",), (_reader("nvmlDeviceGetTotalEnergyConsumption", unit=1e-3),)),
    # On most devices since Ampere, the second is the mean of the last second.
    Reading(("power_w",), (_power, _reader("nvmlDeviceGetPowerUsage", unit=1e-3))),
    # These reasons are read just before the clock. Drivers before 535 have the second name.
    Reading(
        ("clock_event_reasons",),
        (_reader("nvmlDeviceGetCurrentClocksEventReasons"), _reader("nvmlDeviceGetCurrentClocksThrottleReasons")),
    ),
    Reading(("sm_clock_hz",), (_reader("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM, unit=1e6),)),
    Reading(("memory_clock_hz",), (_reader("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM, unit=1e6),), SELDOM),
    Reading(("gpu_utilization", "memory_utilization"), (_utilization,), SELDOM),
    Reading(("temperature_c",), (_reader("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),), SELDOM),
    Reading(("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"), (_pcie,)),
    Reading(("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s"), (_nvlink,)),
    Reading(("ecc_corrected", "ecc_uncorrected"), (_ecc,), SELDOM),
)


def processes(handle: Any) -> dict[int, float | None]:
    """Return {process id: bytes in use on the device}, with None if NVML does not report them.

    A process can be in both of NVML's lists. If it uses several MIG instances, it is in a list several times.
    """
    held: dict[tuple[int, Any, Any], int | None] = {}
    computing = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    try:
        drawing = pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
    except pynvml.NVMLError as error:
        if not unsupported(error):
            raise
        drawing = []
    for one in (*computing, *drawing):
        instance = getattr(one, "gpuInstanceId", None), getattr(one, "computeInstanceId", None)
        held[(one.pid, *instance)] = one.usedGpuMemory
    sums: dict[int, float | None] = {}
    for (pid, *_), size in held.items():
        before = sums.get(pid, 0.0)
        sums[pid] = None if size is None or before is None else before + size
    return sums


def unsupported(error: Exception) -> bool:
    """Return whether the device, driver or binding does not have the call."""
    return isinstance(error, AttributeError) or _REASONS.get(getattr(error, "value", None)) == NOT_SUPPORTED


def refused(error: Exception) -> bool:
    """Return whether the call will fail again: it is not supported, or not permitted."""
    return unsupported(error) or getattr(error, "value", None) == pynvml.NVML_ERROR_NO_PERMISSION


def reason_of(error: Exception, *, mig: bool) -> str:
    """Return why a value is null. If MIG is on, it is named as a possible cause."""
    if isinstance(error, pynvml.NVMLError):
        reason = _REASONS.get(error.value, str(error))
        return f"{reason}, and MIG is enabled" if mig and refused(error) else reason
    return NOT_SUPPORTED if unsupported(error) else f"{type(error).__name__}: {error}"


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
            for reading in READINGS:
                if self._ticks % reading.every == 0 and reading not in device.fast:
                    device.read(reading)
            if self._ticks % SELDOM == 0:
                self._read_processes(device, ranks)
        fast = [(device, reading) for device in self._devices for reading in device.fast]
        if fast and self._ticks % SELDOM == 0:
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
            for reading in READINGS:
                if reading.every > 1:
                    device.read(reading)
        self._nvml.close()

    def _read_processes(self, device: _Device, ranks: dict[int, int]) -> None:
        there = device.call(FOREIGN, (processes,))
        if there is None:
            return
        for pid in sorted(there.keys() & ranks.keys()):
            self._a_rank_was_listed = True
            held = there[pid]
            device.keep("used_bytes", held, None if held is not None else UNREPORTED, rank=ranks[pid])
        if not self._a_rank_was_listed:
            for metric in FOREIGN:
                device.keep(metric, None, UNLISTED)
            return
        me = os.getpid()
        # The processes of the launch that this one is interleaved with (`ab`).
        partners = set() if self._ours == me else {*descendants(self._ours)} - {*descendants(me)}
        strangers = {pid: _name(pid) for pid in there if pid not in {*ranks, me, *partners}}
        device.keep("mps_servers", float(sum(name == MPS for name in strangers.values())))
        others = [there[pid] for pid, name in strangers.items() if name not in (MPS, *MONITORS)]
        known = [held for held in others if held is not None]
        device.keep("foreign_processes", float(len(others)))
        unknown = len(known) < len(others)
        device.keep("foreign_bytes", None if unknown else sum(known), UNREPORTED if unknown else None)


def _name(pid: int) -> str | None:
    """Return the kernel's name of a process; None if it has ended or is in another namespace."""
    try:
        return (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return None


class _Device:
    """One device, with the NVML functions that it supports. Its readings become rows of `source`.

    `fast` counters could wrap around between two ticks, so their rate is measured by two readings in one tick.
    """

    def __init__(self, used: nvml.Used, source: Source) -> None:
        self._used, self._source = used, source
        self._handle: Any = None
        self._mig = False
        self._t_s = 0.0
        self._calls: dict[tuple[str, ...], tuple[Callable[[Any], Any], ...]] = {}
        self._counted: dict[tuple[str, ...], tuple[float, Counters]] = {}
        self.fast: list[Reading] = []

    def read(self, reading: Reading) -> None:
        """Make one reading, and keep its values as rows."""
        seen = self.call(reading.metrics, reading.calls)
        if seen is None:
            self._counted.pop(reading.metrics, None)
        elif isinstance(seen, Counters):
            if reading not in self.fast and seen.most is not None and seen.most * PERIOD_S >= seen.period:
                self.fast.append(reading)
            self._read_rates(reading.metrics, seen)
        else:
            for metric, number in zip(reading.metrics, seen if isinstance(seen, tuple) else (seen,), strict=True):
                self.keep(metric, number)

    def restart(self, reading: Reading) -> None:
        """Read counters. The rate of the next reading starts here."""
        self._counted.pop(reading.metrics, None)
        self.read(reading)

    def _read_rates(self, metrics: tuple[str, ...], counts: Counters) -> None:
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
            self.keep(metric, None if reason else grown / passed_s, reason)

    def call(self, metrics: tuple[str, ...], calls: tuple[Callable[[Any], Any], ...]) -> Any:
        """Return the result of the first of `calls` that this device supports.

        If there is none, return None and keep a row with the reason. Calls that are not supported or not permitted are
        not made again.
        """
        self._t_s = self._source.now_s()
        left = self._calls.setdefault(metrics, calls)
        reason = None
        while left:
            try:
                if self._handle is None:
                    self._handle = self._used.handle()
                    self._mig = nvml.mig_is_on(self._handle)
                return left[0](self._handle)
            except Exception as error:
                reason = reason_of(error, mig=self._mig)
                if not refused(error):
                    break
                left = self._calls[metrics] = left[1:]
        if reason is not None:
            for metric in metrics:
                self.keep(metric, None, reason)
        return None

    def keep(self, metric: str, value: float | None, reason: str | None = None, *, rank: int | None = None) -> None:
        """Keep one row, with the time of the last call."""
        self._source.keep(DeviceSample(self._used.number, self._t_s, metric, value, rank, reason))


def sources_of(
    began_s: float, pids: RankPids, used: Callable[[], Sequence[nvml.Used]] | None, ours: int
) -> list[Source]:
    """Return the sources of a launch. `used` returns the devices of its ranks, and is None for CPUs."""
    host = Host(began_s, pids, ours=ours)
    return [host] if used is None else [host, Devices(began_s, pids, used, ours=ours)]


def unreadable_metrics() -> tuple[list[tuple[int, dict[str, str]]], str | None]:
    """Return [(device, {metric: reason})] of metrics that cannot be read, and the reason if NVML finds no device."""
    devices, reason = nvml.asked(
        lambda: [(one.number, _unread(one)) for one in nvml.devices_at(nvml.visible_devices())]
    )
    return devices or [], reason


def _unread(used: nvml.Used) -> dict[str, str]:
    """Return {metric: reason} of the metrics that cannot be read from this device."""
    source = Source(perf_counter(), RankPids(Path(), ()))
    device = _Device(used, source)
    for reading in READINGS:
        device.call(reading.metrics, reading.calls)
    device.call(FOREIGN, (processes,))
    return {row.metric: row.reason for row in source.samples}
