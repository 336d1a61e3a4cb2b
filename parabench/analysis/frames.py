"""From stored rows to tidy tables: one row per step, per launch, per case.

The replication unit is the launch: steps become one number per launch before anything is averaged or
compared.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis.session import Session
from parabench.case import Case
from parabench.record import FIRST_BLOCK, STEP_PARTS, UNVERIFIED, Phase, Status
from parabench.store import Results

# Two cases do the same work, and may be ranked against each other, when these fields agree. `split` is none of them:
# it changes which samples come in which step, not how much there is to compute. `vocabulary` changes what a token is.
WORK = ("model", "data", "vocabulary", "global_batch", "seq_len", "dtype", "device")
PEAKS = ("peak_rss_bytes", "peak_allocated_bytes", "peak_reserved_bytes")
MEMORY = (*PEAKS, "used_bytes")
STALENESS = ("staleness_mean", "staleness_max")

# Other tenants of a shared CPU only ever make a step slower, so a low quantile estimates the undisturbed
# step: its A/A spread was 2.5 % where the median's was 9.7 %. A dedicated GPU is not disturbed, and there the
# median is robust.
QUANTILE = {"cuda": 0.5, "cpu": 0.1}
STATISTIC = {"cuda": "median", "cpu": "10th percentile"}


def step_latencies(samples: pd.DataFrame) -> pd.DataFrame:
    """Columns `launch_id, step, step_s` of the measured steps, ordered.

    A step takes as long as its slowest rank, so `step_s` is the maximum over ranks; NaN when a rank's is
    unknown.
    """
    rows = samples[(samples["metric"] == "step_s") & (samples["phase"] == Phase.MEASURE)]
    rows = rows.assign(value=pd.to_numeric(rows["value"]))
    groups = rows.groupby(["launch_id", "step"])["value"]
    slowest = groups.max().where(groups.count() == groups.size())
    return slowest.rename("step_s").reset_index()


def launch_table(results: Results, session: Session) -> pd.DataFrame:
    """One row per launch of the session, the reference launch included (`block` is -1).

    Beside the stored columns and the case's fields: `label` (unique among cases), `verified` (its losses were
    compared with one device's), `statistic`, `number_s` (the launch's one number), `p90_s`, `drift` (last third of
    the steps against the first, as a fraction), `n_steps`, `tokens_per_s`, the step's parts in seconds (medians of
    the slowest rank), the memory peaks in bytes (maximum over ranks or devices), and how stale gradients were
    (`staleness_mean` over ranks, `staleness_max` of all). Unknown is NaN.
    Raises UsageError for a session that trained nothing.
    """
    session.require("training", "use --session to name one that did")
    launches = results.launch[results.launch["session_id"] == session.id].rename(columns={"id": "launch_id"})
    ids = launches["launch_id"]
    samples = results.sample[results.sample["launch_id"].isin(ids)]
    steps = {key: group["step_s"].dropna() for key, group in step_latencies(samples).groupby("launch_id")}
    memory = _peaks(samples, results.device_sample[results.device_sample["launch_id"].isin(ids)])
    parts = _parts(samples)

    cases = {str(text): Case.from_dict(json.loads(text)) for text in launches["case_json"].unique()}
    labels = _labels({case.id: case for case in cases.values()})
    gpus = bool(session.environment.get("gpus"))
    doubted = set(results.finding.loc[results.finding["code"] == UNVERIFIED, "launch_id"].dropna())
    rows: list[dict[str, Any]] = []
    for launch in launches.to_dict("records"):
        case = cases[launch["case_json"]]
        device = case.device if case.device != "auto" else "cuda" if gpus else "cpu"
        seconds = steps.get(launch["launch_id"], pd.Series(dtype=float)).to_numpy(dtype=float)
        number = _quantile(seconds, QUANTILE[device])
        rows.append(
            {name: launch[name] for name in _KEPT}
            | case.to_dict()
            | {
                "device": device,
                "label": labels[case.id],
                "statistic": STATISTIC[device],
                "verified": launch["launch_id"] not in doubted,
                "number_s": number,
                "p90_s": _quantile(seconds, 0.9),
                "drift": _drift(seconds, QUANTILE[device]),
                "n_steps": len(seconds),
                "tokens_per_s": case.global_batch * case.seq_len / number if number > 0 else np.nan,
            }
        )
    added = ("label", "statistic", "verified", "number_s", "p90_s", "drift", "n_steps", "tokens_per_s")
    table = pd.DataFrame(rows, columns=[*_KEPT, *Case().to_dict(), *added])
    return table.join(parts, on="launch_id").join(memory, on="launch_id").join(_staleness(samples), on="launch_id")


_KEPT = (
    "launch_id", "case_id", "block", "position", "status", "error", "failed_rank", "failed_signal",
    "traceback", "started_utc", "wall_s", "facts",
)  # fmt: skip


def counted(launches: pd.DataFrame) -> pd.DataFrame:
    """The launches that count: ended well, with a number, and not the session's reference."""
    known = launches["number_s"].notna() & (launches["number_s"] > 0)
    return launches[(launches["block"] >= FIRST_BLOCK) & (launches["status"] == Status.OK) & known]


