"""The arithmetic of the verdicts, which needs no device."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from parabench.analysis.collectives.bus import bus_factor

# The limits of plausible bus bandwidths in bytes per second. Memory bounds ranks that share a GPU, and gloo.
BUS_LIMITS = {"gloo": (1e6, 1e12), "nccl": (1e7, 1e13)}

KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")


def spread(values: Sequence[float]) -> float:
    """Return largest / smallest - 1, without the first value."""
    rest = values[1:]
    return max(rest) / min(rest) - 1


def kernel_seconds(trace: Mapping[str, Any], categories: Sequence[str] = KERNELS) -> dict[str, float]:
    """Return {stream: seconds of kernels and copies} of a torch.profiler trace."""
    streams: dict[str, float] = defaultdict(float)
    for event in trace["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in categories:
            streams[str(event.get("args", {}).get("stream", event.get("tid")))] += float(event["dur"]) / 1e6
    return dict(streams)


def moved(readings: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the (time, value) readings of a counter that differ from the previous one."""
    return [after for before, after in itertools.pairwise(readings) if after[1] != before[1]]


def joules_over_power(energy: Sequence[tuple[float, float]], power: Sequence[tuple[float, float]]) -> float | None:
    """Return the joules of the energy counter over mean power times time.

    Both are (seconds, value) readings. The window is from the counter's first change to its last. Returns None if it
    has not changed twice, or if no power was read in between.
    """
    changes = moved(energy)
    watts = [value for at, value in power if changes and changes[0][0] <= at <= changes[-1][0]]
    if len(changes) < 2 or not sum(watts):
        return None
    seconds, joules = (last - first for first, last in zip(changes[0], changes[-1], strict=True))
    return joules / (sum(watts) / len(watts) * seconds)


def growth(before: int, now: int, bits: int) -> int:
    """Return the growth of a counter of `bits` bits that has wrapped around at most once."""
    return (now - before) % (1 << bits)


def bus_bandwidth(op: str, ranks: int, size: int, seconds: float) -> float:
    """Return the bytes per second on the links, as nccl-tests defines them, of a call with a buffer of `size` bytes."""
    return size / seconds * bus_factor(op, ranks)


def is_plausible_bus(rate: float, backend: str) -> bool:
    least, most = BUS_LIMITS[backend]
    return least < rate < most
