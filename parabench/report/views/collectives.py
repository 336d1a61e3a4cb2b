"""The report of a session of collectives: the fastest algorithm by size, and the fitted cost model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from parabench import json_text
from parabench.analysis import format
from parabench.analysis.collectives.bus import QUANTILES, bus_table, good_sizes, measured, one_form
from parabench.analysis.collectives.cost_model import Fit, fit_costs
from parabench.analysis.collectives.crossover import answers
from parabench.analysis.collectives.rounds import formula
from parabench.analysis.links import link_table
from parabench.analysis.numbers import numbers, status_counts
from parabench.analysis.session import Session, SessionData
from parabench.analysis.warnings.codes import finding_groups
from parabench.analysis.warnings.collectives import check_collectives
from parabench.analysis.warnings.links import check_links
from parabench.plan.collective_case import LOGGED_OPS, CollectiveCase, size_text
from parabench.plan.collective_protocol import LATENCY, in_words
from parabench.report import palette
from parabench.report.figures.collectives import bus, fitted
from parabench.report.page import declared, packed, render_page
from parabench.report.palette import in_native_order
from parabench.report.sections.environment import links_section
from parabench.report.sections.logs import logs_sections
from parabench.report.spec import BLOCK, FORMATS, NAME, STATUS, WORDED, Cell, Column, Section, Tab, flagged, out_of
from parabench.store.record import Status
from parabench.store.results import Results, records


def render(results: Results, session: Session) -> str:
    """Return the page as text."""
    results = results.of([session.id])
    every, links = numbers(results, session), link_table(results, session)
    launches, sizes = every.drop_duplicates("launch_id"), measured(every)
    cases, table, fits = _fitted(every)
    labels = dict(zip(cases["case_id"], cases["label"], strict=True))
    good = launches["status"] == Status.OK
    logs, connections = logs_sections(launches, table), links_section(links)
    pairs = set(zip(table["algorithm"], table["op"], strict=True))
    imported = [("imported", format.when(session.started_utc)), ("parabench", session.version)]
    return render_page(
        "collectives.html",
        session,
        [
            Tab("answer", "Answer", ()),
            Tab(
                "algorithms",
                "Logs" if logs else "Algorithms",
                (*_algorithms(cases, table, fits, in_words(session.timing)), *logs[:1]),
            ),
            Tab("trust", "Trust", ()),
            Tab("environment", "Environment", (*([connections] if connections else []), *logs[1:])),
            Tab("data", "Data", ()),
        ],
        data=page_data(cases, launches, table),
        answers=[(answer.heading, answer.text()) for answer in answers(sizes)],
        trust={"good": int(good.sum()), "launches": len(launches), "cases": len(cases),
               "blocks": launches["repetition"].nunique(), "checked": int(table["n_wrong"].notna().sum()),
               "unchecked": int(table["n_wrong"].isna().sum()), "wrong": int(table["n_wrong"].sum())},
        per_launch=f"{' or '.join(sorted(set(table['statistic'])))} of its calls, {_RANKS[bool(logs)]}",
        timed=in_words(session.timing),
        batched=session.timing != LATENCY,
        fits=[(each, "|".join(each.points["case"].unique())) for each in fits],
        formulas=[(algorithm, op, formula(op, algorithm)) for algorithm, op in sorted(pairs)],
        findings=finding_groups(
            results, session, [*check_collectives(cases, table, fits, session), *check_links(links)], labels
        ),
        launches=records(launches),
        failed=records(launches[~good]),
        logs=bool(logs),
        **({"environment": imported, "machine": None} if logs else {}),
    )  # fmt: skip


# How a call's time follows from its ranks: in launches of parabench, and in logs of nccl-tests.
_RANKS = {False: "by its slowest rank", True: "over ranks by nccl-tests' option -a, by default their mean"}


def conclusions(results: Results, session: Session) -> list[str]:
    """Return the answers and the stored warnings as lines for the terminal."""
    lines = [answer.sentence() for answer in answers(measured(numbers(results, session)))]
    return lines + [f"warning: {message}" for message in results.of([session.id]).finding["message"]]


def _fitted(every: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, list[Fit]]:
    """Return the configurations, `bus_table` and the fits of a session from its `numbers`."""
    sizes = measured(every)
    places = in_native_order(sizes["algorithm"].unique())

    def place(fit: Fit) -> tuple[int, int, int]:
        return places.index(fit.algorithm), LOGGED_OPS.index(fit.op or LOGGED_OPS[0]), fit.world_size or 0

    fits = sorted(fit_costs(good_sizes(sizes)), key=place)
    return case_table(every.drop_duplicates("launch_id")), bus_table(sizes), fits


def bus_section(seen: SessionData) -> Section:
    """Return the section of bus bandwidth against size."""
    return _algorithms(*_fitted(seen.numbers), in_words(seen.session.timing))[0]


def fit_section(seen: SessionData) -> Section:
    """Return the section of measured times and the fitted cost model."""
    return _algorithms(*_fitted(seen.numbers), in_words(seen.session.timing))[1]


def _algorithms(cases: pd.DataFrame, table: pd.DataFrame, fits: Sequence[Fit], timed: str) -> tuple[Section, ...]:
    good = one_form(table[table["good"] > 0])
    nothing = "No launch succeeded, so nothing is drawn."
    return (
        Section(
            "bus",
            "Bus bandwidth against size",
            "Bus bandwidth as nccl-tests defines it; higher is better. It compares with the hardware's bandwidth at "
            "any number of ranks.",
            nothing if good.empty else "Bus bandwidth is unknown because the logs do not name the operation.",
            panels=bus(cases, good[good["busbw"].notna()]),
            reading="Bars span the slowest to the fastest launch. Out of place where torch has both forms. "
            f"Timed: {timed}.",
        ),
        Section(
            "fit",
            "Measured times vs the fitted cost model",
            "A point is a launch; a line is the algorithm's formula with its fitted constants. Points off their line "
            "show where the algorithm does not follow the model.",
            nothing,
            panels=fitted(cases, fits),
            reading=f"Without a formula, the line is a + S b. Both axes are logarithmic. Timed: {timed}.",
        ),
    )


# The filters and their names, in order. Fields with one value are left out.
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
# Fields that distinguish figures, in addition to operation and ranks.
_APART = ("dtype", "redop", "device", "backend", "threads")
_SIZE = (
    "label", "bytes", "in_place", "call_s", "low_s", "high_s", "p50_s", "p95_s", "p99_s", "algbw", "busbw", "spread",
    "n_wrong", "good", "launches",
)  # fmt: skip


def _wrong(count: float | None) -> Cell:
    return flagged(FORMATS["count"](count), format.known(count) and count > 0)


SIZE_COLUMNS = (
    NAME,
    Column("Form", "form"),
    Column("Size", "bytes", WORDED, show=lambda row: size_text(int(row["bytes"]))),
    Column("Time µs", "call_s", "us"),
    Column("p50 µs", "p50_s", "us"),
    Column("p95 µs", "p95_s", "us"),
    Column("p99 µs", "p99_s", "us"),
    Column("Alg GB/s", "algbw", "digits"),
    Column("Bus GB/s", "busbw", "digits"),
    Column("Spread", "spread", "percent"),
    Column("Wrong", "n_wrong", "count", show=lambda row: _wrong(row["n_wrong"])),
    Column("Launches ok", "good", "count", show=out_of("good", "launches")),
)
# Heads of columns in a file that differ from their names here.
_CSV_HEADS = {
    "low_s": "fastest_launch_s", "high_s": "slowest_launch_s", "algbw": "algbw_gb_per_s", "busbw": "busbw_gb_per_s",
    "good": "n_ok", "launches": "n_launches",
}  # fmt: skip
LAUNCH_COLUMNS = (
    NAME,
    BLOCK,
    STATUS,
    Column("Wall", "wall_s", "seconds"),
)


def case_table(launches: pd.DataFrame) -> pd.DataFrame:
    """Return one row per configuration of the launches, by operation, ranks and algorithm.

    `question` is the title of its figure, `line` its name there, and `status` is from `numbers.status_counts`.
    """
    rows = []
    for case_id, own in launches.groupby("case", sort=False):
        case = CollectiveCase.from_dict(json_text.parsed(own["case_json"].iloc[0]))
        good = int((own["status"] == Status.OK).sum())
        counts = {"status": status_counts(own["status"]), "n_ok": good, "n_launches": len(own)}
        rows.append({"case_id": case_id, "label": case.label} | case.to_dict() | counts | {"algorithm": case.line})
    rows.sort(key=lambda row: (LOGGED_OPS.index(row["op"]), row["world_size"], palette.native_first(row["algorithm"])))
    fields = CollectiveCase.__struct_fields__
    table = pd.DataFrame(rows, columns=["case_id", "label", *fields, "status", "n_ok", "n_launches"])
    apart = [name for name in _APART if varies(table, name)]
    nodes = varies(table, "ranks_per_node")
    questions, lines = [], []
    for row in rows:
        values = [f"{row[name]} threads" if name == "threads" else row[name] for name in apart]
        values = [each for each in values if each != "none"]
        questions.append(", ".join([row["op"], format.count(row["world_size"], "rank"), *values]))
        per_node = f" ({row['ranks_per_node']} a node)" if nodes and row["ranks_per_node"] else ""
        lines.append(f"{row['algorithm']}{per_node}")
    return table.assign(question=questions, line=lines)


def varies(cases: pd.DataFrame, name: str) -> bool:
    """Return whether the cases that have a value of `name` differ in it; operations that reduce nothing have none."""
    values = cases[name].dropna()
    return values[values != "none"].nunique() > 1


def page_data(cases: pd.DataFrame, launches: pd.DataFrame, table: pd.DataFrame) -> dict[str, Any]:
    """Return the page's data as JSON: `cases` as in `case_table`, `launches` and `sizes` with the row of their `case`,
    and the `tables` of these two."""
    rows = {case: i for i, case in enumerate(cases["case_id"])}
    ran = launches[["case", "label", "launch_id", "repetition", "status", "error", "wall_s"]].sort_values("launch_id")
    ran = ran.rename(columns={"case": "case_id", "repetition": "block"})
    sizes = table[list(_SIZE)].assign(form=["in place" if each else "out of place" for each in table["in_place"]])
    return {
        "cases": packed(cases.drop(columns=["question", "line"])),
        "launches": packed(ran.assign(case=ran["case_id"].map(rows))),
        "sizes": packed(sizes.assign(case=[rows[case] for case in table["case_id"]])),
        "tables": {
            "sizes": declared(
                [each for each in SIZE_COLUMNS if each.value not in QUANTILES or table[each.value].notna().any()],
                sizes,
                [str(name) for name in sizes if name != "in_place"],
                lambda name: _CSV_HEADS.get(name, name),
            ),
            "launches": declared(LAUNCH_COLUMNS, ran, [str(name) for name in ran]),
        },
        "filters": [
            (name, "Log" if name == "algorithm" and (cases["source"] != "").any() else title)
            for name, title in FILTERS.items()
            if varies(cases, name)
        ],
    }
