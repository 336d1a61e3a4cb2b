"""What the page's script draws from: every case and every launch of a session of trainings, embedded once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from parabench.analysis import tables
from parabench.analysis.evidence import Evidence
from parabench.analysis.frames import WORK, same_work
from parabench.analysis.scaling import scaling
from parabench.analysis.sweet_spot.answer import Answer
from parabench.analysis.words import unit_of
from parabench.case import Case
from parabench.family import entry_of
from parabench.pages import palette
from parabench.pages.columns import packed
from parabench.pages.panels import work_name
from parabench.record import STEP_PARTS

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


def page_data(seen: Evidence, answers: Iterable[Answer]) -> dict[str, Any]:
    """The data of a training's page, as JSON holds it.

    `cases` are rows as `frames.case_table` has them, fastest first, each with its `place` in the answers, its `mark`
    where it is no answer, and `work`, the index of its work in `works`; `launches` name theirs by its row, `case`.
    `filters` are [column, title] pairs. `scaling` are the points of `analysis.scaling`, `styles` how each strategy and
    algorithm is drawn.
    """
    cases = seen.cases
    works = same_work(cases)
    of_work = {case: i for i, (_, group) in enumerate(works) for case in group["case_id"]}
    rows = {case: i for i, case in enumerate(cases["case_id"])}
    told = tables.case_rows(cases, answers)
    varying = [name for name in Case().to_dict() if cases[name].nunique(dropna=False) > 1]
    table = cases[["case_id", "label", "status", "error", "statistic", *_NUMBERS]].assign(
        **{name: cases[name] for name in {*FILTERS, *WORK, *varying} if name in Case().to_dict()},
        place=[row["place"] for row in told],
        mark=[row["mark"] for row in told],
        ranked=[entry_of(str(name)).ranked for name in cases["strategy"]],
        work=[of_work[case] for case in cases["case_id"]],
    )
    own = seen.launches[seen.launches["case_id"].isin(rows)]
    launches = own[["launch_id", *_LAUNCH]].assign(
        case=[rows[case] for case in own["case_id"]],
        buckets=[tables.bucket_sizes(facts) for facts in own["facts"]],
        error=own["error"],
    )
    return {
        "cases": packed(table),
        "launches": packed(launches),
        "works": [
            {"name": work_name(work) if len(works) > 1 else "", "unit": unit_of(work["seq_len"])} for work, _ in works
        ],
        "filters": _filters(cases),
        "scaling": _scaling_data(seen, rows),
        "styles": styles(cases),
    }


def _filters(cases: pd.DataFrame) -> list[tuple[str, str]]:
    further = {name: name.replace("_", " ").capitalize() for name in WORK if name not in FILTERS}
    return [(name, title) for name, title in (FILTERS | further).items() if cases[name].nunique(dropna=False) > 1]


def _scaling_data(seen: Evidence, rows: dict[Any, int]) -> dict[str, Any]:
    return packed(seen.once(lambda seen: scaling(seen.cases)))


def styles(cases: pd.DataFrame) -> dict[str, dict[str, dict[str, str]]]:
    """How strategies and algorithms look: {"strategy": {name: {color, dash, symbol}}, "algorithm": ...}."""
    algorithms = palette.in_native_order(cases["algorithm"].unique())
    return {
        "strategy": {
            name: palette.strategy_line(name) | {"symbol": palette.symbol_of(name)}
            for name in map(str, cases["strategy"].unique())
        },
        "algorithm": {
            name: palette.algorithm_line(name) | {"symbol": palette.algorithm_symbol(name)} for name in algorithms
        },
    }
