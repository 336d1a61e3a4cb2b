"""Use NVML (NVIDIA's library to read devices): start and stop it, and find the devices that ranks use."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml

T = TypeVar("T")


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
    """Start NVML, and return (the result of `question()`, None); (None, the reason) if NVML fails."""
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
    """A device that ranks use: its NVML index in this process, which is recorded, and its PCI address.

    In another process the index may differ, if a container or a batch system hides devices.
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
    """Return the devices with these NVML indices."""
    return [Used(index, address_of(pynvml.nvmlDeviceGetHandleByIndex(index))) for index in indices]


def mig_is_on(handle: Any) -> bool:
    """Return whether MIG has split the device into instances."""
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError:
        return False


def address_of(handle: Any) -> str:
    """Return a device's PCI address in NVML's format."""
    return str(pynvml.nvmlDeviceGetPciInfo(handle).busId)


def free_memory(size: int) -> list[tuple[Used, int | None]]:
    """Return (device, free bytes) for the devices that `size` ranks use. The bytes are None if unknown, as with MIG.

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
    """Return whether the compute mode of a visible device allows only one process; False if NVML does not report it."""

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
    """Return NVML's index of the device that an entry of CUDA_VISIBLE_DEVICES names; None if it does not exist."""
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
    """Return NVML's index of the device that has a MIG instance; None if the instance does not exist."""
    try:
        instance = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return int(pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance)))
    except pynvml.NVMLError:
        return None
