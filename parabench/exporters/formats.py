"""The metrics of a session, and the text and Parquet files with metrics for other tools."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

import pandas as pd

from parabench import json_text
from parabench.analysis import format
from parabench.analysis.collectives.bus import KEY, bus_table, measured
from parabench.analysis.efficiency import efficiency
from parabench.analysis.ranking.best import answered
from parabench.analysis.session import SessionData
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.contrasts import factor, logs_of
from parabench.analysis.stats.quantiles import t_quantile
from parabench.errors import UsageError
from parabench.plan.collective_case import CollectiveCase
from parabench.store.record import GB, MIB
from parabench.store.results import records

# ---- metrics

LATENCY, THROUGHPUT, MEMORY, ENERGY = "latency", "throughput", "peak_memory", "energy"


@dataclass(frozen=True, slots=True)
class Metric:
    """A measured number of a case, in seconds, bytes, joules, or tokens, samples or bytes per second.

    `case` is a unique name. `low` and `high` are the 95% confidence interval over launches, and `launches` has the
    number of each launch, if they are known.
    """

    case_id: str
    case: str
    fields: dict[str, Any]
    name: str
    unit: str
    value: float
    low: float | None = None
    high: float | None = None
    launches: tuple[float, ...] = ()

    @property
    def ends(self) -> dict[str, float]:
        """The value and the known ends of its interval, by name suffix: "", "_low" and "_high"."""
        every = {"": self.value, "_low": self.low, "_high": self.high}
        return {name: value for name, value in every.items() if value is not None}


def metrics_of(seen: SessionData) -> list[Metric]:
    """Return the metrics of each case, the fastest first; for collectives, of each case and size.

    Raises UsageError with the reason if there is none.
    """
    collectives = seen.session.kind == "collectives"
    if found := list(_collectives(seen) if collectives else _training(seen)):
        return found
    why = "no launch succeeded" if collectives else seen.why_none[0].lower() + seen.why_none[1:]
    raise UsageError(f"{seen.session.name} has nothing to export: {why}; name another session: STORE@SESSION")


def _training(seen: SessionData) -> Iterator[Metric]:
    """Yield step time, throughput, peak memory per rank, and energy of a step for each case."""
    works = [[row for row in work["candidates"] if row["place"] != "not_compared"] for work in seen.once(answered)]
    margins = {row["case_id"]: row["plus_minus_s"] for rows in works for row in rows}
    alone = {rows[0]["case_id"] for rows in works if len(rows) == 1}
    joules = seen.once(efficiency).set_index("case_id")["joules_per_step"]
    for row in records(seen.cases[seen.cases["step_time_s"].notna()]):
        key = str(row["case_id"])
        metric = partial(Metric, key, str(row["label"]), seen.case(key).to_dict())
        step_s, work = float(row["step_time_s"]), float(row["global_batch"]) * float(row["seq_len"] or 1)
        own = tuple(seen.by_case[key].tolist()) if key in seen.by_case else ()
        margin, low, high = margins.get(key), None, None
        if key in alone and len(own) > 1:  # a t interval of the mean logarithm
            spread = float(logs_of(own).std(ddof=1)) / math.sqrt(len(own))
            margin = step_s * (factor(t_quantile((1 + CONFIDENCE) / 2, len(own) - 1) * spread) - 1)
        if margin and math.isfinite(margin):
            low, high = (step_s - margin if step_s > margin else None), step_s + margin
        yield metric(LATENCY, "s", step_s, low, high, own)
        slow, fast = (work / each if each else None for each in (high, low))
        unit, rates = f"{format.unit_of(int(row['seq_len']))}/s", tuple(work / each for each in own)
        yield metric(THROUGHPUT, unit, work / step_s, slow, fast, rates)
        found = ((MEMORY, "bytes", row["peak_memory_bytes"]), (ENERGY, "J", joules.get(key, math.nan)))
        yield from (
            metric(name, unit, float(value)) for name, unit, value in found if format.known(value) and value > 0
        )


def _collectives(seen: SessionData) -> Iterator[Metric]:
    """Yield the time of a call, and the bandwidths of nccl-tests in bytes per second, for each case and size."""
    texts = dict(zip(seen.numbers["case"], seen.numbers["case_json"], strict=True))
    good = measured(seen.counted)
    numbers = good.groupby(KEY)["call_s"].agg(tuple)
    for row in records(bus_table(good)):
        key, size, in_place = str(row["case_id"]), int(row["bytes"]), bool(row["in_place"])
        case = CollectiveCase.from_dict(json_text.parsed(texts[key]))
        fields = case.to_dict() | {"bytes": size, "in_place": in_place}
        name = f"{row['label']}, {size} bytes, {'in place' if in_place else 'out of place'}"
        metric = partial(Metric, key, name, fields)
        yield metric(LATENCY, "s", row["call_s"], launches=numbers[key, size, in_place])
        yield metric("algorithm_bandwidth", "bytes/s", row["algbw"] * GB)
        yield metric("bus_bandwidth", "bytes/s", row["busbw"] * GB)


# ---- formats: each function returns the text of a file, or {file name: bytes}


def bencher(seen: SessionData) -> str:
    """Return Bencher Metric Format: {benchmark: {measure: {value, lower_value, upper_value}}}.

    Source: https://bencher.dev/docs/reference/bencher-metric-format (schema: https://bencher.dev/bmf.json). Bencher's
    measure `latency` is in nanoseconds, `throughput` in operations per second: here tokens or samples.
    """
    names = {"": "value", "_low": "lower_value", "_high": "upper_value"}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for each in metrics_of(seen):
        scale = 1e9 if each.name == LATENCY else 1.0
        measure = {names[end]: value * scale for end, value in each.ends.items()}
        found.setdefault(each.case, {})[each.name.replace("_", "-")] = measure
    return json_text.written(found)


# {metric: (name, unit, the unit's size in SI units)}
_SMALLER_IS_BETTER = {
    LATENCY: ("time", "ms", 1e-3),
    MEMORY: ("peak memory per rank", "MiB", float(MIB)),
    ENERGY: ("energy per step", "J", 1.0),
}


def github(seen: SessionData) -> str:
    """Return `customSmallerIsBetter` of github-action-benchmark: [{name, unit, value, range, extra}].

    Source: https://github.com/benchmark-action/github-action-benchmark (README, "Tools"; src/extract.ts). Each name is
    unique and gets a chart. Throughput is left out, because larger is better.
    """
    entries = []
    for each in (each for each in metrics_of(seen) if each.name in _SMALLER_IS_BETTER):
        called, unit, scale = _SMALLER_IS_BETTER[each.name]
        launches = f"{format.count(len(each.launches), 'launch')}\n" if each.launches else ""
        spread = {} if each.high is None else {"range": f"± {(each.high - each.value) / scale:.3g}"}
        entry = {"name": f"{each.case}: {called}", "unit": unit, "value": each.value / scale}
        entries.append({**entry, "extra": launches + each.case_id, **spread})
    return json_text.written(entries)


def pytorch(seen: SessionData) -> str:
    """Return PyTorch's benchmark schema v3, which hud.pytorch.org shows: a list with a record for each metric.

    Source: clickhouse_db_schema/oss_ci_benchmark_v3/schema.sql in pytorch/test-infra. The uploader adds repository,
    commit, workflow and time. Unknown values are left out, because the table has defaults.
    """
    session, environment = seen.session, seen.session.environment
    gpus = environment.get("gpus") or []
    memory, of_gpus = environment.get("memory_bytes"), sum(gpu.get("memory_bytes") or 0 for gpu in gpus)
    runner = {
        "name": environment.get("host"),
        "type": environment.get("os"),
        "cpu_info": environment.get("cpu"),
        "cpu_count": environment.get("cores"),
        "gpu_info": gpus[0].get("name") if gpus else None,
        "gpu_count": len(gpus),
        "avail_mem_in_gb": round(memory / GB) if memory else None,
        "avail_gpu_mem_in_gb": round(of_gpus / GB) if of_gpus else None,
    }
    versions = (environment.get("versions") or {}).items()
    common = {
        "runners": [{name: value for name, value in runner.items() if value is not None}],
        "dependencies": {name: {"version": str(each)} for name, each in versions if each},
    }
    records = []
    for metric in metrics_of(seen):
        fields = metric.fields
        apart = ("model", "precision", "dtype", "backend")  # they have a separate field in a record
        other = {name: value for name, value in fields.items() if name not in apart}
        record = {
            "benchmark": {
                "name": f"parabench {session.suite}",
                "mode": session.kind,
                "dtype": str(fields.get("precision") or fields.get("dtype")),
                "extra_info": _strings({"case": metric.case, "case_id": metric.case_id, **other}),
            },
            "model": {
                "name": str(fields.get("model") or fields["op"]),
                "type": session.kind,
                "backend": str(fields["backend"]),
                "origins": ["parabench"],
            },
            "metric": {
                "name": f"{metric.name}({metric.unit})",
                "benchmark_values": list(metric.launches or (metric.value,)),
                "target_value": 0.0,
                "extra_info": _strings({"value": metric.value, "low": metric.low, "high": metric.high}),
            },
        }
        records.append(record | common)
    return json_text.written(records)


def _strings(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


_UNITS = {"s": "seconds", "bytes": "bytes", "J": "joules", "bytes/s": "bytes_per_second"}
_HELP = {
    "latency": "Time of a step, or of a call of a collective",
    "throughput": "Tokens or samples trained per second",
    "peak_memory": "Peak memory of the largest rank",
    "energy": "Energy of the devices for one step",
    "algorithm_bandwidth": "Size by time, algbw of nccl-tests",
    "bus_bandwidth": "Bandwidth of the links, busbw of nccl-tests",
}
_ENDS = {"": "", "_low": ", lower end of the 95% interval", "_high": ", upper end of the 95% interval"}


def openmetrics(seen: SessionData) -> str:
    """Return OpenMetrics text: a gauge for each number, with the case in its labels.

    Source: OpenMetrics 1.0 (https://prometheus.io/docs/specs/om/open_metrics_spec/). Gauges are also valid in
    Prometheus' older text format, which node exporter's textfile collector and Pushgateway read.
    """
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.openmetrics.exposition import generate_latest

    metrics = metrics_of(seen)
    axes = sorted({name for each in metrics for name in each.fields})
    session = {"session": seen.session.name, "suite": seen.session.suite, "host": seen.session.known("host") or ""}
    start = GaugeMetricFamily(
        "parabench_session_start_time_seconds", "Start of the session.", labels=list(session), unit="seconds"
    )
    start.add_metric(list(session.values()), datetime.fromisoformat(seen.session.started_utc).timestamp())
    families = {"": start}
    for each in metrics:
        # An empty label is the same as a missing one.
        fields = {name: each.fields.get(name) for name in axes}
        labels = session | {"case": each.case, "case_id": each.case_id} | fields
        unit = _UNITS.get(each.unit) or each.unit.replace("/s", "_per_second")
        for end, value in each.ends.items():
            name, text = f"parabench_{each.name}{end}_{unit}", f"{_HELP[each.name]}{_ENDS[end]}."
            family = families.setdefault(name, GaugeMetricFamily(name, text, labels=list(labels), unit=unit))
            family.add_metric(["" if label is None else str(label) for label in labels.values()], value)
    return str(generate_latest(SimpleNamespace(collect=families.values)).decode())


def parquet(seen: SessionData) -> dict[str, bytes]:
    """Return Parquet files: `cases`, `launches` and `samples`; for collectives `sizes`, `launches` and `calls`.

    The columns are in docs/reference/report.md and docs/reference/store.md. Units are seconds and bytes; unknown values
    are null.
    """
    if seen.session.kind == "collectives":
        sizes = measured(seen.numbers)
        found = {"sizes": bus_table(sizes), "launches": sizes, "calls": seen.results.collective}
    else:
        labels = seen.numbers.set_index("launch_id")[["case", "label", "repetition"]]
        samples = seen.results.sample.join(labels, on="launch_id")
        found = {"cases": seen.cases, "launches": seen.numbers, "samples": samples}
    return {f"{name}.parquet": _parquet(frame) for name, frame in found.items()}


def _parquet(frame: pd.DataFrame) -> bytes:
    """Return a table in Parquet format. Columns with values of several types are converted to text."""
    mixed = {
        name: frame[name].map(lambda value: None if pd.isna(value) else str(value))
        for name in frame.columns
        if frame[name].dtype == object and len({type(each) for each in frame[name].dropna()}) > 1
    }
    written = io.BytesIO()
    frame.assign(**mixed).reset_index(drop=True).to_parquet(written, engine="pyarrow", index=False)
    return written.getvalue()
