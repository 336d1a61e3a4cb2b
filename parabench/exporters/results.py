"""A session as other tools take it: a list of what was measured, each with a few numbers and their 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from parabench.analysis.collectives.bus import KEY, bus_table, measured
from parabench.analysis.efficiency import efficiency
from parabench.analysis.ranking.ranking import spots
from parabench.analysis.session import SessionData
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.quantiles import t_quantile
from parabench.analysis.stats.ttest import factor, logs_of
from parabench.analysis.text import format
from parabench.errors import UsageError
from parabench.plan.collective_case import CollectiveCase
from parabench.store import json_text
from parabench.store.record import GB

LATENCY, THROUGHPUT, MEMORY, ENERGY = "latency", "throughput", "peak_memory", "energy"


@dataclass(frozen=True, slots=True)
class Metric:
    """One number in SI units: seconds, tokens (samples, bytes) per second, bytes, joules.

    `low` to `high` is its 95 % interval over launches, None where it is not known; `launches` has one number for each
    launch where the store has that, else the number itself.
    """

    name: str
    unit: str
    value: float
    low: float | None = None
    high: float | None = None
    launches: tuple[float, ...] = ()

    @property
    def per_launch(self) -> tuple[float, ...]:
        return self.launches or (self.value,)


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured of one case: `name` is unique in its session, `fields` are the case's."""

    case_id: str
    name: str
    fields: dict[str, Any]
    metrics: tuple[Metric, ...]


def results_of(seen: SessionData) -> list[Result]:
    """Of each case of which a launch counts, the fastest first; of collectives each case at each size.

    Raises UsageError where there is none, with the reason.
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
    """Step time, throughput, peak memory per rank, and the energy of a step."""
    alone = {one.case_id for answer in seen.once(spots) if len(answer.candidates) == 1 for one in answer.candidates}
    margins = {
        one.case_id: one.plus_minus_s for answer in seen.once(spots) for one in answer.candidates if one.plus_minus_s
    }
    used = seen.once(efficiency).set_index("case_id")
    cases = seen.cases[seen.cases["step_time_s"].notna()]
    for row in cases.to_dict("records"):
        key = str(row["case_id"])
        step_s, work = float(row["step_time_s"]), float(row["global_batch"]) * float(row["seq_len"] or 1)
        own = tuple(seen.by_case[key].tolist()) if key in seen.by_case else ()
        low, high = _interval(step_s, _margin_alone(step_s, own) if key in alone else margins.get(key))
        throughput = Metric(
            THROUGHPUT,
            f"{format.unit_of(int(row['seq_len']))}/s",
            work / step_s,
            work / high if high else None,
            work / low if low else None,
            tuple(work / each for each in own),
        )
        metrics = [Metric(LATENCY, "s", step_s, low, high, own), throughput]
        for name, unit, value in (
            (MEMORY, "bytes", row["peak_memory_bytes"]),
            (ENERGY, "J", used["joules_per_step"].get(key, math.nan)),
        ):
            if format.known(value) and value > 0:
                metrics.append(Metric(name, unit, float(value)))
        yield Result(key, str(row["label"]), seen.case(key).to_dict(), tuple(metrics))


def _margin_alone(value: float, launches: Sequence[float]) -> float | None:
    """The 95 % half-width of a case that no other was launched beside, so that what blocks have in common is not taken
    out of it: a t interval of the mean of the launches' logarithms."""
    n = len(launches)
    if n < 2:
        return None
    half = t_quantile((1 + CONFIDENCE) / 2, n - 1) * float(logs_of(launches).std(ddof=1)) / math.sqrt(n)
    return value * (factor(half) - 1)


def _interval(value: float, margin: float | None) -> tuple[float | None, float | None]:
    """The ends of value ± margin; the lower one None where it would not be above 0."""
    if margin is None or not math.isfinite(margin):
        return None, None
    return (value - margin if value > margin else None), value + margin


def _collectives(seen: SessionData) -> Iterator[Result]:
    """Time of a call, and bandwidths in bytes per second as nccl-tests has them."""
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
