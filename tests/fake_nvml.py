"""NVML that is not here: pynvml's functions over devices with a known truth, at a time that a test sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

GIB = 2**30
UINT, ULL = 1, 3  # types of a field's value: an unsigned int, an unsigned long long


class Clock:
    """Time that passes when a sampler waits, or reads something slow; it ends the sampler when its end is reached."""

    def __init__(self, end_s: float, began_s: float = 1000.0) -> None:
        self.began_s = began_s
        self.now_s = began_s
        self.end_s = began_s + end_s

    def __call__(self) -> float:
        return self.now_s

    @property
    def passed_s(self) -> float:
        return self.now_s - self.began_s

    def set(self) -> None:
        """A sampler's stop; this one ends by itself."""

    def wait(self, timeout: float) -> bool:
        self.now_s += timeout
        return self.now_s >= self.end_s - 1e-9


@dataclass
class Device:
    """One device. Rates and loads are constant; counters grow with the clock.
    `forbidden` is one that NVML counts and this process may not use. `faults` maps a function's name (without
    `nvmlDevice`) or a field to an NVML error, `lost_from_s` is when it falls off the bus."""

    name: str = "NVIDIA H200"
    uuid: str = "GPU-0"
    address: str = ""
    forbidden: bool = False
    used: float = 2.0 * GIB
    power_w: float = 400.0
    clock_mhz: Callable[[float], int] = lambda t_s: 1980
    reasons: Callable[[float], int] = lambda t_s: 0
    pcie_bytes_per_s: tuple[float, float] = (1e9, 2e9)
    pcie_link: tuple[int, int] = (4, 16)
    nvlink_kib_per_s: tuple[float, float] = (1e6, 3e6)
    computing: list[tuple[int, int | None]] = field(default_factory=list)
    drawing: list[tuple[int, int | None]] = field(default_factory=list)
    mig: bool = False
    ecc: Callable[[float], tuple[int, int]] = lambda t_s: (0, 0)
    faults: dict[Any, int] = field(default_factory=dict)
    lost_from_s: float | None = None
    back_from_s: float = float("inf")
    asked: list[str] = field(default_factory=list)


class FakeNvml:
    """Put in place of pynvml's functions by `install`."""

    def __init__(self, *devices: Device, clock: Clock | None = None) -> None:
        self.devices = devices
        self.clock = clock or Clock(0.0)
        self.begun = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
        calls = {
            "MemoryInfo": lambda d: SimpleNamespace(used=d.used, total=140 * GIB),
            "TotalEnergyConsumption": lambda d: int(5e6 + d.power_w * self.clock.passed_s * 1e3),
            "PowerUsage": lambda d: int(d.power_w * 1e3),
            "UtilizationRates": lambda d: SimpleNamespace(gpu=98, memory=40),
            "Temperature": lambda d, sensor: 61,
            "ClockInfo": lambda d, of: d.clock_mhz(self.clock.passed_s) if of == pynvml.NVML_CLOCK_SM else 3201,
            "CurrentClocksEventReasons": lambda d: d.reasons(self.clock.passed_s),
            "CurrentClocksThrottleReasons": lambda d: d.reasons(self.clock.passed_s),
            "FieldValues": lambda d, names: [self._field(d, name) for name in names],
            "TotalEccErrors": lambda d, kind, counter: d.ecc(self.clock.passed_s)[kind],
            "ComputeRunningProcesses": lambda d: [self._process(*one) for one in d.computing],
            "GraphicsRunningProcesses": lambda d: [self._process(*one) for one in d.drawing],
            "MigMode": lambda d: [int(d.mig), int(d.mig)],
            "UUID": lambda d: d.uuid,
            "Name": lambda d: d.name,
            "MaxPcieLinkGeneration": lambda d: d.pcie_link[0],
            "MaxPcieLinkWidth": lambda d: d.pcie_link[1],
            "PciInfo": lambda d: SimpleNamespace(busId=self.address(d)),
        }
        for name, call in calls.items():
            monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", self._guarded(name, call))
        monkeypatch.setattr(pynvml, "nvmlInit", self._init)
        monkeypatch.setattr(pynvml, "nvmlShutdown", self._shutdown)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(self.devices))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", self._by_index)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByPciBusId", self._by_address)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", self._instance)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", lambda instance: instance.of)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetIndex", lambda device: self.devices.index(device))
        return self

    def address(self, device: Device) -> str:
        """A device's PCI address; a test may show one process fewer devices than another."""
        return device.address or f"00000000:{self.devices.index(device):02X}:00.0"

    def _by_index(self, index: int) -> Device:
        if self.devices[index].forbidden:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return self.devices[index]

    def _by_address(self, address: str) -> Device:
        for device in self.devices:
            if self.address(device) == address and not device.forbidden:
                return device
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def _guarded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(device: Device, *more: Any) -> Any:
            device.asked.append(name)
            lost = device.lost_from_s
            if lost is not None and lost <= self.clock.passed_s + 1e-9 < device.back_from_s:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
            if name in device.faults:
                raise pynvml.NVMLError(device.faults[name])
            return call(device, *more)

        return guarded

    def _field(self, device: Device, name: Any) -> SimpleNamespace:
        number, passed_s = (name[0] if isinstance(name, tuple) else name), self.clock.passed_s
        if number in device.faults:
            return SimpleNamespace(nvmlReturn=device.faults[number], valueType=ULL, value=None)
        value = {
            pynvml.NVML_FI_DEV_POWER_INSTANT: device.power_w * 1e3,
            pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES: device.pcie_bytes_per_s[0] * passed_s,
            pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES: device.pcie_bytes_per_s[1] * passed_s,
            pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: device.nvlink_kib_per_s[0] * passed_s,
            pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: device.nvlink_kib_per_s[1] * passed_s,
        }[number]
        if number in (pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES):
            held = SimpleNamespace(uiVal=round(value) % 2**32)
            return SimpleNamespace(nvmlReturn=0, valueType=UINT, value=held)
        return SimpleNamespace(nvmlReturn=0, valueType=ULL, value=SimpleNamespace(ullVal=round(value)))

    @staticmethod
    def _process(pid: int, used: int | None, instance: int | None = None) -> SimpleNamespace:
        return SimpleNamespace(pid=pid, usedGpuMemory=used, gpuInstanceId=instance, computeInstanceId=None)

    def _instance(self, uuid: str) -> SimpleNamespace:
        for device in self.devices:
            if uuid == f"MIG-of-{device.uuid}":
                return SimpleNamespace(of=device)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def _init(self) -> None:
        self.begun += 1

    def _shutdown(self) -> None:
        self.begun -= 1


def absent(monkeypatch: pytest.MonkeyPatch, error: int = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND) -> None:
    """A host without NVML."""

    def missing() -> None:
        raise pynvml.NVMLError(error)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
