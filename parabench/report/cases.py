"""Tables of configurations and launches for the figures and tables of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.efficiency import efficiency
from parabench.analysis.memory import PARTS, case_states
from parabench.analysis.numbers import levels, same_work, work_text
from parabench.analysis.ranking.best import answered
from parabench.analysis.ranking.parts import NOT_COMPARED
from parabench.analysis.ranking.race import exits
from parabench.analysis.ranking.tables import Rows
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import EXPOSED_IN, taken_apart
from parabench.analysis.step.stragglers import straggler_table
from parabench.metrics import STEP_PARTS
from parabench.plan.case import Case
from parabench.report.figures.figures import NOT_RANKED, plain, spread_text
from parabench.store.results import records
from parabench.strategies import Rule, entry_of

# The mark of a configuration that trains with stale gradients.
STALE = "another training: stale gradients"
_CASE = [
    "case_id", "label", "status", "error", "statistic", "step_time_s", "low_s", "high_s", "spread", "p90_s",
    "tokens_per_s", "peak_memory_bytes", "n_ok", "n_launches", *STEP_PARTS,
]  # fmt: skip
_LAUNCH = [
    "repetition", "position", "status", "launch_step_s", "p90_s", "drift", "n_steps", "wall_s", "peak_memory_bytes",
]  # fmt: skip
_COMPARED = ("plus_minus_s", "slower", "slower_low", "slower_high")


def page_cases(seen: SessionData) -> pd.DataFrame:
    """Return the configurations, fastest first: the rows of `numbers.case_table` with `case_columns` and the answer.

    - `plus_minus_s`, `slower`, `slower_low`, `slower_high`: as in the table `candidates`.
    - `ranking`: 'fastest', 'tied' or empty; `mark`: why it is not ranked, or trains in another way.
    - `left_after_repetition`, `left_at_least`: the repetition, from 1, after which it was eliminated, and the bound.
    - `work`: the index of the workload; `heading`: its name if there are several; `unit`: the unit of throughput.
    - `compared`: whether intervals of `slower` are known for the workload.
    - `front`: whether the configuration is Pareto-optimal in step time and memory. `mean_peak_bytes` is then known.
    - `shown`: the name in figures; `hover`: the text when hovering over a point.
    """
    cases, works = seen.cases, seen.once(answered)
    ids = cases["case_id"]
    candidates = {row["case_id"]: row for work in works for row in work["candidates"]}
    rows = [candidates.get(case_id, {}) for case_id in ids]
    left = {case_id: row for work in works for case_id, row in exits(work).items()}
    front = {row["case_id"] for work in works if len(work["front"]) > 1 for row in work["front"]}
    peaks = levels(seen.counted[seen.counted["peak_memory_bytes"] > 0], "peak_memory_bytes") if front else {}
    ranking = {case_id: place for work in works for case_id, place in _ranking(work).items()}
    numbers = {name: [row.get(name) for row in rows] for name in _COMPARED}
    numbers["left_after_repetition"] = [left[case]["repetition"] + 1 if case in left else None for case in ids]
    numbers["left_at_least"] = [left[case]["at_least"] if case in left else None for case in ids]
    found = cases[_CASE].assign(
        **case_columns(seen),
        # Not rounded, because they identify the case, also in the command that repeats it.
        **{name: cases[name].astype(object) for name in Case().to_dict()},
        **{name: pd.Series(own, cases.index, dtype=float) for name, own in numbers.items()},
        ranking=[ranking.get(case_id, "") for case_id in ids],
        mark=[_mark(row, own.get("place")) for row, own in zip(records(cases), rows, strict=True)],
        mean_peak_bytes=ids.map(peaks) if front else None,
        ranked=[entry_of(str(name)).ranked for name in cases["strategy"]],
        unit=cases["seq_len"].map(format.unit_of),
        front=ids.isin(front),
        **_works(cases, works),
    )
    found["compared"] = found["slower_low"].notna().groupby(found["work"]).transform("any")
    found["hover"] = pd.Series([_hover(row) for row in records(found)], found.index, dtype=object)
    found["shown"] = found["label"].where(found["ranked"], found["label"] + " (" + found["mark"] + ")")
    return found


def _works(cases: pd.DataFrame, works: Sequence[Rows]) -> dict[str, pd.Series[Any]]:
    """Return the columns `work` and `heading`."""
    headings = {work["workloads"][0]["work"]: work["workloads"][0]["workload"] for work in works}
    groups = same_work(cases)
    at = pd.concat([pd.Series(i, own.index) for i, (_, own) in enumerate(groups)]) if groups else pd.Series(dtype=int)
    texts = [headings.get(work_text(fields), "") for fields, _ in groups]
    return {"work": at, "heading": at.map(dict(enumerate(texts))).astype(object)}


def _ranking(work: Rows) -> dict[str, str]:
    """Return 'fastest' or 'tied' for the configurations of a workload that may be the fastest."""
    workload = work["workloads"][0]
    if not workload["decided"]:
        return {}
    found = {row["case_id"]: "tied" for row in work["candidates"] if row["place"] in ("best", "tied")}
    return found | ({workload["winner"]: "fastest"} if workload["winner"] else {})


def _mark(case: Mapping[str, Any], place: str | None) -> str:
    entry = entry_of(case["strategy"])
    if not entry.ranked:
        return NOT_RANKED
    if place == "not_compared":
        return NOT_COMPARED
    if entry.rule is not Rule.APPLIED_ONCE:
        return ""
    mean, most = case["staleness_mean"], case["staleness_max"]
    known = format.known(mean) and format.known(most)
    return STALE + (f", {format.staleness(mean, most)}" if known else "")


def _hover(case: Mapping[str, Any]) -> str:
    step = format.milliseconds(case["step_time_s"])
    if format.known(case["plus_minus_s"]):
        step = f"{step.removesuffix(' ms')} ± {format.margin_ms(case['plus_minus_s'], case['step_time_s'])} ms"
    text = f"{step} per step ({case['statistic']})"
    return "<br>".join((f"<b>{plain(case['label'])}</b>", text, spread_text(case["spread"])))


def page_launches(seen: SessionData) -> pd.DataFrame:
    """Return the launches in run order.

    - `counts`: whether a launch counts.
    - `from_case`: its step time over the configuration's, less 1; NaN unless two launches of the configuration count.
    - `buckets` and `bucket_bytes`: the sizes of its buckets.
    """
    # The page's names of columns.
    every = seen.numbers.rename(columns={"case": "case_id", "step_s": "launch_step_s"})
    every = every.sort_values("launch_id")
    sizes = [seen.facts[at].get("bucket_bytes") or [] for at in every["launch_id"]]
    seconds = seen.cases_by_id["step_time_s"].astype(float).where(seen.cases_by_id["n_ok"] > 1)
    return every[["launch_id", "case_id", "label", *_LAUNCH]].assign(
        counts=every["counted"].astype(int),
        from_case=(every["launch_step_s"] / every["case_id"].map(seconds) - 1).where(every["counted"]),
        drift=every["drift"].round(4),  # a hundredth of a percent
        buckets=[f"{len(own)}, largest {format.mebibytes(max(own))}" if own else "" for own in sizes],
        bucket_bytes=[" ".join(f"{size:.0f}" for size in own) for own in sizes],
        error=every["error"],
    )


# Columns that need another name, because theirs is ambiguous or not descriptive.
_RENAMED = {
    "step_s": "instrumented_s", "data_s": "instrumented_data_s", "measured": "state_bytes",
    "theory": "state_theory_bytes", "formula": "state_formula", "exact": "state_exact",
}  # fmt: skip


def case_columns(seen: SessionData) -> pd.DataFrame:
    """Return columns next to `seen.cases`, in seconds, bytes and shares; NaN or None if a value is unknown.

    - The median instrumented step: `instrumented_s` = `instrumented_data_s` + `compute_s` + `exposed_s` + `idle_s`.
    - `overlapped_s`: a lower bound if there are `unknown_calls`. `exposed_forward_s` and so on are within each part.
    - Memory: on a GPU, the peaks of torch's allocator and of NVML; the model states as measured and by theory.
    - FLOP/s, MFU, joules, and the straggler with the time that it costs per step.
    """
    columns = {
        taken_apart: [
            "step_s", "data_s", "compute_s", "exposed_s", "overlapped_s", "idle_s", "exposed_share", "unknown_calls",
            "instruments_ratio", *EXPOSED_IN.values(),
        ],
        case_states: ["measured", "theory", "formula", "exact", *PARTS],
        efficiency: ["flops_per_s", "mfu", "mfu_reason", "joules_per_step", "joules_per_token"],
        straggler_table: ["straggler", "waited_s", "waited_share"],
    }  # fmt: skip
    tables = [seen.once(make).set_index("case_id")[names] for make, names in columns.items()]
    found = pd.concat([seen.cases_by_id[["peak_reserved_bytes", "used_bytes"]], *tables], axis="columns")
    return found.rename(columns=_RENAMED).reindex(seen.cases["case_id"]).set_axis(seen.cases.index)
