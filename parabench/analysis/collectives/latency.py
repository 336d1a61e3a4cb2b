"""The latency and the bandwidth of each algorithm, fitted to its times: a + S b for S bytes.

This is Hockney's model ("The communication challenge for MPP: Intel Paragon and Meiko CS-2", 1994) of a whole
collective. 1 / b is the algorithm bandwidth of large sizes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from parabench.analysis.collectives.bus import bus_factor
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.quantiles import t_quantile
from parabench.store.record import GB
from parabench.store.results import records

# Reweighting ends when both constants move by less than this, relatively, or after the most iterations.
_STEADY, _MOST_ITERATIONS = 1e-10, 100
_COLUMNS = ["latency_s", "latency_s_low", "latency_s_high", "busbw", "busbw_low", "busbw_high", "error"]


def fitted(good: pd.DataFrame) -> pd.DataFrame:
    """Return one row per configuration with two sizes or more, from `bus.good_sizes`; unknown numbers are NaN.

    - `latency_s`: the time of an empty buffer
    - `busbw`: the bus bandwidth of large buffers, GB/s
    - `..._low` and `..._high`: their 95% confidence intervals over launches
    - `error`: the root mean square of (line - measured) / measured
    """
    rows = []
    for case, group in good.groupby("case", sort=False):
        if group["bytes"].nunique() > 1:
            row = records(group.iloc[:1])[0]
            numbers = _numbers(group, bus_factor(row["op"], int(row["world_size"])))
            rows.append({"case_id": case, "label": row["label"]} | dict(zip(_COLUMNS, numbers, strict=True)))
    return pd.DataFrame(rows, columns=["case_id", "label", *_COLUMNS])


def _numbers(group: pd.DataFrame, factor: float) -> list[float]:
    sizes, seconds = group["bytes"].to_numpy(dtype=float), group["call_s"].to_numpy(dtype=float)
    latency, per_byte = line = _line(sizes, seconds)
    error = math.sqrt(np.mean(((latency + per_byte * sizes) / seconds - 1) ** 2))
    bandwidth = factor / per_byte / GB if per_byte > 0 else math.nan
    launches = group["launch_id"].to_numpy()
    others = [launches != each for each in np.unique(launches)]
    unknown = any(len(np.unique(sizes[kept])) < 2 for kept in others)
    if len(others) < 2 or unknown or per_byte <= 0:
        return [latency, math.nan, math.nan, bandwidth, math.nan, math.nan, error]
    # A jackknife over launches, because a disturbed launch shifts all of its sizes (MacKinnon, Nielsen and Webb, "Fast
    # and reliable jackknife and bootstrap methods for cluster-robust inference", 2023: CV3).
    moved = np.array([_line(sizes[kept], seconds[kept]) for kept in others]) - line
    n = len(others)
    half = t_quantile((1 + CONFIDENCE) / 2, n - 1) * np.sqrt((1 - 1 / n) * np.square(moved).sum(axis=0))
    ends, factor_off = (max(0.0, latency - half[0]), latency + half[0]), math.exp(half[1] / per_byte)
    return [latency, *ends, bandwidth, bandwidth / factor_off, bandwidth * factor_off, error]


def _line(sizes: NDArray[Any], seconds: NDArray[Any]) -> NDArray[Any]:
    """Return a and b, not below 0, with the least squared errors relative to the line.

    Errors relative to the measured times would make both constants too small.
    """
    from scipy import optimize  # takes a third of a second to import, which most commands do not need

    design, weights, line = np.stack([np.ones_like(sizes), sizes], axis=1), 1 / seconds, np.zeros(2)
    for _ in range(_MOST_ITERATIONS):
        before, weighted = line, design * weights[:, None]
        scale = np.linalg.norm(weighted, axis=0)
        line = optimize.nnls(weighted / scale, seconds * weights)[0] / scale
        if np.allclose(line, before, rtol=_STEADY, atol=0):
            break
        weights = 1 / (design @ line)
    return line
