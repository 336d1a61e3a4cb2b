"""Compute how well a training run uses its hardware: FLOP/s, model FLOPs utilization (MFU), joules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.environment.nodes import node_of_rank, node_records
from parabench.analysis.session import SessionData
from parabench.machine.peaks import peak_of
from parabench.plan.case import Case
from parabench.store.record import REFERENCE_REPETITION
from parabench.store.results import records

# The source of the FLOPs of a step.
FORMULA, COUNTED = "formula", "counted"

_KEPT = ["case_id", "label", "strategy", "model", "global_batch", "seq_len", "tokens_per_s"]
_NUMBERS = [
    "formula_flops", "counted_flops", "flops_per_s", "peak_flops_per_s", "mfu", "joules_per_step", "joules_per_token",
]  # fmt: skip
COLUMNS = [
    *_KEPT, *_NUMBERS, "unit", "devices", "flops_source", "flops_reason", "peak_source", "mfu_reason", "joules_source",
    "joules_reason",
]  # fmt: skip


def efficiency(seen: SessionData) -> pd.DataFrame:
    """Return one row per case that has a step time, fastest first, with COLUMNS.

    - `flops_per_s`: the FLOPs of a step (from `flops_source`) divided by the step time
    - `mfu`: `flops_per_s` as a share of the peak of all devices
    - `joules_...`: the median over launches
    - `..._reason`: why a number is NaN
    """
    cases = seen.cases[seen.cases["step_time_s"].notna()]
    launches = seen.counted.groupby("case", sort=False)
    counts = _counts(seen)
    ids, joules = launches["launch_id"].agg(list), launches["joules_per_step"].median()
    sources, reasons = (launches[name].first() for name in ("joules_source", "joules_reason"))
    rows = []
    for row in records(cases):
        case, at = seen.case(row["case_id"]), row["case_id"]
        model: dict[str, Any] = next(filter(None, (seen.facts[launch].get("model") for launch in ids[at])), {})
        count, tokens = counts.get(case.reference().id) or {}, case.global_batch * case.seq_len
        flops = {FORMULA: flops_per_token(model, case.seq_len) * tokens, COUNTED: float(count.get("counted") or np.nan)}
        source = next((name for name, number in flops.items() if format.known(number)), None)
        reason = "" if source else str(count.get("reason") or "the FLOPs of a step were not recorded")
        flops_per_s = (flops[source] if source else np.nan) / row["step_time_s"]
        peak = _peak(case, str(row["device"]), _gpus(seen, ids[at][0]))
        rows.append(
            {name: row[name] for name in _KEPT}
            | peak
            | {
                "unit": format.unit_of(case.seq_len),
                "formula_flops": flops[FORMULA],
                "counted_flops": flops[COUNTED],
                "flops_source": source,
                "flops_reason": reason,
                "flops_per_s": flops_per_s,
                "mfu": flops_per_s / peak["peak_flops_per_s"],
                "mfu_reason": reason or peak["mfu_reason"],
                "joules_per_step": joules[at],
                "joules_per_token": joules[at] / tokens,
                "joules_source": sources[at],
                "joules_reason": "" if format.known(joules[at]) else reasons[at],
            }
        )
    return pd.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys(["tokens_per_s", *_NUMBERS], float))


def flops_per_token(model: Mapping[str, Any], seq_len: int) -> float:
    """Return the FLOPs of forward and backward for one token of a decoder; NaN if its shape is unknown.

    torchtitan's formula (torchtitan/models/utils.py): 6 for each parameter in a multiplication, so without embeddings
    that are only looked up, and 12 x layers x heads x head_dim x seq_len for attention, including its causal half.
    Operations that are computed twice (activation checkpointing, flash attention's backward) count once.
    """
    try:
        multiplied = model["parameters"] - model["embedding_parameters"]
        return float(6 * multiplied + 12 * model["layers"] * model["heads"] * model["head_dim"] * seq_len)
    except KeyError:
        return np.nan


def _counts(seen: SessionData) -> dict[str, Mapping[str, Any]]:
    """Return {case id: what a single device counted}. Counts of a reference launch have precedence."""
    rows = seen.numbers.sort_values("repetition", key=lambda each: each != REFERENCE_REPETITION, kind="stable")
    found: dict[str, Mapping[str, Any]] = {}
    for at, case_id in zip(rows["launch_id"], rows["case"], strict=True):
        if count := seen.facts[at].get("flops"):
            found.setdefault(str(case_id), count)
    return found


def _gpus(seen: SessionData, launch_id: int) -> list[dict[str, Any]]:
    """Return the records of the devices that the ranks of a launch may have used, of all nodes in order."""
    records = {int(one.get("node", 0)): one.get("gpus") or [] for one in node_records(seen.session.environment)}
    ranks = Counter(node_of_rank(seen.facts[launch_id]).values())
    if not ranks:
        return list(records[0])
    return [gpu for node, n in ranks.items() for gpu in records.get(node, [])[:n]]


def _peak(case: Case, device: str, gpus: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the columns about the peak FLOP/s of a case's devices. Rank r of a node runs on its device r."""
    devices, used = case.world_size, gpus[: case.world_size]
    peaks: list[tuple[float | None, str]] = []
    if device == "cpu":
        reason = "it ran on CPU cores, whose peak is not published"
    elif not gpus:
        reason = "which devices it ran on was not recorded"
    elif case.world_size > len(gpus):
        devices = len(gpus)
        reason = f"{format.count(case.world_size, 'rank')} shared {format.count(devices, 'device')}"
    elif any(gpu.get("mig") for gpu in used):
        reason = "it ran on parts of devices (MIG), whose peak is not published"
    else:
        peaks = [peak_of(str(gpu.get("name")), case.arithmetic.matmul, gpu.get("multiprocessors")) for gpu in used]
        reason = next((why for peak, why in peaks if peak is None), "")
    return {
        "devices": devices,
        "peak_flops_per_s": np.nan if reason else float(sum(peak or 0.0 for peak, _ in peaks)),
        "peak_source": None if reason else "; ".join(dict.fromkeys(source for _, source in peaks)),
        "mfu_reason": reason,
    }
