"""The results of a session for other tools: a few numbers for each configuration, with 95% intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from parabench import json_text
from parabench.analysis import format
from parabench.analysis.collectives.bus import KEY, bus_table, measured
from parabench.analysis.efficiency import efficiency
from parabench.analysis.ranking.ranking import spots
from parabench.analysis.session import SessionData
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.contrasts import factor, logs_of
from parabench.analysis.stats.quantiles import t_quantile
from parabench.errors import UsageError
from parabench.plan.collective_case import CollectiveCase
from parabench.store.record import GB

LATENCY, THROUGHPUT, MEMORY, ENERGY = "latency", "throughput", "peak_memory", "energy"


@dataclass(frozen=True, slots=True)
class Metric:
    """A number in SI units: seconds, tokens (samples, bytes) per second, bytes, joules.

    `low` to `high` is its 95% interval over launches, `None` if it is unknown. `launches` has a number for each launch
    if the database has them.
    """

    name: str
    unit: str
    value: float
    low: float | None = None
    high: float | None = None
    launches: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """The metrics of a case. `name` is unique in its session, `fields` are the case's."""

    case_id: str
    name: str
    fields: dict[str, Any]
    metrics: tuple[Metric, ...]


def results_of(seen: SessionData) -> list[Result]:
    """Return the result of each case, the fastest first; of collectives, of each case at each size.

    Raises UsageError with the reason if there is none.
    """
    if seen.session.kind == "collectives":
        found = list(_collectives(seen))
        why = "no launch succeeded"
    else:
        found = list(_training(seen))
        why = seen.why_none[0].lower() + seen.why_none[1:]
    if not found:
        raise UsageError(f"{seen.session.name} has nothing to export: {why}; name another session: STORE@SESSION")
    return found


def _training(seen: SessionData) -> Iterator[Result]:
    """Yield step time, throughput, peak memory per rank, and energy of a step for each case."""
    answers = [answer.candidates for answer in seen.once(spots)]
    alone = {candidates[0].case_id for candidates in answers if len(candidates) == 1}
    margins = {one.case_id: one.plus_minus_s for candidates in answers for one in candidates}
    used = seen.once(efficiency).set_index("case_id")
    cases = seen.cases[seen.cases["step_time_s"].notna()]
    for row in cases.to_dict("records"):
        key = str(row["case_id"])
        step_s, work = float(row["step_time_s"]), float(row["global_batch"]) * float(row["seq_len"] or 1)
        own = tuple(seen.by_case[key].tolist()) if key in seen.by_case else ()
        low, high = _interval(step_s, _margin_alone(step_s, own) if key in alone else margins.get(key) or None)
        unit, rates = f"{format.unit_of(int(row['seq_len']))}/s", tuple(work / each for each in own)
        slow, fast = (work / each if each else None for each in (high, low))
        metrics = [Metric(LATENCY, "s", step_s, low, high, own)]
        metrics.append(Metric(THROUGHPUT, unit, work / step_s, slow, fast, rates))
        for name, unit, value in (
            (MEMORY, "bytes", row["peak_memory_bytes"]),
            (ENERGY, "J", used["joules_per_step"].get(key, math.nan)),
        ):
            if format.known(value) and value > 0:
                metrics.append(Metric(name, unit, float(value)))
        yield Result(key, str(row["label"]), seen.case(key).to_dict(), tuple(metrics))


def _margin_alone(value: float, launches: Sequence[float]) -> float | None:
    """Return the 95% half-width of a case that was measured without others: a t interval of the mean logarithm."""
    n = len(launches)
    if n < 2:
        return None
    half = t_quantile((1 + CONFIDENCE) / 2, n - 1) * float(logs_of(launches).std(ddof=1)) / math.sqrt(n)
    return value * (factor(half) - 1)


def _interval(value: float, margin: float | None) -> tuple[float | None, float | None]:
    """Return the ends of value ± margin. The lower one is `None` if it is not above 0."""
    if margin is None or not math.isfinite(margin):
        return None, None
    return (value - margin if value > margin else None), value + margin


def _collectives(seen: SessionData) -> Iterator[Result]:
    """Yield the time of a call, and the bandwidths of nccl-tests in bytes per second, for each case and size."""
    fields = {
        case: CollectiveCase.from_dict(json_text.parsed(text)).to_dict()
        for case, text in zip(seen.numbers["case"], seen.numbers["case_json"], strict=True)
    }
    good = measured(seen.counted)
    numbers = good.groupby(KEY)["call_s"].agg(tuple)
    for row in bus_table(good).to_dict("records"):
        key = str(row["case_id"])
        form = "in place" if row["in_place"] else "out of place"
        yield Result(
            key,
            f"{row['label']}, {row['bytes']} bytes, {form}",
            fields[key] | {"bytes": int(row["bytes"]), "in_place": bool(row["in_place"])},
            (
                Metric(LATENCY, "s", row["call_s"], launches=numbers[key, row["bytes"], row["in_place"]]),
                Metric("algorithm_bandwidth", "bytes/s", row["algbw"] * GB),
                Metric("bus_bandwidth", "bytes/s", row["busbw"] * GB),
            ),
        )
