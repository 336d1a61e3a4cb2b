"""NVML: what each reading costs, how its counters behave, and what a sampler in the driver costs a training."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pynvml
import torch

from benchmarks.gpu.check import Check, Seen
from benchmarks.gpu.trainings import case, launched, times
from parabench.machine.nvml import READINGS, processes, unsupported
from parabench.plan.protocol import Protocol

READS = 200
COPIED_BYTES = 20_000_000_000
BLOCK_BYTES = 1 << 30
WATCHED_S = 5.0
UNSIGNED_INT = 1
UINT32 = 1 << 32
# A tick of ten a second must leave the driver most of its time.
MOST_TICK_S = 0.05
LONG = Protocol(warmup=50, steps=2000, instrumented=0)


def _handle(device: torch.device) -> Any:
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByPciBusId(_address(device))


def _address(device: torch.device) -> str:
    known = torch.cuda.get_device_properties(device)
    return f"{known.pci_domain_id:08x}:{known.pci_bus_id:02x}:{known.pci_device_id:02x}.0"


def readings(device: torch.device) -> Seen:
    """Each reading, many times: medians of what it takes, and which this device does not have."""
    handle = _handle(device)
    asks: dict[str, Callable[[Any], object]] = {}
    missing = []
    for reading in READINGS:
        for ask in reading.asks:
            try:
                ask(handle)
            except (pynvml.NVMLError, AttributeError) as error:
                if not unsupported(error):
                    return Seen.judged(f"{reading.metrics[0]}: {error}", False)
            else:
                asks[reading.metrics[0]] = ask
                break
        else:
            missing.append(reading.metrics[0])
    asks["processes"] = processes
    cost_s = {name: statistics.median(_cost(ask, handle) for _ in range(READS)) for name, ask in asks.items()}
    tick_s = sum(cost_s.values())
    slowest = max(cost_s, key=lambda name: cost_s[name])
    said = f"a tick of all takes {tick_s * 1e3:.1f} ms, of it {slowest} {cost_s[slowest] * 1e3:.1f} ms"
    return Seen.judged(
        f"{said}; not known: {', '.join(missing) or 'none'}", tick_s < MOST_TICK_S, cost_s=cost_s, missing=missing
    )


def _cost(ask: Callable[[Any], object], handle: Any) -> float:
    begin = time.perf_counter()
    ask(handle)
    return time.perf_counter() - begin


def pcie_counters(device: torch.device) -> Seen:
    """What the PCIe counters grow by, wraps undone as the sampler does it, against bytes really copied."""
    handle = _handle(device)
    source = torch.empty(BLOCK_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(BLOCK_BYTES, dtype=torch.uint8, device=device)
    target.copy_(source)
    torch.cuda.synchronize(device)
    field = pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES
    try:
        kind, last = _field(handle, field)
    except pynvml.NVMLError as error:
        return Seen.not_run(f"this device has no such counter: {error}")
    counted, copied, wraps = 0, 0, 0
    while copied < COPIED_BYTES:
        target.copy_(source)
        torch.cuda.synchronize(device)
        copied += BLOCK_BYTES
        _, now = _field(handle, field)
        wraps += now < last
        counted += (now - last) % UINT32 if kind == UNSIGNED_INT else now - last
        last = now
    return Seen.judged(
        f"value type {kind}, {wraps} wraps; counted {counted / 1e9:.1f} GB of {copied / 1e9:.1f} GB copied",
        0.9 * copied < counted < 1.5 * copied,
        value_type=kind,
        wraps=wraps,
    )


def _field(handle: Any, name: int) -> tuple[int, int]:
    value = pynvml.nvmlDeviceGetFieldValues(handle, [name])[0]
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    kind = int(value.valueType)
    return kind, int(value.value.uiVal if kind == UNSIGNED_INT else value.value.ullVal)


def energy_counter(device: torch.device) -> Seen:
    """How often the energy counter changes under load: what a window must hold many of."""
    handle = _handle(device)
    try:
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError as error:
        return Seen.not_run(f"this device has no energy counter: {error}")
    over = Event()
    load = Thread(target=_multiply, args=(device, over))
    load.start()
    begin = time.perf_counter()
    changes, last = [], pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    first = last
    while (now_s := time.perf_counter()) < begin + WATCHED_S:
        millijoules = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        if millijoules != last:
            changes.append(now_s)
            last = millijoules
    over.set()
    load.join()
    watts = (last - first) / 1e3 / WATCHED_S
    gaps = [b - a for a, b in itertools.pairwise(changes)]
    if not gaps:
        return Seen.judged(f"{len(changes)} changes in {WATCHED_S:g} s", False)
    return Seen.judged(
        f"it changes every {statistics.median(gaps) * 1e3:.0f} ms (at most {max(gaps) * 1e3:.0f}); {watts:.0f} W",
        len(changes) >= 20 and 50 < watts < 2000,
        median_gap_s=statistics.median(gaps),
        watts=watts,
    )


def _multiply(device: torch.device, over: Event) -> None:
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    while not over.is_set():
        a @ a
        torch.cuda.synchronize(device)


def sampling(device: torch.device) -> Seen:
    """The same training with NVML read ten times a second in the driver, and with no NVML to be found."""
    medians: dict[bool, list[float]] = {True: [], False: []}
    init = pynvml.nvmlInit
    each = case(device, model="gpt-nano", global_batch=8)
    for _ in range(2):
        for watched in (True, False):
            pynvml.nvmlInit = init if watched else _no_nvml
            try:
                seen = launched(each, LONG)
            finally:
                pynvml.nvmlInit = init
            if seen.failure is not None:
                return Seen.judged(str(seen.failure), False)
            if bool(seen.device_samples) is not watched:
                return Seen.judged(f"{len(seen.device_samples)} device samples where watched is {watched}", False)
            medians[watched].append(statistics.median(times(seen)))
    ratio = min(medians[True]) / min(medians[False])
    return Seen.judged(f"steps take {ratio - 1:+.2%} with the sampler", ratio < 1.005, medians_s=str(medians))


def _no_nvml() -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


CHECKS = (
    Check("nvml-readings", f"a tick of all readings below {MOST_TICK_S * 1e3:.0f} ms", 60, readings),
    Check("pcie-counters", "counted bytes 0.9 to 1.5 times those copied, wraps undone", 60, pcie_counters),
    Check("energy-counter", "20 changes or more in 5 s of load; 50 to 2000 W", 60, energy_counter),
    Check("sampling", "steps at most 0.5 % longer with the sampler", 200, sampling),
)
