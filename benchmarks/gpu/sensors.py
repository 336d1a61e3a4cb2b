"""NVML: the cost of each reading, the behavior of its counters, and the cost of the sampler in the driver."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pynvml
import torch

from benchmarks.gpu.check import Outcome, Target, check
from benchmarks.gpu.launches import BY_TIME, REHEARSED, case, succeeded
from parabench.probes.devices import READINGS, processes, refused

READS = 100
COPIED_BYTES = 20_000_000_000
BLOCK_BYTES = 1 << 30
UNSIGNED_INT = 1
# The sampler reads all ten times a second, and must leave the driver most of its time.
MOST_TICK_S, MOST_CPU, MOST_MISSED = 0.05, 0.25, 0.1
# Power readings may be means of the last second, so a second of load comes first.
WARM_S, LOADED_S, POLL_S = 1.5, 5.0, 0.005
FEWEST_CHANGES = 20
LEAST_RATIO, MOST_RATIO = 0.8, 1.25


def handle_of(device: torch.device) -> Any:
    pynvml.nvmlInit()
    known = torch.cuda.get_device_properties(device)
    address = f"{known.pci_domain_id:08x}:{known.pci_bus_id:02x}:{known.pci_device_id:02x}.0"
    return pynvml.nvmlDeviceGetHandleByPciBusId(address)


def available(handle: Any) -> tuple[dict[str, Callable[[Any], Any]], dict[str, str]]:
    """Return the readings of this device, {metric: function}, and the reasons of missing ones, {metric: reason}.

    Raises NVMLError for an error that the sampler would not tolerate either.
    """
    asks: dict[str, Callable[[Any], Any]] = {}
    missing = {}
    for reading in READINGS:
        for ask in reading.calls:
            try:
                ask(handle)
            except (pynvml.NVMLError, AttributeError) as error:
                if not refused(error):
                    raise
                missing[reading.metrics[0]] = str(error)
            else:
                asks[reading.metrics[0]] = ask
                missing.pop(reading.metrics[0], None)
                break
    return asks, missing


@check("nvml-readings", f"all take less than {MOST_TICK_S * 1e3:.0f} ms together", 60, rehearsed=False, holds_gpu=True)
def readings(target: Target) -> Outcome:
    """Time each reading."""
    handle = handle_of(target.device)
    asks, missing = available(handle)
    asks["processes"] = processes
    cost_s = {name: statistics.median(_cost(ask, handle) for _ in range(READS)) for name, ask in asks.items()}
    tick_s = sum(cost_s.values())
    slowest = max(cost_s, key=lambda name: cost_s[name])
    text = f"all readings take {tick_s * 1e3:.1f} ms, {slowest} the longest with {cost_s[slowest] * 1e3:.1f} ms"
    return Outcome.judged(
        f"{text}; missing: {', '.join(missing) or 'none'}", tick_s < MOST_TICK_S, cost_s=cost_s, missing=missing
    )


def _cost(ask: Callable[[Any], object], handle: Any) -> float:
    begin = time.perf_counter()
    ask(handle)
    return time.perf_counter() - begin


@check(
    "pcie-counters", "counted bytes 0.9 to 1.5 times the copied ones, wraps undone", 60, rehearsed=False, holds_gpu=True
)
def pcie_counters(target: Target) -> Outcome:
    """Compare the growth of the PCIe counter with the bytes that were copied to the device."""
    handle, field = handle_of(target.device), pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES
    source = torch.empty(BLOCK_BYTES, dtype=torch.uint8, pin_memory=True)
    copy = torch.empty(BLOCK_BYTES, dtype=torch.uint8, device=target.device)
    copy.copy_(source)
    torch.cuda.synchronize(target.device)
    try:
        kind, last = _field(handle, field)
    except pynvml.NVMLError as error:
        return Outcome.not_run(f"this device has no such counter: {error}")
    bits = 32 if kind == UNSIGNED_INT else 64
    counted = copied = wraps = 0
    while copied < COPIED_BYTES:
        copy.copy_(source)
        torch.cuda.synchronize(target.device)
        copied += BLOCK_BYTES
        _, now = _field(handle, field)
        wraps += now < last
        counted, last = counted + (now - last) % (1 << bits), now
    return Outcome.judged(
        f"{bits} bits, {wraps} wraps; counted {counted / 1e9:.1f} GB of {copied / 1e9:.1f} GB copied",
        0.9 * copied < counted < 1.5 * copied,
        bits=bits,
        wraps=wraps,
    )


def _field(handle: Any, name: int) -> tuple[int, int]:
    value = pynvml.nvmlDeviceGetFieldValues(handle, [name])[0]
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    kind = int(value.valueType)
    return kind, int(value.value.uiVal if kind == UNSIGNED_INT else value.value.ullVal)


@check(
    "energy",
    f"joules {LEAST_RATIO} to {MOST_RATIO} of power times time; {FEWEST_CHANGES} changes in {LOADED_S:g} s",
    60,
    rehearsed=False,
    holds_gpu=True,
)
def energy(target: Target) -> Outcome:
    """Compare the energy counter with mean power times time, under load; count how often the counter changes."""
    handle = handle_of(target.device)
    asks, missing = available(handle)
    if absent := [name for name in ("energy_j", "power_w") if name not in asks]:
        return Outcome.not_run(f"this device does not report {absent[0]}: {missing[absent[0]]}")
    over = Event()
    load = Thread(target=_multiply, args=(target.device, over))
    load.start()
    try:
        time.sleep(WARM_S)
        series: dict[str, list[tuple[float, float]]] = {"energy_j": [], "power_w": []}
        until = time.perf_counter() + LOADED_S
        while time.perf_counter() < until:
            for name, found in series.items():
                (value,) = asks[name](handle)
                found.append((time.perf_counter(), value))
            time.sleep(POLL_S)  # the load needs the interpreter, too
    finally:
        over.set()
        load.join()
    # The readings at which the counter changed: the window is from the first to the last.
    moved = [after for before, after in itertools.pairwise(series["energy_j"]) if after[1] != before[1]]
    changes, watts = len(moved), statistics.mean(value for _, value in series["power_w"])
    between = [value for at, value in series["power_w"] if moved and moved[0][0] <= at <= moved[-1][0]]
    if changes < 2 or not sum(between):
        return Outcome.judged(f"the counter changed {changes} times in {LOADED_S:g} s; {watts:.0f} W", False)
    seconds, joules = (last - first for first, last in zip(moved[0], moved[-1], strict=True))
    ratio = joules / (statistics.mean(between) * seconds)
    return Outcome.judged(
        f"joules are {ratio:.2f} of power times time; {changes} changes in {LOADED_S:g} s; mean power {watts:.0f} W",
        LEAST_RATIO < ratio < MOST_RATIO and changes >= FEWEST_CHANGES,
        ratio=ratio,
        changes=changes,
        watts=watts,
    )


def _multiply(device: torch.device, over: Event) -> None:
    """Keep the device busy. Products are queued in batches, so that the interpreter is free most of the time."""
    a = torch.randn(8192, 8192, device=device).to(torch.bfloat16)
    product = torch.empty_like(a)
    while not over.is_set():
        for _ in range(20):
            torch.mm(a, a, out=product)
        torch.cuda.synchronize(device)


@check("sampling", f"less than {MOST_CPU:.0%} of a core; less than {MOST_MISSED:.0%} of the readings missed", 120)
def sampling(target: Target) -> Outcome:
    """Check the cost of the driver's sampler during a launch, and that it missed few readings."""
    seen = succeeded(case(target), REHEARSED if target.is_cpu else BY_TIME)
    sampler = seen.facts["sampler"]
    ticks, missed = sampler["ticks"], sampler["missed"]
    share = sampler["cpu_s"] / (max(1, ticks) * sampler["period_s"])
    rows = len(seen.host_samples if target.is_cpu else seen.device_samples)
    passed = share < MOST_CPU and missed <= MOST_MISSED * ticks and rows > 0
    return Outcome.judged(
        f"{ticks} ticks, {missed} missed, {rows} rows; the sampler uses {share:.1%} of a core",
        passed or (target.is_cpu and rows > 0),
        **sampler,
    )
