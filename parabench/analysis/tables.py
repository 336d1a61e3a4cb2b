"""From stored rows to tidy tables: one row per step, per launch, per case.

The replication unit is the launch: steps become one number per launch before anything is averaged or
compared.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from parabench.analysis.launch_number import QUANTILE, STATISTIC, device_of
from parabench.analysis.stats.block_model import fit
from parabench.plan.case import Case
from parabench.store.metrics import STEP_PARTS
from parabench.store.record import FIRST_BLOCK, UNVERIFIED, Phase, Status
from parabench.store.results import Results
from parabench.strategies import entry_of

if TYPE_CHECKING:
    from parabench.analysis.session import Session

# Two cases do the same work, and may be ranked against each other, when these fields agree. `split` is none of them:
# it changes which samples come in which step, not how much there is to compute. `vocabulary` changes what a token is.
WORK = ("model", "data", "vocabulary", "global_batch", "seq_len", "precision", "device")
PEAKS = ("peak_rss_bytes", "peak_allocated_bytes", "peak_reserved_bytes")
MEMORY = (*PEAKS, "used_bytes")
STALENESS = ("staleness_mean", "staleness_max")

# What of a store `results.load` has to read for less than a report, as SQL conditions: no readings and calls at all; or
# those that numbers of launches are made of.
STEP_TIMES = dict.fromkeys(("collective", "device_sample", "host_sample", "span"), "FALSE")
LAUNCH_NUMBERS = {
    "device_sample": "rank IS NULL AND metric IN ('used_bytes', 'energy_j', 'power_w')",
    # What `parabench collectives` measured; calls of a training's instrumented steps stay out.
    "collective": f"phase IS NOT '{Phase.INSTRUMENT}'",
    "host_sample": "FALSE",
    "span": "FALSE",
}


def launch_table(results: Results, session: Session) -> pd.DataFrame:
    """One row per launch of the session, the reference launch included (`block` is -1).

    Beside the stored columns and the case's fields: `label` (unique among cases), `verified` (its losses were
    compared with one device's), `statistic`, `launch_step_s` (the launch's one number), `p90_s`, `drift` (last third of
    the steps against the first, as a fraction), `n_steps`, `tokens_per_s`, the step's parts in seconds (medians of
    the slowest rank), the memory peaks in bytes (maximum over ranks or devices), `peak_memory_bytes` (the one of them
    that answers are about), and how stale gradients were (`staleness_mean` over ranks, `staleness_max` of all). Unknown
    is NaN.
    Raises UsageError for a session that trained nothing.
    """
    session.require("training", results.path)
    launches = results.launch[results.launch["session_id"] == session.id].rename(columns={"id": "launch_id"})
    ids = launches["launch_id"]
    whole, medians, devices = (
        table if len(ids) == len(results.launch) else table[table["launch_id"].isin(ids)]
        for table in (results.whole, results.medians, results.device_sample)
    )
    warned = results.finding.loc[results.finding["code"] == UNVERIFIED, "launch_id"].dropna()
    table = numbered(launches, results.steps, {session.id: bool(session.environment.get("gpus"))})
    table = table.assign(verified=~ids.isin(warned).to_numpy())
    tokens = table["global_batch"] * table["seq_len"]
    table["tokens_per_s"] = (tokens / table["launch_step_s"].where(table["launch_step_s"] > 0)).astype(float)
    for added in (_parts(medians), _peaks(whole, devices), _staleness(whole)):
        table = table.join(added, on="launch_id")
    return table.assign(peak_memory_bytes=_peak_memory(table))


def numbered(launches: pd.DataFrame, steps: pd.DataFrame, gpus: Mapping[int, bool]) -> pd.DataFrame:
    """Launches with their case's fields, `label`, `statistic`, `launch_step_s`, `p90_s`, `drift` and `n_steps`.

    `launches` are rows of the store of any sessions, with `launch_id`; `steps` is `Results.steps`; `gpus` tells of each
    session whether its machine had some.
    """
    steps = steps[steps["launch_id"].isin(launches["launch_id"])]
    fields = _case_fields(launches["case_json"], launches["session_id"].map(gpus))
    table = pd.concat([launches[list(_KEPT)].infer_objects().reset_index(drop=True), fields], axis="columns")
    table = table.join(step_numbers(steps, table.set_index("launch_id")["device"]), on="launch_id")
    return table.assign(n_steps=table["n_steps"].fillna(0).astype(int))


def _case_fields(stored: pd.Series[str], gpus: pd.Series[bool]) -> pd.DataFrame:
    """For each launch its case's fields, with the device that `auto` meant, its `label`, and its `statistic`."""
    codes, pairs = pd.factorize(pd.Series(list(zip(stored, gpus, strict=True)), dtype=object))
    cases = [Case.from_dict(json.loads(text)) for text, _ in pairs]
    ids = [case.id for case in cases]
    labels = unique_labels(dict(zip(ids, cases, strict=True)))
    rows = []
    for at, case, (_, there) in zip(ids, cases, pairs, strict=True):
        device = device_of(case.device, there)
        rows.append(case.to_dict() | {"device": device, "label": labels[at], "statistic": STATISTIC[device]})
    fields = pd.DataFrame(rows, columns=[*Case().to_dict(), "label", "statistic"])
    return fields.take(codes).reset_index(drop=True)


