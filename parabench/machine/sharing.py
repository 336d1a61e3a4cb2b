"""Whether several launches may be on the visible devices at the same time: by their memory, and by their compute mode.
Free of torch."""

from __future__ import annotations

from dataclasses import dataclass

import pynvml

from parabench.machine import nvml


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device, by its number and its PCI address, and how much of its memory is free; None where that is not known, as
    of one that is split into instances."""

    number: int
    address: str
    free_bytes: int | None


def free_memory(size: int) -> list[DeviceMemory]:
    """Of the devices that `size` ranks use; none where NVML does not tell which these are."""

    def free(device: nvml.Used) -> int | None:
        handle = device.handle()
        try:
            return None if nvml.mig_is_on(handle) else int(pynvml.nvmlDeviceGetMemoryInfo(handle).free)
        except pynvml.NVMLError:
            return None

    found, _ = nvml.asked(
        lambda: [DeviceMemory(each.number, each.address, free(each)) for each in nvml.used_devices(size)]
    )
    return found or []


def one_process_only() -> bool:
    """Whether some visible device lets one process compute at a time. What NVML does not tell is taken for no."""

    def exclusive(index: int) -> bool:
        try:
            mode = pynvml.nvmlDeviceGetComputeMode(pynvml.nvmlDeviceGetHandleByIndex(index))
        except pynvml.NVMLError:
            return False
        return bool(mode == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)

    found, _ = nvml.asked(lambda: any(map(exclusive, nvml.visible_devices())))
    return bool(found)
