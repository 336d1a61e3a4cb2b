"""The readings of NVML in SI units, and the devices that ranks use.

If a device or driver does not support a reading, pynvml.NVMLError is raised. Names follow NVIDIA's nvml.h.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml

from parabench.store.record import NOT_SUPPORTED

# {NVML's type of a field: the name of its value}
_HELD = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
# All links of a device together.
_ALL_LINKS = 0xFFFFFFFF

HIDDEN = "NVML does not show this device to this process"
_REASONS = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission",
    pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU is lost: it fell off the bus or has hung",
    pynvml.NVML_ERROR_NOT_FOUND: HIDDEN,
}

Numbers = tuple[float, ...]
T = TypeVar("T")

# The maximum bytes per second in one direction: {generation: rate of a PCIe lane} (PCI-SIG), and the rate of NVLink 5.
PCIE_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
NVLINK_MOST = 900e9


@dataclass(frozen=True, slots=True)
class Counts:
    """Readings of counters that overflow after `period` (or infinity), and grow by at most `most` per second."""

    numbers: Numbers
    period: float
    most: float | None


@dataclass(frozen=True)
class Reading:
    """A call and its metrics. Metrics of `Counts` are rates per second.

    `asks` are tried in order until the device supports one. The call is made once in `every` ticks.
    """

    metrics: tuple[str, ...]
    asks: tuple[Callable[[Any], float | Numbers | Counts], ...]
    every: int = 1


def _asking(function: str, *arguments: int, unit: float = 1) -> Callable[[Any], float]:
    """Return a function that calls NVML and multiplies the value by `unit`."""
    return lambda handle: float(getattr(pynvml, function)(handle, *arguments) * unit)


def _utilization(handle: Any) -> Numbers:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu / 100, rates.memory / 100


def _pcie(handle: Any) -> Counts:
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


def _nvlink(handle: Any) -> Counts:
    sent, received = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
    return _counts(_values(handle, (sent, _ALL_LINKS), (received, _ALL_LINKS)), 1024, NVLINK_MOST)


def _ecc(handle: Any) -> Numbers:
    kinds = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    return tuple(float(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_VOLATILE_ECC)) for kind in kinds)


def _power(handle: Any) -> float:
    return _counts(_values(handle, pynvml.NVML_FI_DEV_POWER_INSTANT), 1e-3, None).numbers[0]


def _values(handle: Any, *names: Any) -> list[Any]:
    """Return the fields with these numbers, or pairs of number and scope."""
    values = pynvml.nvmlDeviceGetFieldValues(handle, list(names))
    for field in values:
        if field.nvmlReturn == pynvml.NVML_ERROR_INVALID_ARGUMENT:  # this driver does not have the field
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if field.nvmlReturn != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(field.nvmlReturn)
    return list(values)


def _counts(values: Sequence[Any], unit: float, most: float | None) -> Counts:
    numbers = tuple(float(getattr(field.value, _HELD[int(field.valueType)])) * unit for field in values)
    short = any(int(field.valueType) == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT for field in values)
    return Counts(numbers, 2.0**32 * unit if short else math.inf, most)


# Process lists, means of the last second and slowly changing values are read once a second: the readings of all devices
# must fit into 100 ms.
SELDOM = 10

# NVML counts energy in mJ, power in mW, clocks in MHz and utilization in percent.
READINGS = (
    Reading(("used_bytes",), (lambda handle: float(pynvml.nvmlDeviceGetMemoryInfo(handle).used),)),
    Reading(("energy_j",), (_asking("nvmlDeviceGetTotalEnergyConsumption", unit=1e-3),)),
    # On most devices since Ampere, the second is the mean of the last second.
    Reading(("power_w",), (_power, _asking("nvmlDeviceGetPowerUsage", unit=1e-3))),
    # These reasons are read just before the clock. Drivers before 535 have the second name.
    Reading(
        ("clock_event_reasons",),
        (_asking("nvmlDeviceGetCurrentClocksEventReasons"), _asking("nvmlDeviceGetCurrentClocksThrottleReasons")),
    ),
    Reading(("sm_clock_hz",), (_asking("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM, unit=1e6),)),
    Reading(("memory_clock_hz",), (_asking("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM, unit=1e6),), SELDOM),
    Reading(("gpu_utilization", "memory_utilization"), (_utilization,), SELDOM),
    Reading(("temperature_c",), (_asking("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),), SELDOM),
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


def mig_is_on(handle: Any) -> bool:
    """Return whether the device is split into instances."""
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError:
        return False


@contextmanager
def session() -> Iterator[None]:
    """Start NVML, and shut it down at the end of the block. Raises pynvml.NVMLError if NVML is not available."""
    pynvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def asked(question: Callable[[], T]) -> tuple[T | None, str | None]:
    """Call `question` in a session of NVML. Return (the result, None), or (None, the reason)."""
    begun = False
    try:
        with session():
            begun = True
            return question(), None
    except pynvml.NVMLError as error:
        return None, f"NVML {'failed' if begun else 'is not available'}: {error}"


@functools.cache
def keep_nvml() -> None:
    """Start NVML, if it is available, until this process ends.

    Without persistence mode, a driver without users unloads, and each launch would wait for it.
    """
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()


@dataclass(frozen=True, slots=True)
class Used:
    """A device that ranks use: its recorded number, and its PCI address.

    NVML's numbers differ between processes if a container or a batch system shows them different devices.
    """

    number: int
    address: str

    def handle(self) -> Any:
        return pynvml.nvmlDeviceGetHandleByPciBusId(self.address)


def used_devices(size: int) -> list[Used]:
    """Return the devices that `size` ranks use, in the order of CUDA_VISIBLE_DEVICES.

    If the devices are of one kind, or with CUDA_DEVICE_ORDER=PCI_BUS_ID, CUDA has NVML's order. Otherwise, every
    visible device counts as used.
    """
    visible = visible_devices()
    names = {pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in visible}
    ordered = len(names) <= 1 or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return devices_at(sorted(visible[:size] if ordered else visible))


def devices_at(indices: Iterable[int]) -> list[Used]:
    """Return the devices with these numbers."""
    return [Used(index, address_of(pynvml.nvmlDeviceGetHandleByIndex(index))) for index in indices]


def address_of(handle: Any) -> str:
    """Return a device's PCI address in NVML's format."""
    return str(pynvml.nvmlDeviceGetPciInfo(handle).busId)


def free_memory(size: int) -> list[tuple[Used, int | None]]:
    """Return the devices that `size` ranks use with their free bytes; `None` if unknown, as with MIG.

    If NVML does not read these devices, the list is empty.
    """

    def free(device: Used) -> int | None:
        handle = device.handle()
        try:
            return None if mig_is_on(handle) else int(pynvml.nvmlDeviceGetMemoryInfo(handle).free)
        except pynvml.NVMLError:
            return None

    return asked(lambda: [(each, free(each)) for each in used_devices(size)])[0] or []


def one_process_only() -> bool:
    """Return whether a visible device is in the compute mode for one process, if NVML reports it."""

    def exclusive(index: int) -> bool:
        try:
            mode = pynvml.nvmlDeviceGetComputeMode(pynvml.nvmlDeviceGetHandleByIndex(index))
        except pynvml.NVMLError:
            return False
        return bool(mode == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)

    return bool(asked(lambda: any(map(exclusive, visible_devices())))[0])


def readable_devices() -> list[int]:
    """Return NVML's index of each device that this process may use."""
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        with suppress(pynvml.NVMLError_NoPermission):
            pynvml.nvmlDeviceGetHandleByIndex(index)
            found.append(index)
    return found


