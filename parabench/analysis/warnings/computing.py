"""Doubts about what devices computed: in another arithmetic than their case's, not compiled, or waiting for the host.

The host enqueues kernels and does not wait for them. A device that is the slower of the two falls behind until the
launch queue is full (some 1,000 kernels, half a step of most models or more), and the host then enqueues at the
device's own pace: so how long enqueueing takes says nothing, but the lag does. A host that is the slower one is never
ahead: the device comes to each mark of the step a launch latency and a kernel or two after the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.efficiency import efficiency
from parabench.analysis.numbers import case_of
from parabench.analysis.session import SessionData
from parabench.machine import accelerator
from parabench.metrics import STEP_PARTS
from parabench.models import PRECISIONS
from parabench.plan.case import Case
from parabench.store.record import Finding

# The lag as a share of the step. A launch and the last kernels of a step take some 10 to 100 us of steps that last
# milliseconds; a device that limits lags by half a step or more. A tenth is far from both.
SMALL_LAG = 0.1
# From this share on loading is worth a word.
WAITS = 0.1


def lag_table(seen: SessionData) -> pd.DataFrame:
    """One row per launch on CUDA whose collectives do not block the host: `launch_id, case_id, label`, and of the rank
    whose device lags least `rank`, `lag_s`, `step_s`, `data_s` (medians of measured steps) and `lag`, the share that
    lag_s is of step_s."""
    texts = dict(zip(seen.numbers["case"], seen.numbers["case_json"], strict=True))
    free = {case_id for case_id in seen.counted["case"].unique() if _free(case_of(texts[case_id]))}
    good = seen.counted[seen.counted["case"].isin(free)][["launch_id", "case", "label"]].rename(
        columns={"case": "case_id"}
    )
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


def launch_bound(seen: SessionData) -> Iterator[Finding]:
    """The cases whose steps last as long as the host needs to enqueue them."""
    for case_id, rows in lag_table(seen).groupby("case_id", sort=False):
        if rows["lag"].median() >= SMALL_LAG:
            continue
        middle = rows.sort_values("lag", kind="stable").iloc[(len(rows) - 1) // 2]
        yield Finding(
            code="launch_bound",
            message=f"{middle['label']}: the device of rank {middle['rank']} is never more than "
            f"{format.milliseconds(middle['lag_s'])} behind its host, of a step of "
            f"{format.milliseconds(middle['step_s'])} ({format.milliseconds(middle['data_s'])} of it for the batch): "
            "it waits for the host, so these times compare the host and not the device.",
            advice="Give the device more in each step (a larger model, global_batch or seq_len), launch less "
            "(fused=on, compile=on, or CUDA graphs in a custom strategy), or load batches in other processes "
            "(--set workers).",
            case_id=str(case_id),
        )


def data_bound(seen: SessionData) -> Iterator[Finding]:
    """The cases whose ranks wait for their batches for much of a step, whoever loads them."""
    cases = seen.cases
    # The sum of the parts, which are medians: a step's own number may be another quantile.
    whole = cases[list(STEP_PARTS)].sum(axis=1)
    for at in cases.index[cases["data_s"] > WAITS * whole]:
        case, waits, step = cases.loc[at], cases.loc[at, "data_s"], whole[at]
        yield Finding(
            code="data_bound",
            message=f"{case['label']}: {format.percent(waits / step)} of a step is spent waiting for its batch "
            f"({format.milliseconds(waits)} of {format.milliseconds(step)}).",
            advice="Load in more processes (--set workers, DataLoader's num_workers), or make a batch cheaper to load.",
            case_id=case["case_id"],
        )


def _free(case: Case) -> bool:
    """Whether nothing but a full launch queue holds up the host: gloo's collectives do, which the host waits for."""
    return case.device == accelerator.TYPE and (case.world_size == 1 or case.backend == accelerator.BACKEND)


def arithmetic(seen: SessionData) -> Iterator[Finding]:
    """The findings that ranks computed in another arithmetic than their case's, and in more than there can be."""
    other: dict[str, str] = {}
    works = seen.cases.set_index("case_id")[["label", "device", "precision"]].to_dict("index")
    for launch_id, case_id in zip(seen.counted["launch_id"], seen.counted["case"], strict=True):
        case = works[case_id]
        said = _other(case["precision"], seen.facts[launch_id].get("arithmetic"))
        if case["device"] == accelerator.TYPE and said is not None:
            other[case["label"]] = said
    if other:
        yield Finding(
            code="other_arithmetic",
            message=f"{format.listed(list(other), most=3)}: {next(iter(other.values()))}, so this is not the precision "
            "that the case names.",
            advice="Unset what overrides it in the environment and in the model's code, or name the precision that is "
            "meant.",
        )
    table = seen.once(efficiency)
    above = table.loc[table["mfu"] > 1, ["label", "mfu"]].to_dict("records")
    if above:
        yield Finding(
            code="mfu_above_peak",
            message=f"{format.listed([case['label'] for case in above], most=3)}: up to "
            f"{format.percent(max(case['mfu'] for case in above))} of the devices' peak FLOP/s, which is impossible.",
            advice="Check whether matrix products ran in a narrower arithmetic than the case's precision; if not, the "
            "FLOP count is wrong.",
        )


def not_compiled(seen: SessionData) -> Iterator[Finding]:
    """Yield a warning if torch.compile left configurations to eager mode, as a whole or in part."""
    eager: dict[str, str] = {}
    for launch_id, label in zip(seen.counted["launch_id"], seen.counted["label"], strict=True):
        ranks = seen.facts[launch_id].get("compiled") or []
        graphs, frames = (max((rank[name] for rank in ranks), default=0) for name in ("graphs", "eager_frames"))
        if ranks and (frames or not graphs):
            made = f"made {format.count(graphs, 'graph')} and gave up {format.count(frames, 'frame')} of Python code"
            eager[label] = f"torch.compile {made}"
    if eager:
        yield Finding(
            code="not_compiled",
            message=f"{format.listed(list(eager), most=3)}: {next(iter(eager.values()))}, so these times include "
            "eager mode.",
            advice="Unset TORCH_COMPILE_DISABLE if it is set. Else let TORCH_LOGS=recompiles,graph_breaks name the "
            "cause; a block whose code depends on a changing number is compiled again for each value.",
        )


def _other(precision: str, told: dict[str, Any] | None) -> str | None:
    """How the arithmetic that a rank told of at its end differs from that of `precision`."""
    if told is None:
        return None
    wants = PRECISIONS[precision].allows_tf32
    if told["overrides"]:
        return f"{' and '.join(f'{name}={value}' for name, value in told['overrides'].items())} was set"
    if (told["matmul"] != "highest") is not wants:
        return f"float32 matrix products ran at torch's precision {told['matmul']!r}"
    if told["cudnn_tf32"] is not wants:
        return f"cuDNN's TF32 was {'on' if told['cudnn_tf32'] else 'off'}"
    return None