def case_table(launches: pd.DataFrame) -> pd.DataFrame:
    """One row per case, fastest first, those without a number last; the reference launch is left out.

    `latency_s` is the mean on the log scale of the launches' numbers, `low_s` and `high_s` the extreme
    launches, `spread` = high / low - 1 (NaN for fewer than two launches). `status` is 'ok' or a count such as
    '2 ok, 1 oom'; `error` the first error. Parts are medians over the launches that count, peaks maxima.
    """
    own = launches[launches["block"] >= FIRST_BLOCK]
    rows = []
    for case_id, group in own.groupby("case_id", sort=False):
        good = counted(group)
        number = good["number_s"]
        first = group.iloc[0]
        errors = group["error"].dropna()
        rows.append(
            {"case_id": case_id, "label": first["label"]}
            | {name: first[name] for name in Case().to_dict()}
            | {
                "statistic": first["statistic"],
                "status": _status(group["status"]),
                "error": errors.iloc[0] if len(errors) else None,
                "n_ok": len(good),
                "n_launches": len(group),
                "latency_s": _log_mean(number),
                "low_s": number.min(),
                "high_s": number.max(),
                "spread": number.max() / number.min() - 1 if len(good) > 1 else np.nan,
                "p90_s": _log_mean(good["p90_s"]),
            }
            | {name: good[name].median() for name in STEP_PARTS}
            | {name: good[name].max() for name in MEMORY}
            | {"staleness_mean": good["staleness_mean"].mean(), "staleness_max": good["staleness_max"].max()}
        )
    columns = (
        "case_id", "label", *Case().to_dict(), "statistic", "status", "error", "n_ok", "n_launches",
        "latency_s", "low_s", "high_s", "spread", "p90_s", *STEP_PARTS, *MEMORY, *STALENESS,
    )  # fmt: skip
    table = pd.DataFrame(rows, columns=list(columns))
    table["tokens_per_s"] = table["global_batch"] * table["seq_len"] / table["latency_s"]
    table["peak_memory_bytes"] = table["peak_rss_bytes"].where(table["device"] == "cpu", table["peak_allocated_bytes"])
    return table.sort_values("latency_s", na_position="last", kind="stable").reset_index(drop=True)


def same_work(table: pd.DataFrame) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """The rows of each work, in the order in which the works first appear, with the fields that define it."""
    groups = table.groupby(list(WORK), sort=False, dropna=False)
    return [(dict(zip(WORK, key, strict=True)), group) for key, group in groups]


def _quantile(seconds: np.ndarray[Any, np.dtype[np.float64]], q: float) -> float:
    return float(np.quantile(seconds, q)) if len(seconds) else float("nan")


def _drift(seconds: np.ndarray[Any, np.dtype[np.float64]], q: float) -> float:
    third = len(seconds) // 3
    if third < 3:  # the quantile of one or two steps says nothing
        return float("nan")
    return _quantile(seconds[-third:], q) / _quantile(seconds[:third], q) - 1


def _log_mean(values: pd.Series[float]) -> float:
    known = values[values > 0].dropna()
    return float(np.exp(np.log(known).mean())) if len(known) else float("nan")


def _status(statuses: pd.Series[str]) -> str:
    counts = statuses.value_counts(sort=False)
    if len(counts) == 1:
        return str(counts.index[0])
    return ", ".join(f"{n} {status}" for status, n in counts.items())


def _parts(samples: pd.DataFrame) -> pd.DataFrame:
    """Per launch, the median of each part on the rank whose median step is longest."""
    rows = samples[samples["metric"].isin(("step_s", *STEP_PARTS)) & (samples["phase"] == Phase.MEASURE)]
    rows = rows.assign(value=pd.to_numeric(rows["value"]))
    wide = rows.groupby(["launch_id", "rank", "metric"])["value"].median().unstack("metric")
    wide = wide.reindex(columns=["step_s", *STEP_PARTS]).dropna(subset=["step_s"])
    slowest = wide["step_s"].groupby("launch_id").idxmax()
    return wide.loc[slowest.tolist(), list(STEP_PARTS)].droplevel("rank")


def _peaks(samples: pd.DataFrame, device_samples: pd.DataFrame) -> pd.DataFrame:
    """Each launch's peaks: the maximum over ranks (NaN when one is unknown), and over devices."""
    rows = samples[samples["metric"].isin(PEAKS) & (samples["phase"] != Phase.INSTRUMENT)]
    rows = rows.assign(value=pd.to_numeric(rows["value"]))
    groups = rows.groupby(["launch_id", "metric"])["value"]
    peaks = groups.max().where(groups.count() == groups.size()).unstack("metric").reindex(columns=list(PEAKS))
    used = device_samples[(device_samples["metric"] == "used_bytes") & device_samples["rank"].isna()]
    in_use = pd.to_numeric(used["value"]).groupby(used["launch_id"]).max().rename("used_bytes")
    return peaks.join(in_use, how="outer").astype(float)


def _staleness(samples: pd.DataFrame) -> pd.DataFrame:
    """Each launch's mean over the ranks that tell it (each sends as many gradients), and the largest."""
    rows = samples[samples["metric"].isin(STALENESS)]
    rows = rows.assign(value=pd.to_numeric(rows["value"]))
    groups = rows.groupby(["launch_id", "metric"])["value"]
    mean = groups.mean().unstack("metric").reindex(columns=["staleness_mean"])
    largest = groups.max().unstack("metric").reindex(columns=["staleness_max"])
    return mean.join(largest).astype(float)


def _labels(cases: dict[str, Case]) -> dict[str, str]:
    """A label per case id; where two would read the same, the fields that tell them apart are added."""
    labels = {key: case.label for key, case in cases.items()}
    for label in set(labels.values()):
        same = {key: cases[key].to_dict() for key, other in labels.items() if other == label}
        if len(same) > 1:
            differing = [name for name in Case().to_dict() if len({values[name] for values in same.values()}) > 1]
            for key, values in same.items():
                labels[key] = f"{label} ({', '.join(_field(name, values[name]) for name in differing)})"
    return labels


def _field(name: str, value: Any) -> str:
    return f"{re.sub('_', ' ', name)} {'default' if value is None else value}"
