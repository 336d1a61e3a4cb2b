"""Tables of configurations and launches for the figures and tables of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.efficiency import efficiency
from parabench.analysis.memory import PARTS, case_states
from parabench.analysis.numbers import levels, same_work
from parabench.analysis.ranking.race import exits
from parabench.analysis.ranking.ranking import marks, slower_unranked, spots
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import EXPOSED_IN, taken_apart
from parabench.analysis.step.stragglers import straggler_table
from parabench.metrics import STEP_PARTS
from parabench.plan.case import Case
from parabench.report.figures.figures import plain, spread_text
from parabench.store.results import records
from parabench.strategies import entry_of

_CASE = [
    "case_id", "label", "status", "error", "statistic", "step_time_s", "low_s", "high_s", "spread", "p90_s",
    "tokens_per_s", "peak_memory_bytes", "n_ok", "n_launches", *STEP_PARTS,
]  # fmt: skip
_LAUNCH = ["block", "position", "status", "launch_step_s", "p90_s", "drift", "n_steps", "wall_s", "peak_memory_bytes"]
_BEHIND = ["plus_minus_s", "slower", "slower_low", "slower_high"]


def page_cases(seen: SessionData) -> pd.DataFrame:
    """Return the configurations, fastest first: the rows of `numbers.case_table` with `case_columns`, `_behind` and
    `ranking.marks`.

    - `work`: the index of the workload; `heading`: its name if there are several; `unit`: the unit of throughput.
    - `compared`: whether intervals of `slower` are known for the workload.
    - `front`: whether the configuration is Pareto-optimal in step time and memory. `mean_peak_bytes` is then known.
    - `shown`: the name in figures; `hover`: the text when hovering over a point.
    """
    cases, answers = seen.cases, seen.once(spots)
    headings = {tuple(answer.work.values()): answer.heading for answer in answers}
    works = pd.DataFrame(
        [
            (case_id, at, format.unit_of(fields["seq_len"]), headings.get(tuple(fields.values()), ""))
            for at, (fields, group) in enumerate(same_work(cases))
            for case_id in group["case_id"]
        ],
        columns=["case_id", "work", "unit", "heading"],
    )
    compared = {one.case_id for answer in answers for one in answer.candidates if one.slower_low is not None}
    front = {point.case_id for answer in answers if len(answer.front) > 1 for point in answer.front}
    peaks = levels(seen.counted[seen.counted["peak_memory_bytes"] > 0], "peak_memory_bytes")
    found = cases[_CASE].assign(
        **case_columns(seen),
        # Not rounded, because they identify the case, also in the command that repeats it.
        **{name: cases[name].astype(object) for name in Case().to_dict()},
        **_behind(seen),
        **marks(cases, answers),
        mean_peak_bytes=cases["case_id"].map(peaks) if front else None,
        ranked=[entry_of(str(name)).ranked for name in cases["strategy"]],
        front=cases["case_id"].isin(front),
    )
    found = found.merge(works, on="case_id").set_axis(cases.index)
    found["compared"] = found["case_id"].isin(compared).groupby(found["work"]).transform("any")
    found["hover"] = pd.Series([_hover(row) for row in records(found)], found.index, dtype=object)
    found["shown"] = found["label"].where(found["ranked"], found["label"] + " (" + found["mark"] + ")")
    return found


def _hover(case: Mapping[Any, Any]) -> str:
    step = format.milliseconds(case["step_time_s"])
    if format.known(case["plus_minus_s"]):
        step = f"{step.removesuffix(' ms')} ± {format.margin_ms(case['plus_minus_s'], case['step_time_s'])} ms"
    launches = f"{case['n_ok']:.0f} of {format.count(int(case['n_launches']), 'launch')} ok"
    return "<br>".join(
        (
            f"<b>{plain(case['label'])}</b>",
            f"{step} per step ({case['statistic']})",
            spread_text(case["spread"]),
            launches,
        )
    )


def page_launches(seen: SessionData) -> pd.DataFrame:
    """Return the launches in run order.

    - `counts`: whether a launch counts.
    - `from_case`: its step time over the configuration's, less 1; NaN unless two launches of the configuration count.
    - `buckets` and `bucket_bytes`: the sizes of its buckets.
    """
    # The page's names of columns.
    every = seen.numbers.rename(columns={"case": "case_id", "repetition": "block", "step_s": "launch_step_s"})
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


def _behind(seen: SessionData) -> pd.DataFrame:
    """Return columns next to `seen.cases`.

    - `plus_minus_s`: the 95% half-width of a step time.
    - `slower`: the ratio to the best of the workload in common launches and repetitions, less 1; NaN if there are none.
    - `slower_low`, `slower_high`: its interval; NaN if the configuration is not ranked.
    - `left_after_block`, `left_at_least`: the repetition, from 1, after which it was eliminated, and the bound.
    """
    answers = seen.once(spots)
    rows: dict[str, dict[str, Any]] = {case: {} for case in seen.cases["case_id"]}
    for answer in answers:
        for one in (*answer.candidates, *answer.not_compared):
            rows[one.case_id] |= {name: getattr(one, name) for name in _BEHIND}
        for case, (look, each) in exits(answer.race).items():
            rows[case] |= {"left_after_block": look.block + 1, "left_at_least": each.at_least}
    for case, slower in slower_unranked(seen, answers).items():
        rows[case].setdefault("slower", slower)
    columns = [*_BEHIND, "left_after_block", "left_at_least"]
    return pd.DataFrame([*rows.values()], seen.cases.index, columns, dtype=float)
