"""Launches around which a sampler read devices and host, with a known truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fake_results as fake

from parabench.plan.case import Case
from parabench.store.record import DeviceSample, HostSample, Launch

BEGAN_S = 5000.0
# Warm-up, timed and instrumented steps of a launch, in seconds after it began.
PHASES = {"warmup": (0.5, 1.0), "measure": (1.0, 3.0), "instrument": (3.0, 3.4)}
TICKS = [round(0.1 * k, 1) for k in range(36)]

Value = Callable[[float], float | None] | float

HEALTHY: dict[str, Value] = {
    "used_bytes": lambda t: 1e9 + 2e9 * min(t, 1.0),
    "energy_j": lambda t: 7e6 + 500.0 * t,
    "power_w": 500.0,
    "sm_clock_hz": lambda t: 1.98e9 if 0.5 < t < 3.4 else 0.3e9,
    "clock_event_reasons": lambda t: 0.0 if 0.5 < t < 3.4 else 1.0,
    "gpu_utilization": 0.97,
    "memory_utilization": 0.5,
    "temperature_c": lambda t: 40.0 + 5.0 * t,
    "pcie_tx_bytes_per_s": 1e9,
    "pcie_rx_bytes_per_s": 2e9,
    "foreign_processes": 0.0,
    "foreign_bytes": 0.0,
    "ecc_corrected": 3.0,
    "ecc_uncorrected": 0.0,
}


def device_samples(device: int = 0, **changed: Value) -> list[DeviceSample]:
    """Readings of a device: HEALTHY but for what is `changed`."""
    return [
        DeviceSample(device, t, metric, value(t) if callable(value) else value)
        for t in TICKS
        for metric, value in (HEALTHY | changed).items()
    ]


def host_samples(ranks: int = 2, others: Value = 0.02) -> list[HostSample]:
    shares = [HostSample(None, t, "other_cpu_share", others(t) if callable(others) else others) for t in TICKS]
    return shares + [HostSample(rank, t, "rss_bytes", 3e8 + 1e7 * rank) for t in TICKS for rank in range(ranks)]


def read(of: Launch, devices: list[DeviceSample] | None = None, host: list[HostSample] | None = None) -> Launch:
    """The launch with what was read around it, and when its phases were."""
    of.device_samples += devices or []
    of.host_samples += host or []
    of.facts |= {
        "clock": {"began_s": BEGAN_S},
        "phases": {name: [BEGAN_S + begin, BEGAN_S + end] for name, (begin, end) in PHASES.items()},
        "sampler": {"period_s": 0.1, "ticks": len(TICKS), "missed": 0, "cpu_s": 0.015, "unread": {}},
    }
    return of


def gpu_case(**fields: Any) -> Case:
    return fake.case(device="cuda", **fields)


DEVICE = {
    "name": "NVIDIA H200", "memory_bytes": 150 * 10**9, "compute_capability": "9.0", "power_limit_w": 700.0,
    "power_default_w": 700.0, "power_max_w": 700.0, "sm_clock_hz": 345 * 10**6, "sm_clock_max_hz": 1980 * 10**6,
    "memory_clock_hz": 3201 * 10**6, "memory_clock_max_hz": 3201 * 10**6, "mig": False, "ecc": True,
    "pcie_generation": 5, "pcie_generation_max": 5, "pcie_width": 16, "pcie_width_max": 16, "cpus": "0-47",
    "numa_node": 0, "reasons": {},
}  # fmt: skip


HOT = {"clock_event_reasons": lambda t: 0x20 * (2 <= t < 2.3)}


def gpu_launches(blocks: int = 3) -> list[Launch]:
    """Two cases on two devices each, the second of which throttles for three readings."""
    launches = []
    for block in range(blocks):
        for bucket, step_s in ((1.0, 0.04), (25.0, 0.05)):
            own = [DeviceSample(d, t, "used_bytes", 2e9, rank=d) for t in TICKS for d in (0, 1)]
            devices = [*device_samples(0), *device_samples(1, **HOT), *own]
            launches.append(
                read(
                    fake.launch(gpu_case(bucket_mib=bucket), step_s + 0.001 * block, block=block),
                    devices,
                    host_samples(),
                )
            )
    return launches
