"""The numbers of a session for other tools: a few for each configuration, with 95% intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

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
from parabench.store.record import GB
from parabench.store.results import records

LATENCY, THROUGHPUT, MEMORY, ENERGY = "latency", "throughput", "peak_memory", "energy"


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of a case in SI units: seconds, tokens (samples, bytes) per second, bytes, joules.

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
        """The number and the known ends of its interval, by the ending of their names."""
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
        fields = CollectiveCase.from_dict(json_text.parsed(texts[key])).to_dict() | {
            "bytes": size,
            "in_place": in_place,
        }
        name = f"{row['label']}, {size} bytes, {'in place' if in_place else 'out of place'}"
        metric = partial(Metric, key, name, fields)
        yield metric(LATENCY, "s", row["call_s"], launches=numbers[key, size, in_place])
        yield metric("algorithm_bandwidth", "bytes/s", row["algbw"] * GB)
        yield metric("bus_bandwidth", "bytes/s", row["busbw"] * GB)
