"""What the script of a page of collectives draws from: cases, their sizes, and the points that were fitted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd

from parabench.analysis.collectives.bus import one_form
from parabench.analysis.collectives.cost_model import Fit
from parabench.analysis.tables import status_counts
from parabench.analysis.text import format
from parabench.plan.collective_case import OPS, CollectiveCase
from parabench.report import palette
from parabench.report.data.columns import packed
from parabench.store.record import Status

# By what a reader may filter, in the order of the bar; those in which cases do not differ are left out.
FILTERS = {
    "op": "Operation",
    "algorithm": "Algorithm",
    "world_size": "Ranks",
    "ranks_per_node": "Ranks a node",
    "dtype": "Element type",
    "redop": "Reduction",
    "device": "Device",
    "backend": "Backend",
    "threads": "Threads",
    "status": "Status",
}
# What tells figures apart, beside operation and ranks, where cases differ in it.
_APART = ("dtype", "redop", "device", "backend", "threads")
# A value that stands for "has none": cases do not differ by having none.
_NONE = {"redop": "none"}
_SIZE = (
    "bytes", "in_place", "call_s", "low_s", "high_s", "busbw", "spread", "good", "launches",
)  # fmt: skip


def case_table(launches: pd.DataFrame) -> pd.DataFrame:
    """One row a case of `bus.session_launches`, by operation, ranks and algorithm.

    `question` is what its figures are titled, `line` how it is called in them; `status` as `tables.status_counts`.
    """
    rows = []
    for case_id, own in launches.groupby("case_id", sort=False):
        case = CollectiveCase.from_dict(json.loads(own["case_json"].iloc[0]))
        good = int((own["status"] == Status.OK).sum())
        counts = {"status": status_counts(own["status"]), "n_ok": good, "n_launches": len(own)}
        rows.append({"case_id": case_id, "label": case.label} | case.to_dict() | counts)
    table = pd.DataFrame(rows, columns=["case_id", "label", *_fields(), "status", "n_ok", "n_launches"])
    table = table.iloc[sorted(range(len(table)), key=[_place(row) for row in table.to_dict("records")].__getitem__)]
    table = table.reset_index(drop=True)
    apart = [name for name in _APART if varies(table, name)]
    nodes = varies(table, "ranks_per_node")
    return table.assign(
        question=[_question(row, apart) for row in table.to_dict("records")],
        line=[_line(row, nodes) for row in table.to_dict("records")],
    )


def varies(cases: pd.DataFrame, name: str) -> bool:
    """Whether cases that have `name` differ in it."""
    values = cases[name].dropna()
    return values[values != _NONE.get(name)].nunique() > 1


def page_data(cases: pd.DataFrame, launches: pd.DataFrame, table: pd.DataFrame, fits: Sequence[Fit]) -> dict[str, Any]:
    """The page's data, as JSON holds it: `cases` as `case_table` has them; `launches`, `sizes` and `points` name
    theirs by its row, `case`; `fits` are the rows of the cases that each fit is of. `drawn` are sizes of the form that
    algorithms are compared in, of which a launch ended well."""
    rows = {case: i for i, case in enumerate(cases["case_id"])}
    of_launch = {launch: rows[case] for launch, case in zip(launches["launch_id"], launches["case_id"], strict=True)}
    shown = set(one_form(table[table["good"] > 0]).index)
    points = [
        {"case": of_launch[point.launch], "bytes": point.bytes, "measured_s": point.seconds,
         "fitted_s": point.seconds * (1 + residual)}
        for fit in fits
        for point, residual in zip(fit.points, fit.residuals, strict=True)
        if point.launch is not None
    ]  # fmt: skip
    algorithms = palette.in_native_order(cases["algorithm"].unique())
    return {
        "cases": packed(cases),
        "launches": packed(
            launches[["launch_id", "block", "status", "error", "wall_s"]].assign(
                case=[rows[case] for case in launches["case_id"]]
            )
        ),
        "sizes": packed(
            table[list(_SIZE)].assign(
                case=[rows[case] for case in table["case_id"]], drawn=[i in shown for i in table.index]
            )
        ),
        "points": packed(pd.DataFrame(points, columns=["case", "bytes", "measured_s", "fitted_s"])),
        "fits": [sorted({of_launch[point.launch] for point in fit.points if point.launch is not None}) for fit in fits],
        "filters": [(name, title) for name, title in FILTERS.items() if varies(cases, name)],
        "styles": {
            "algorithm": {
                name: palette.algorithm_line(name) | {"symbol": palette.algorithm_symbol(name)} for name in algorithms
            }
        },
    }


def _fields() -> list[str]:
    return list(CollectiveCase.__dataclass_fields__)


def _place(row: dict[Any, Any]) -> tuple[int, int, tuple[int, str]]:
    return OPS.index(row["op"]), int(row["world_size"]), palette.native_first(row["algorithm"])


def _question(row: dict[Any, Any], apart: list[str]) -> str:
    told = [str(row[name]) + (" threads" if name == "threads" else "") for name in apart]
    return ", ".join([row["op"], format.count(int(row["world_size"]), "rank"), *(x for x in told if x != "none")])


def _line(row: dict[Any, Any], nodes: bool) -> str:
    per_node = row["ranks_per_node"]
    return str(row["algorithm"]) + (f" ({int(per_node)} a node)" if nodes and format.known(per_node) else "")