def step_numbers(steps: pd.DataFrame, devices: pd.Series[str]) -> pd.DataFrame:
    """By launch: launch_step_s, p90_s, drift and n_steps; `steps` as `Results.steps` has them, `devices` by launch."""
    # A step without end has no known length either.
    known = steps[np.isfinite(steps["step_s"].to_numpy(dtype=float))]
    launch, seconds = known["launch_id"].to_numpy(), known["step_s"].to_numpy(dtype=float)
    first = np.flatnonzero(np.append(True, launch[1:] != launch[:-1])[: len(launch)])
    counts = np.diff(np.append(first, len(launch)))
    quantiles = devices.reindex(launch[first]).map(QUANTILE).to_numpy(dtype=float)
    found = [pd.DataFrame({name: pd.Series(dtype=float) for name in ("launch_step_s", "p90_s", "drift", "n_steps")})]
    # Launches of as many steps are the rows of one matrix: a thousand quantiles at once.
    for n, q in sorted(set(zip(counts.tolist(), quantiles.tolist(), strict=True))):
        own = first[(counts == n) & (quantiles == q)]
        matrix = seconds[own[:, None] + np.arange(n)]
        third = n // 3
        drift = np.full(len(matrix), np.nan)
        if third >= 3:  # the quantile of one or two steps says nothing
            late, early = np.quantile(matrix[:, -third:], q, axis=1), np.quantile(matrix[:, :third], q, axis=1)
            np.divide(late, early, out=drift, where=early > 0)
            drift -= 1
        numbers = {"launch_step_s": np.quantile(matrix, q, axis=1), "p90_s": np.quantile(matrix, 0.9, axis=1)}
        found.append(pd.DataFrame(numbers | {"drift": drift, "n_steps": float(n)}, index=launch[own]))
    return pd.concat(found[1:] or found)


def _peak_memory(table: pd.DataFrame) -> pd.Series[float]:
    """Bytes on the rank that holds most: of its process on the CPU, on CUDA what is allocated of its device."""
    peak: pd.Series[float] = table["peak_rss_bytes"].where(table["device"] == "cpu", table["peak_allocated_bytes"])
    return peak


_KEPT = (
    "launch_id", "case_id", "case_json", "block", "position", "status", "error", "failed_rank", "failed_signal",
    "traceback", "started_utc", "wall_s", "facts",
)  # fmt: skip


def valid_launches(launches: pd.DataFrame) -> pd.DataFrame:
    """The launches that count: succeeded, with a number, and not the session's reference."""
    known = launches["launch_step_s"].notna() & (launches["launch_step_s"] > 0)
    return launches[(launches["block"] >= FIRST_BLOCK) & (launches["status"] == Status.OK) & known]