def visible_devices() -> list[int]:
    """Return NVML's index of each device that CUDA uses, in CUDA's order.

    CUDA stops at the first invalid entry of CUDA_VISIBLE_DEVICES. If a device has MIG instances, CUDA uses only one
    instance (NVIDIA Multi-Instance GPU User Guide, "CUDA device enumeration").
    """
    named = readable_devices()
    if (wanted := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        found = (_index_of(entry.strip(), named) for entry in wanted.split(","))
        named = [index for index in itertools.takewhile(lambda index: index is not None, found) if index is not None]
    split = next((index for index in named if mig_instance(index) is not None), None)
    return named if split is None else [split]


def _index_of(entry: str, there: Sequence[int]) -> int | None:
    """Return the device of an entry of CUDA_VISIBLE_DEVICES; None if it does not exist."""
    if entry.isdigit():
        return there[int(entry)] if int(entry) < len(there) else None
    if entry.startswith("MIG-"):
        return _parent_of(entry)
    uuids = ((index, pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))) for index in there)
    return next((index for index, uuid in uuids if entry.startswith("GPU-") and uuid.startswith(entry)), None)


def mig_instance(index: int) -> Any | None:
    """Return NVML's handle of the MIG instance that CUDA uses on a device; None without an instance.

    This is the first instance in CUDA_VISIBLE_DEVICES, or else the device's first.
    """
    parent = pynvml.nvmlDeviceGetHandleByIndex(index)
    if not mig_is_on(parent):
        return None
    for entry in map(str.strip, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")):
        if entry.startswith("MIG-") and _parent_of(entry) == index:
            return pynvml.nvmlDeviceGetHandleByUUID(entry)
    with suppress(pynvml.NVMLError):
        for at in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(parent)):
            with suppress(pynvml.NVMLError):
                return pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, at)
    return None


def _parent_of(uuid: str) -> int | None:
    """Return the index of a MIG instance's device; None if the instance does not exist."""
    try:
        instance = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return int(pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance)))
    except pynvml.NVMLError:
        return None


def unsupported(error: Exception) -> bool:
    """Return whether the device, driver or binding does not have the call."""
    return isinstance(error, AttributeError) or _REASONS.get(getattr(error, "value", None)) == NOT_SUPPORTED


def refused(error: Exception) -> bool:
    """Return whether the call will fail again: it is not supported, or not permitted."""
    return unsupported(error) or getattr(error, "value", None) == pynvml.NVML_ERROR_NO_PERMISSION


def reason_of(error: Exception, *, mig: bool) -> str:
    """Return why a value is null. MIG is a possible reason."""
    if isinstance(error, pynvml.NVMLError):
        reason = _REASONS.get(error.value, str(error))
        return f"{reason}, and MIG is enabled" if mig and refused(error) else reason
    return NOT_SUPPORTED if unsupported(error) else f"{type(error).__name__}: {error}"
