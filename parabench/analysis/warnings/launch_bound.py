"""Whether the host is what limits a step on CUDA: from how far the device lags behind it, at most, in the step.

The host enqueues kernels and does not wait for them. A device that is the slower of the two falls behind until the
launch queue is full (some 1,000 kernels, half a step of most models or more), and the host then enqueues at the
device's own pace: so how long enqueueing takes says nothing, but the lag does. A host that is the slower one is never
ahead: the device comes to each mark of the step a launch latency and a kernel or two after the host.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pandas as pd

from parabench.analysis.session import SessionData
from parabench.analysis.text import format
from parabench.machine import accelerator
from parabench.plan.case import Case
from parabench.store.record import Finding

# The lag as a share of the step. A launch and the last kernels of a step take some 10 to 100 us of steps that last
# milliseconds; a device that limits lags by half a step or more. A tenth is far from both.
SMALL_LAG = 0.1
# From this share on of the step that the device waits for a batch, loading is the cause that is named.
LOADS = 0.5


def lag_table(seen: SessionData) -> pd.DataFrame:
    """One row per launch on CUDA whose collectives do not block the host: `launch_id, case_id, label`, and of the rank
    whose device lags least `rank`, `lag_s`, `step_s`, `data_s` (medians of measured steps) and `lag`, the share that
    lag_s is of step_s."""
    texts = dict(zip(seen.launches["case_id"], seen.launches["case_json"], strict=True))
    free = {case_id for case_id in seen.good["case_id"].unique() if _free(Case.from_dict(json.loads(texts[case_id])))}
    good = seen.good[seen.good["case_id"].isin(free)][["launch_id", "case_id", "label"]]
    rows = seen.results.medians
    rows = rows[rows["launch_id"].isin(good["launch_id"]) & rows["metric"].isin(["device_lag_s", "step_s", "data_s"])]
    wide = rows.pivot_table(index=["launch_id", "rank"], columns="metric", values="value", observed=True)
    wide = (
        wide.rename(columns={"device_lag_s": "lag_s"})
        .reindex(columns=["lag_s", "step_s", "data_s"])
        .dropna(subset=["lag_s", "step_s"])
    )
    wide = wide.assign(lag=wide["lag_s"] / wide["step_s"]).reset_index()
    least = wide.sort_values("lag", kind="stable").drop_duplicates("launch_id")
    return good.merge(least, on="launch_id")


def findings(seen: SessionData) -> Iterator[Finding]:
    """The cases whose steps last as long as the host needs to enqueue them."""
    for case_id, rows in lag_table(seen).groupby("case_id", sort=False):
        if rows["lag"].median() >= SMALL_LAG:
            continue
        middle = rows.sort_values("lag", kind="stable").iloc[(len(rows) - 1) // 2]
        loading = middle["data_s"] / middle["step_s"]
        loads = loading >= LOADS
        yield Finding(
            code="launch_bound",
            message=f"{middle['label']}: the device of rank {middle['rank']} is never more than "
            f"{format.milliseconds(middle['lag_s'])} behind its host, of a step of "
            f"{format.milliseconds(middle['step_s'])}: it waits for the host, "
            + (
                f"{format.percent(loading)} of the step for the batch."
                if loads
                else "so these times compare Python and kernel launches, not the device."
            ),
            advice="Load batches in other processes (--set workers), or make them cheaper."
            if loads
            else "Give the device more in each step (a larger model, global_batch or seq_len), or launch less: "
            "fused=on, compile=on, or CUDA graphs in a strategy of your own.",
            case_id=str(case_id),
        )


def _free(case: Case) -> bool:
    """Whether nothing but a full launch queue holds up the host: gloo's collectives do, which the host waits for."""
    return case.device == accelerator.TYPE and (case.world_size == 1 or case.backend == accelerator.BACKEND)