def case_table(launches: pd.DataFrame) -> pd.DataFrame:
    """One row per case, fastest first, those without a number last; the reference launch is left out.

    `step_time_s` is the case's step time, wherever one is shown (`step_times`): the mean on the log scale of the
    numbers of its launches, as in the average block of the case's work: where some cases have more blocks than others,
    what drifted between blocks is no merit. `low_s` and `high_s` are the extreme launches, `spread` = high / low - 1
    (NaN for fewer than two launches). `status` is 'ok' or a count such as '2 ok, 1 oom'; `error` the first error. Parts
    are medians over the launches that count, peaks maxima."""
    own = launches[launches["block"] >= FIRST_BLOCK]
    valid = valid_launches(own)
    seconds, late = _levels(valid, "launch_step_s"), _levels(valid, "p90_s")
    cases = own.drop_duplicates("case_id").set_index("case_id")
    every, good = own.groupby("case_id"), valid.groupby("case_id")
    failed = own.dropna(subset=["error"]).drop_duplicates("case_id")
    errors: dict[Any, Any] = dict(zip(failed["case_id"], failed["error"], strict=True))
    number = good["launch_step_s"]
    low, high = number.min(), number.max()
    parts, peaks = good[list(STEP_PARTS)].median(), good[list(MEMORY)].max()
    table = cases[["label", *Case().to_dict(), "statistic"]].assign(
        status=every["status"].agg(status_counts),
        error=pd.Series({case: errors.get(case) for case in cases.index}, dtype=object),
        n_ok=number.size().reindex(cases.index, fill_value=0),
        n_launches=every.size(),
        step_time_s=cases.index.map(seconds).astype(float),
        low_s=low,
        high_s=high,
        spread=(high / low - 1).where(number.size() > 1),
        p90_s=cases.index.map(late).astype(float),
        **{name: parts[name] for name in STEP_PARTS},
        **{name: peaks[name] for name in MEMORY},
        staleness_mean=good["staleness_mean"].mean(),
        staleness_max=good["staleness_max"].max(),
    )
    columns = (
        "case_id", "label", *Case().to_dict(), "statistic", "status", "error", "n_ok", "n_launches",
        "step_time_s", "low_s", "high_s", "spread", "p90_s", *STEP_PARTS, *MEMORY, *STALENESS,
    )  # fmt: skip
    table = table.reset_index()[list(columns)]
    table["tokens_per_s"] = table["global_batch"] * table["seq_len"] / table["step_time_s"]
    table["peak_memory_bytes"] = _peak_memory(table)
    return table.sort_values("step_time_s", na_position="last", kind="stable").reset_index(drop=True)


def step_times(launches: pd.DataFrame) -> dict[str, float]:
    """{case id: seconds}: the one step time that each case has in the session that `launches`, a launch table, is of;
    no entry for a case of which no launch counts."""
    return _levels(valid_launches(launches), "launch_step_s")


def mean_peaks(launches: pd.DataFrame) -> dict[str, float]:
    """{case id: bytes}: each case's peak memory, mean over launches as `step_times` makes it of steps."""
    good = valid_launches(launches)
    return _levels(good[good["peak_memory_bytes"] > 0], "peak_memory_bytes")


def from_case(launches: pd.DataFrame, cases: pd.DataFrame) -> pd.Series[float]:
    """How far each launch's number is from its case's step time, as a fraction; NaN for the only launch of a case."""
    known = cases.set_index("case_id")
    seconds = known["step_time_s"].astype(float).where(known["n_ok"] > 1)
    return launches["launch_step_s"] / launches["case_id"].map(seconds) - 1


def block_medians(launches: pd.DataFrame, deviation: pd.Series[float]) -> pd.Series[float]:
    """By block: the median of how far its launches are from their cases, `from_case` of them; no entry where none is
    known. A trend of it is the machine's, for every block has its cases in an order of its own."""
    return deviation.groupby(launches["block"]).median().dropna()


