"""The arithmetic behind the verdicts, apart from any device: unit tests check it with made-up numbers."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from parabench.analysis.collectives.bus import bus_factor
from parabench.machine.peaks import peak_of
from parabench.models import FP16

GB_S, TB_S = 1e9, 1e12

# (part of the name, bytes per second, source): the memory bandwidth of NVIDIA's datasheets. The first match counts.
MEMORY = (
    ("A100-SXM4-80GB", 2039 * GB_S, "A100 datasheet (80GB SXM)"),
    ("A100 80GB PCIe", 1935 * GB_S, "A100 datasheet (80GB PCIe)"),
    ("A100-SXM4-40GB", 1555 * GB_S, "A100 datasheet of 2020 (40GB)"),
    ("A100-PCIE-40GB", 1555 * GB_S, "A100 datasheet of 2020 (40GB)"),
    ("A30", 933 * GB_S, "A30 datasheet"),
    ("A40", 696 * GB_S, "A40 datasheet"),
    ("A10G?", 600 * GB_S, "A10 and A10G datasheets"),
    ("H100 80GB HBM3", 3.35 * TB_S, "H100 datasheet (SXM)"),
    ("H100 NVL", 3.9 * TB_S, "H100 datasheet (NVL)"),
    ("H100 PCIe", 2.0 * TB_S, "H100 datasheet of 2023 (PCIe)"),
    ("H200", 4.8 * TB_S, "H200 datasheet"),
    ("B200", 8.0 * TB_S, "DGX B200 datasheet, an eighth of 64 TB/s"),
    ("L4", 300 * GB_S, "L4 datasheet"),
    ("L40S?", 864 * GB_S, "L40 and L40S datasheets"),
    ("T4", 320 * GB_S, "T4 datasheet"),
    ("V100-SXM2", 900 * GB_S, "V100 datasheet"),
    ("V100-PCIE", 900 * GB_S, "V100 datasheet"),
    ("RTX 6000 Ada", 960 * GB_S, "RTX 6000 Ada datasheet"),
    ("GeForce RTX 4090", 1008 * GB_S, "GeForce RTX 4090 specifications"),
)

# Bus bandwidths, in bytes per second, that no working backend falls below, and that no machine exceeds. Ranks that
# share a GPU are bounded by its memory; gloo by the host's.
BUS_LIMITS = {"gloo": (1e6, 1e12), "nccl": (1e7, 1e13)}

KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")


def memory_bandwidth_of(name: str) -> tuple[float | None, str]:
    """(bytes per second, the source), or (None, the reason why it is unknown)."""
    if peak_of(name, FP16)[0] is not None:  # a slice, a virtual GPU and a laptop's have another one's name
        for part, rate, source in MEMORY:
            if re.search(rf"(?<![\w-]){part}(?!\w)", name):
                return rate, source
    return None, f"the memory bandwidth of {name!r} is not in the table"


def flops_of(fact: Mapping[str, Any] | None) -> float | None:
    """The floating-point operations of a step, from a launch's fact `flops`; None if they were not counted."""
    counted = (fact or {}).get("counted")
    return None if counted is None else float(counted)


def mfu(fact: Mapping[str, Any] | None, step_s: float, peak: float | None) -> float | None:
    """Model FLOP utilization: counted operations per second of a step over the device's peak."""
    flops = flops_of(fact)
    return None if flops is None or peak is None else flops / step_s / peak


def spread(values: Sequence[float]) -> float:
    """By how much the largest value exceeds the smallest, relative to it. The first value is discarded."""
    rest = values[1:]
    return max(rest) / min(rest) - 1


def kernel_seconds(trace: Mapping[str, Any], categories: Sequence[str] = KERNELS) -> dict[str, float]:
    """Seconds of kernels and copies on each stream of a torch.profiler trace: {stream: seconds}."""
    streams: dict[str, float] = defaultdict(float)
    for event in trace["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in categories:
            streams[str(event.get("args", {}).get("stream", event.get("tid")))] += float(event["dur"]) / 1e6
    return dict(streams)


def moved(readings: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The (time, value) readings of a counter at which it had changed."""
    return [after for before, after in itertools.pairwise(readings) if after[1] != before[1]]


def joules_over_power(energy: Sequence[tuple[float, float]], power: Sequence[tuple[float, float]]) -> float | None:
    """Joules that the energy counter counted, over mean power times time.

    Both are (seconds, value) readings. The window is from the counter's first change to its last. None if it has not
    changed twice, or no power was read in between.
    """
    changes = moved(energy)
    watts = [value for at, value in power if changes and changes[0][0] <= at <= changes[-1][0]]
    if len(changes) < 2 or not sum(watts):
        return None
    seconds, joules = (last - first for first, last in zip(changes[0], changes[-1], strict=True))
    return joules / (sum(watts) / len(watts) * seconds)


def growth(before: int, now: int, bits: int) -> int:
    """By how much a counter of that many bits has grown, if it has wrapped around at most once."""
    return (now - before) % (1 << bits)


def bus_bandwidth(op: str, ranks: int, size: int, seconds: float) -> float:
    """Bytes per second on the links, as nccl-tests defines it, of one call with a buffer of `size` bytes."""
    return size / seconds * bus_factor(op, ranks)


def is_plausible_bus(rate: float, backend: str) -> bool:
    least, most = BUS_LIMITS[backend]
    return least < rate < most
