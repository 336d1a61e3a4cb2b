"""Used memory of each device, sampled through NVML by the launcher's process, never by a rank."""

from __future__ import annotations

import threading
import time
from types import TracebackType

import pynvml

from parabench.record import DeviceSample

PERIOD_S = 0.1


def unavailable() -> str | None:
    """Why there is no NVML here, or None when there is."""
    try:
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return f"NVML is not available: {error}"
    return None


class DeviceSampler:
    """Samples every device ten times a second while its block runs. Without NVML it does nothing."""

    def __init__(self) -> None:
        self.samples: list[DeviceSample] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="parabench nvml", daemon=True)

    def __enter__(self) -> DeviceSampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _loop(self) -> None:
        begin = time.perf_counter()
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            while True:
                for device, handle in enumerate(handles):
                    self.samples.append(DeviceSample(device, time.perf_counter() - begin, "used_bytes", _used(handle)))
                if self._stop.wait(PERIOD_S):
                    return
        finally:
            pynvml.nvmlShutdown()


def _used(handle: object) -> float | None:
    """Bytes in use; None when this device does not tell (no permission, fallen off the bus)."""
    try:
        return float(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    except pynvml.NVMLError:
        return None