def _levels(good: pd.DataFrame, number: str) -> dict[str, float]:
    """{case id: seconds}: the mean over launches on the log scale, as in the average block of the case's work."""
    levels: dict[str, float] = {}
    for _, group in same_work(good):
        if group["case_id"].nunique() * group["block"].nunique() == len(group):  # every case is in every block
            logs = pd.Series(np.log(group[number].to_numpy(dtype=float)), group["case_id"].to_numpy())
            levels |= {str(case): float(np.exp(mean)) for case, mean in logs.groupby(level=0).mean().items()}
            continue
        ranked = group["strategy"].map(lambda strategy: entry_of(str(strategy)).ranked).astype(bool)
        # What is no answer shifts no answer: those are compared without it.
        for some in (group, group[ranked]):
            if len(some):
                levels |= {case: float(np.exp(mean)) for case, mean in fit(some, number).means.items()}
    return levels


def same_work(table: pd.DataFrame, work: Sequence[str] = WORK) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """The rows of each work, in the order in which the works first appear, with the fields that define it."""
    names = list(work)
    groups = [group for _, group in table.groupby(names, sort=False, dropna=False)]
    # Not out of the keys, which are numpy's numbers before pandas 3 and no JSON.
    firsts = (next(group[names].itertuples(index=False, name=None)) for group in groups)
    return [(dict(zip(names, first, strict=True)), group) for first, group in zip(firsts, groups, strict=True)]


def status_counts(statuses: Iterable[str]) -> str:
    """One status where all have it, else how many have which: '2 ok, 1 oom'."""
    counts = Counter(statuses)
    return ", ".join(f"{n} {status}" for status, n in counts.items()) if len(counts) > 1 else next(iter(counts))


def _parts(medians: pd.DataFrame) -> pd.DataFrame:
    """Per launch, each part on the rank whose median step is longest; `medians` as `Results.medians` has them."""
    own = medians[(medians["metric"] == "step_s") & medians["value"].notna()]
    own = own.sort_values(["launch_id", "value", "rank"], ascending=[True, False, True]).drop_duplicates("launch_id")
    slowest = own.set_index("launch_id")["rank"]
    rows = medians[medians["metric"].isin(STEP_PARTS) & (medians["rank"] == medians["launch_id"].map(slowest))]
    parts = rows.set_index(["launch_id", "metric"])["value"].unstack("metric")
    return parts.reindex(index=slowest.index, columns=list(STEP_PARTS))


def _peaks(whole: pd.DataFrame, device_samples: pd.DataFrame) -> pd.DataFrame:
    """Each launch's peaks: the maximum over ranks (NaN when one is unknown), and over devices."""
    rows = whole[whole["metric"].isin(PEAKS) & (whole["phase"] != Phase.INSTRUMENT)]
    groups = rows.groupby(["launch_id", "metric"], observed=True)["value"]
    peaks = groups.max().where(groups.count() == groups.size()).unstack("metric").reindex(columns=list(PEAKS))
    used = device_samples[(device_samples["metric"] == "used_bytes") & device_samples["rank"].isna()]
    in_use = pd.to_numeric(used["value"]).groupby(used["launch_id"]).max().rename("used_bytes")
    return peaks.join(in_use, how="outer").astype(float)


def _staleness(whole: pd.DataFrame) -> pd.DataFrame:
    """Each launch's mean over the ranks that tell it (each sends as many gradients), and the largest."""
    rows = whole[whole["metric"].isin(STALENESS)]
    groups = rows.groupby(["launch_id", "metric"], observed=True)["value"]
    mean = groups.mean().unstack("metric").reindex(columns=["staleness_mean"])
    largest = groups.max().unstack("metric").reindex(columns=["staleness_max"])
    return mean.join(largest).astype(float)


def unique_labels(cases: dict[str, Case]) -> dict[str, str]:
    """A label per case id; where two would read the same, the fields that tell them apart are added."""
    labels = {key: case.label for key, case in cases.items()}
    alike: dict[str, list[str]] = {}
    for key, label in labels.items():
        alike.setdefault(label, []).append(key)
    for label, keys in alike.items():
        if len(keys) > 1:
            same = {key: cases[key].to_dict() for key in keys}
            differing = [name for name in Case().to_dict() if len({values[name] for values in same.values()}) > 1]
            for key, values in same.items():
                labels[key] = f"{label} ({', '.join(_field(name, values[name]) for name in differing)})"
    return labels


def _field(name: str, value: Any) -> str:
    return f"{re.sub('_', ' ', name)} {'default' if value is None else value}"
