"""Warnings about devices that computed in another arithmetic, without compilation, or that waited for the host.

The host enqueues kernels without waiting. A slower device lags until the launch queue is full (about 1,000 kernels).
With a slower host, the device lags by a kernel or two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from parabench.analysis.efficiency import efficiency
from parabench.analysis.session import SessionData
from parabench.analysis.warnings.codes import Rule
from parabench.machine import accelerator
from parabench.metrics import STEP_PARTS
from parabench.models import PRECISIONS
from parabench.store.record import Finding

# The lag as a share of the step. A device that limits lags by half a step or more. The last kernels of a step take
# 10 to 100 us, and the step takes milliseconds.
SMALL_LAG = 0.1
# Waiting for batches causes a warning from this share of the step on.
WAITS = 0.1

OTHER_ARITHMETIC = Rule(
    "other_arithmetic",
    None,
    "{label}: {other}, so this is not the precision that the case names.",
    "Remove what overrides it from the environment and the model's code, or select the precision that was used.",
    worst="launch_id",
)
ABOVE_PEAK = Rule(
    "mfu_above_peak",
    lambda row: row["mfu"] > 1,
    "{label}: up to {mfu:percent} of the devices' peak FLOP/s, which is impossible.",
    "Check whether matrix products ran in a narrower arithmetic than the case's precision; if not, the FLOP count is "
    "wrong.",
    worst="mfu",
)
LAUNCH_BOUND = Rule(
    "launch_bound",
    lambda row: row["median_lag"] < SMALL_LAG,
    "{label}: the device of rank {rank} is never more than {lag_s:ms} behind its host, in a step of {step_s:ms} "
    "({data_s:ms} for the batch). It waits for the host, so these times measure the host and not the device.",
    "Give the device more in each step (a larger model, global_batch or seq_len), launch less (fused=on, compile=on, "
    "or CUDA graphs in a custom strategy), or load batches in other processes (--set workers).",
)
NOT_COMPILED = Rule(
    "not_compiled",
    lambda row: row["eager_frames"] > 0 or row["graphs"] == 0,
    "{label}: torch.compile made {graphs:#graph} and gave up {eager_frames:#frame} of Python code, so these times "
    "include eager mode.",
    "Unset TORCH_COMPILE_DISABLE if it is set. Otherwise TORCH_LOGS=recompiles,graph_breaks shows the cause, such as "
    "code that depends on a changing number and is compiled for each value.",
    worst="eager_frames",
)
DATA_BOUND = Rule(
    "data_bound",
    lambda row: row["share"] > WAITS,
    "{label}: {share:percent} of a step is spent waiting for its batch ({data_s:ms} of {whole_s:ms}).",
    "Load in more processes (--set workers, DataLoader's num_workers), or make a batch cheaper to load.",
)


def findings(seen: SessionData) -> Iterator[Finding]:
    """Yield the warnings about waiting for the host, for torch.compile and for batches."""
    # The sum of the parts, which are medians: a step's own number may be another quantile.
    whole_s = seen.cases[list(STEP_PARTS)].sum(axis=1)
    yield from LAUNCH_BOUND.findings(_lags(seen))
    yield from NOT_COMPILED.findings(_compiled(seen))
    yield from DATA_BOUND.findings(seen.cases.assign(whole_s=whole_s, share=seen.cases["data_s"] / whole_s))


def _lags(seen: SessionData) -> pd.DataFrame:
    """Return the rank whose device lags least in the median launch of each configuration on CUDA.

    Launches whose collectives block the host, as gloo's do, are left out: there, the lag says nothing.
    """
    medians, good = seen.results.medians, seen.counted
    free = (good["device"] == accelerator.TYPE) & ((good["world_size"] == 1) | (good["backend"] == accelerator.BACKEND))
    rows = medians[medians["metric"].isin(["device_lag_s", "step_s", "data_s"])]
    wide = rows.pivot_table("value", ["launch_id", "rank"], "metric", observed=True).rename(
        columns={"device_lag_s": "lag_s"}
    )
    wide = wide.reindex(columns=["lag_s", "step_s", "data_s"]).dropna(subset=["lag_s", "step_s"]).reset_index()
    lags = seen.of_launch[free].merge(wide.assign(lag=wide["lag_s"] / wide["step_s"]), on="launch_id")
    lags = lags.sort_values("lag", kind="stable").drop_duplicates("launch_id")
    by_case = lags.groupby("case_id", sort=False)
    lags = lags.assign(median_lag=by_case["lag"].transform("median"))
    return lags[by_case.cumcount() == (by_case["lag"].transform("size") - 1) // 2]


def _compiled(seen: SessionData) -> pd.DataFrame:
    """Return the most graphs and eager frames of a rank in each launch with torch.compile."""
    found = [
        {"label": label, **{name: max(rank[name] for rank in ranks) for name in ("graphs", "eager_frames")}}
        for at, label in zip(seen.counted["launch_id"], seen.counted["label"], strict=True)
        if (ranks := seen.facts[at].get("compiled"))
    ]
    return pd.DataFrame(found, columns=["label", "graphs", "eager_frames"])


def arithmetic(seen: SessionData) -> Iterator[Finding]:
    """Yield the warnings about ranks that computed in an unexpected arithmetic, or more than is possible."""
    good = seen.counted[seen.counted["device"] == accelerator.TYPE]
    launches = zip(good["precision"], good["launch_id"], strict=True)
    other = pd.Series(
        [_other(name, seen.facts[at].get("arithmetic")) for name, at in launches], good.index, dtype=object
    )
    yield from OTHER_ARITHMETIC.findings(good.assign(other=other)[other.notna()])
    yield from ABOVE_PEAK.findings(seen.once(efficiency))


def _other(precision: str, reported: dict[str, Any] | None) -> str | None:
    """Return how the arithmetic that a rank reported differs from the arithmetic of `precision`."""
    if reported is None:
        return None
    wants = PRECISIONS[precision].allows_tf32
    if reported["overrides"]:
        return f"{' and '.join(f'{name}={value}' for name, value in reported['overrides'].items())} was set"
    if (reported["matmul"] != "highest") is not wants:
        return f"float32 matrix products ran at torch's precision {reported['matmul']!r}"
    if reported["cudnn_tf32"] is not wants:
        return f"cuDNN's TF32 was {'on' if reported['cudnn_tf32'] else 'off'}"
    return None
