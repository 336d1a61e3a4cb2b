"""What the page's script draws from: every case and every launch of a session of trainings, embedded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from parabench.analysis.ranking.answer import Answer, case_rows
from parabench.analysis.scaling import curves
from parabench.analysis.session import SessionData
from parabench.analysis.tables import WORK, from_case, mean_peaks, same_work
from parabench.analysis.text.format import unit_of
from parabench.plan.case import Case
from parabench.report import palette
from parabench.report.data.bars import bars
from parabench.report.data.case_columns import case_columns
from parabench.report.data.columns import packed
from parabench.report.data.detail import bucket_bytes, buckets, detail_data, plus_minus
from parabench.report.data.scaling import scaling_data
from parabench.store.metrics import STEP_PARTS
from parabench.strategies import entry_of

# By what a reader may filter, in the order of the bar, and how it is called. Those in which cases do not differ are
# left out; the fields of a work come after these.
FILTERS = {
    "strategy": "Strategy",
    "algorithm": "Algorithm",
    "bucket_mib": "Bucket, MiB",
    "world_size": "Ranks",
    "model": "Model",
    "status": "Status",
}
_NUMBERS = (
    "latency_s", "low_s", "high_s", "spread", "p90_s", "tokens_per_s", "peak_memory_bytes", "n_ok", "n_launches",
    *STEP_PARTS,
)  # fmt: skip
_LAUNCH = ("block", "position", "status", "number_s", "p90_s", "drift", "n_steps", "wall_s", "peak_memory_bytes")


def page_data(seen: SessionData, answers: Sequence[Answer]) -> dict[str, Any]:
    """The data of a training's page, as JSON holds it.

    `cases` are rows as `tables.case_table` has them, fastest first, each with its `place` in the answers, its `mark`
    where it is no answer, and `work`, the index of its work in `works`; `launches` name theirs by its row, `case`, and
    tell whether they count (`counts`: 1, else 0) and how far from their case's step time they are (`from_case`).
    `filters` are [column, title] pairs; `curves` is what `scaling_data` makes of scaling; `styles` are how each
    strategy and algorithm is drawn. A work's `front` are the rows of the configurations that no other beats in both
    step time and memory, where there is more than one; where a work has, `mean_peak_bytes` is each case's memory, mean
    over launches. `plus_minus_s` is a latency's 95 % half-width where an answer knows it; the rest is `detail_data` and
    `case_columns`; `bars` are how the parts of a case's bars look.
    """
    cases = seen.cases
    works = same_work(cases)
    of_work = {case: i for i, (_, group) in enumerate(works) for case in group["case_id"]}
    rows = {case: i for i, case in enumerate(cases["case_id"])}
    told = case_rows(cases, answers)
    headings = {tuple(answer.work.values()): answer.heading for answer in answers}
    fronts = {
        of_work[answer.front[0].case_id]: [rows[point.case_id] for point in answer.front]
        for answer in answers
        if len(answer.front) > 1
    }
    sizes, margins = bucket_bytes(seen.launches), plus_minus(answers)
    table = cases[["case_id", "label", "status", "error", "statistic", *_NUMBERS]].assign(
        **case_columns(seen),
        # As they are, not rounded: they name the case, also in the command that runs it again.
        **{name: cases[name].astype(object) for name in Case().to_dict()},
        plus_minus_s=cases["case_id"].map(margins),
        bucket_bytes=cases["case_id"].map(sizes),
        place=[row["place"] for row in told],
        mark=[row["mark"] for row in told],
        mean_peak_bytes=cases["case_id"].map(mean_peaks(seen.launches)) if fronts else None,
        ranked=[entry_of(str(name)).ranked for name in cases["strategy"]],
        work=[of_work[case] for case in cases["case_id"]],
    )
    own = seen.launches[seen.launches["case_id"].isin(rows)]
    counts = own["launch_id"].isin(seen.good["launch_id"])
    launches = own[["launch_id", *_LAUNCH]].assign(
        counts=counts.astype(int),
        from_case=from_case(own, cases).where(counts),
        drift=own["drift"].round(4),  # a hundredth of a percent
        case=[rows[case] for case in own["case_id"]],
        buckets=buckets(own["facts"]),
        error=own["error"],
    )
    return {
        "cases": packed(table),
        "launches": packed(launches),
        "works": [
            {
                "name": headings.get(tuple(work.values()), ""),
                "unit": unit_of(work["seq_len"]),
                "front": fronts.get(i, []),
            }
            for i, (work, _) in enumerate(works)
        ],
        "filters": _filters(cases),
        "curves": scaling_data(seen.once(curves), rows),
        "styles": styles(cases),
        "bars": bars(),
        **detail_data(seen, rows, _LAUNCH),
    }


def _filters(cases: pd.DataFrame) -> list[tuple[str, str]]:
    further = {name: name.replace("_", " ").capitalize() for name in WORK if name not in FILTERS}
    return [(name, title) for name, title in (FILTERS | further).items() if cases[name].nunique(dropna=False) > 1]


def styles(cases: pd.DataFrame) -> dict[str, dict[str, dict[str, Any]]]:
    """How strategies and algorithms look: {"strategy": {name: {color, dash, symbol}}, "algorithm": ...}; of a strategy
    also whether it `has_algorithm`, which its name in a figure may then say."""
    algorithms = palette.in_native_order(cases["algorithm"].unique())
    return {
        "strategy": {
            name: palette.strategy_line(name)
            | {"symbol": palette.symbol_of(name), "has_algorithm": "algorithm" in entry_of(name).axes}
            for name in map(str, cases["strategy"].unique())
        },
        "algorithm": {
            name: palette.algorithm_line(name) | {"symbol": palette.algorithm_symbol(name)} for name in algorithms
        },
    }
