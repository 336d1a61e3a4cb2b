"""How much of the hardware a training run uses: FLOP/s, model FLOPs utilization, joules."""

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
from parabench.store.record import REFERENCE_BLOCK

# The source of the FLOPs of a step.
FORMULA, COUNTED = "formula", "counted"

NUMBERS = (
    "tokens_per_s", "formula_flops", "counted_flops", "flops_per_s", "peak_flops_per_s", "mfu", "joules_per_step",
    "joules_per_token",
)  # fmt: skip
COLUMNS = (
    "case_id", "label", "strategy", "model", "global_batch", "seq_len", "unit", *NUMBERS, "devices", "flops_source",
    "flops_reason", "peak_source", "mfu_reason", "joules_source", "joules_reason",
)  # fmt: skip
_JOULES = ("joules_source", "joules_reason")
_KEPT = ("case_id", "label", "strategy", "model", "global_batch", "seq_len", "tokens_per_s")


def efficiency(seen: SessionData) -> pd.DataFrame:
    """Return one row per case that has a step time, fastest first.

    `tokens_per_s` counts `unit` (samples if there are no sequences). `formula_flops` and `counted_flops` are of one
    step; `flops_per_s` is the one that `flops_source` names over the case's step time. `mfu` is that over
    `peak_flops_per_s`, the sum of the peaks of the `devices` that it ran on, from the document `peak_source`. Joules
    are the devices' over the measured steps, median over launches. Unknown is NaN, and the `_reason` says why.
    """
    counts = _counts(seen)
    launches_of: dict[str, list[dict[Any, Any]]] = {}
    for launch in seen.counted[["case", "launch_id", "joules_per_step", *_JOULES]].to_dict("records"):
        launches_of.setdefault(launch["case"], []).append(launch)
    rows = []
    for row in seen.cases[seen.cases["step_time_s"].notna()].to_dict("records"):
        case = seen.case(row["case_id"])
        good = launches_of[row["case_id"]]
        models = (seen.facts[launch["launch_id"]].get("model") for launch in good)
        model: dict[str, Any] = next(filter(None, models), {})
        found: dict[str, Any] = {name: row[name] for name in _KEPT}
        found["unit"] = format.unit_of(case.seq_len)
        found |= _flops(case, model, counts.get(case.reference().id), float(row["step_time_s"]))
        found |= _peak(case, str(row["device"]), _gpus(seen, good[0]["launch_id"]))
        found["mfu"] = found["flops_per_s"] / found["peak_flops_per_s"]
        found["mfu_reason"] = found["flops_reason"] or found["mfu_reason"]
        known = [launch for launch in good if format.known(launch["joules_per_step"])]
        joules = float(np.median([launch["joules_per_step"] for launch in known])) if known else np.nan
        found |= {"joules_per_step": joules, "joules_per_token": joules / (case.global_batch * case.seq_len)}
        found["joules_source"] = known[0]["joules_source"] if known else None
        found["joules_reason"] = "" if known else good[0]["joules_reason"]
        rows.append(found)
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(dict.fromkeys(NUMBERS, float))


def flops_per_token(model: Mapping[str, Any], seq_len: int) -> float:
    """Return the floating-point operations of forward and backward for one token of a decoder; NaN if its shape is
    unknown.

    torchtitan's formula (torchtitan/models/utils.py): 6 for every parameter that is multiplied with, so without
    embeddings that are only looked up, and 12 x layers x heads x head_dim x seq_len for attention, whose causal half
    is not left out. What is computed twice (activation checkpointing, flash attention's backward) counts once.
    """
    try:
        multiplied = model["parameters"] - model["embedding_parameters"]
        return float(6 * multiplied + 12 * model["layers"] * model["heads"] * model["head_dim"] * seq_len)
    except KeyError:
        return np.nan


def _flops(case: Case, model: Mapping[str, Any], count: Mapping[str, Any] | None, step_time_s: float) -> dict[str, Any]:
    formula = flops_per_token(model, case.seq_len) * case.global_batch * case.seq_len
    counted = np.nan if count is None or count.get("counted") is None else float(count["counted"])
    source = FORMULA if format.known(formula) else COUNTED if format.known(counted) else None
    reason = "" if source else str((count or {}).get("reason") or "the FLOPs of a step were not recorded")
    per_step = {FORMULA: formula, COUNTED: counted, None: np.nan}[source]
    return {
        "formula_flops": formula,
        "counted_flops": counted,
        "flops_source": source,
        "flops_reason": reason,
        "flops_per_s": per_step / step_time_s,
    }


def _counts(seen: SessionData) -> dict[str, Mapping[str, Any]]:
    """Return what one device counted, by the id of its case; the reference launch comes first."""
    found: dict[str, Mapping[str, Any]] = {}
    rows = seen.numbers.sort_values("repetition", key=lambda each: each != REFERENCE_BLOCK, kind="stable")
    for at, case_id in zip(rows["launch_id"], rows["case"], strict=True):
        count = seen.facts[at].get("flops")
        if count:
            found.setdefault(str(case_id), count)
    return found


def _gpus(seen: SessionData, launch_id: int) -> list[dict[str, Any]]:
    """Return the devices that ranks of a launch may have run on; on several nodes as many of each as it had ranks."""
    records = {int(one.get("node", 0)): one for one in node_records(seen.session.environment)}
    spread = node_of_rank(seen.facts[launch_id])
    if not spread:
        return list(records[0].get("gpus") or [])
    ranks = Counter(spread.values())
    return [gpu for node, n in ranks.items() for gpu in (records.get(node, {}).get("gpus") or [])[:n]]


def _peak(case: Case, device: str, gpus: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the peak of the devices of a case, or why it is unknown. Rank r of a node runs on its device r."""
    devices = case.world_size if device == "cpu" or not gpus else min(case.world_size, len(gpus))
    peaks: list[tuple[float | None, str]] = []
    if device == "cpu":
        reason = "it ran on CPU cores, for which no peak is published"
    elif not gpus:
        reason = "which devices it ran on was not recorded"
    elif case.world_size > len(gpus):
        reason = f"{format.count(case.world_size, 'rank')} shared {format.count(len(gpus), 'device')}"
    elif any(gpu.get("mig") for gpu in gpus[:devices]):
        reason = "it ran on parts of devices (MIG), for which no peak is published"
    else:
        matmul = case.arithmetic.matmul
        peaks = [peak_of(str(gpu.get("name")), matmul, gpu.get("multiprocessors")) for gpu in gpus[:devices]]
        reason = next((why for peak, why in peaks if peak is None), "")
    return {
        "devices": devices,
        "peak_flops_per_s": np.nan if reason else float(sum(peak or 0.0 for peak, _ in peaks)),
        "peak_source": None if reason else "; ".join(dict.fromkeys(source for _, source in peaks)),
        "mfu_reason": reason,
    }
