"""Two or more sessions next to each other: one HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.compare.comparison import NUMBERS, SHARED_WORK, STEP, Comparison, compare_sessions
from parabench.analysis.compare.machines import TITLES
from parabench.analysis.compare.overall import Overall, over, overall, sentences, steps
from parabench.analysis.compare.sides import read_several
from parabench.analysis.compare.warnings import several_findings
from parabench.analysis.environment.diff import apart, facts
from parabench.analysis.numbers import status_counts
from parabench.files import write_whole
from parabench.plan.case import DEFAULTS
from parabench.report.page import declared, fill, packed
from parabench.report.page_data import FILTERS
from parabench.report.palette import side_style
from parabench.report.sections.comparison import several_tabs
from parabench.report.spec import DASH, FORMATS, NAME, Cell, Column, flagged, out_of
from parabench.store.results import records
from parabench.strategies import entry_of


def write_comparison(stores: list[tuple[Path, str | None]], out: Path) -> Path:
    """Write the comparison of two or more sessions to the file `out`, completely or not at all.

    A session of None is the newest of its database. Raises UsageError if sessions cannot be compared, or if `out`
    cannot be written.
    """
    write_whole(out, render(compare_sessions(read_several(stores))), "page", "give another file for the report")
    return out


def render(of: Comparison) -> str:
    """Return the page as text."""
    works, names, cases = overall(of), list(of.names), case_rows(of)
    found = facts(of.sides)
    tabs = several_tabs(of, works, found)
    origins = [side.origin for side in of.sides]
    return fill(
        "several.html",
        [section for tab in tabs for section in tab.sections],
        data=several_data(of, cases),
        opened=_details(of, works),
        tabs=tabs,
        names=names,
        colours=[side_style(at).color for at in range(len(names))],
        apart=[apart(found, at) for at in range(len(names))],
        answers=[_answer(each) for each in works],
        origins=origins,
        started=max(origin.started_utc for origin in origins),
        paired=of.paired[1:],
        findings=several_findings(of),
        unfinished=[name for name, origin in zip(names, origins, strict=True) if not origin.finished_utc],
        next=steps(of, works),
        command=shlex.join(["parabench", "report", *(origin.at for origin in origins)]),
    )


def _answer(work: Overall) -> dict[str, object]:
    """Return the sentences of one workload, and its means as (name, number, unit, interval)."""
    numbers = [
        (f"a step on {name}, relative to {work.names[0]}", format.times(mean.ratio), "times", over(mean))
        for name, mean in zip(work.names[1:], work.steps, strict=True)
        if mean.ratio is not None
    ]
    return {"heading": work.heading, "sentences": sentences(work), "numbers": numbers}


ABSENT = "not measured"
# The columns of a side's ratios on the page, by quantity.
RATIOS = {"ratio": STEP, "per_joule": "per_joule", "per_gb": "per_gb"}
# With filters for the outcomes of more sides than these, the bar would hide the page on a phone.
MOST_CHANGES = 2


def several_data(of: Comparison, cases: pd.DataFrame) -> dict[str, Any]:
    """Return the data of the page as JSON: the `cases`, with their table and their filters."""

    def head(name: str) -> str:
        """Return the head of a column in the CSV file: 'b: step_time_s' of `step_time_s.1`."""
        column, _, side = name.partition(".")
        return f"{of.names[int(side)]}: {column}" if side else name

    changes = {f"change.{at}": f"{name} is" for at, name in enumerate(of.names) if at}
    works = {name: name.replace("_", " ").capitalize() for name in SHARED_WORK if name not in FILTERS}
    titles = FILTERS | works | {"sides": "Measured on"} | (changes if len(changes) <= MOST_CHANGES else {})
    return {
        "cases": packed(cases),
        "tables": {"sides": declared(_columns(of, cases), cases, map(str, cases), head)},
        "details": True,
        "filters": [(name, title) for name, title in titles.items() if cases[name].nunique(dropna=False) > 1],
    }


def by_side(of: Comparison) -> pd.DataFrame:
    """Return a row per configuration and side: NUMBERS, `status`, and the columns of RATIOS with their intervals.

    Ratios are relative to the first side; `change` is the outcome of the step time's.
    """
    found = of.numbers.set_index(["row", "at"])[[*NUMBERS, "status"]]
    for column, quantity in RATIOS.items():
        own = of.of(quantity).set_index(["row", "at"])[["ratio", "low", "high"]].astype(float)
        found = found.join(own.set_axis([column, f"{column}_low", f"{column}_high"], axis="columns"))
    return found.join(of.of(STEP).set_index(["row", "at"])["outcome"].rename("change"))


def case_rows(of: Comparison) -> pd.DataFrame:
    """Return a row for each configuration, the fastest first.

    It has the configuration's fields, `status` on all sides, `sides` that launched it, and each column of `by_side` for
    each side: `step_time_s.0` and so on.
    """
    every = range(len(of.sides))
    varying = {name for name in DEFAULTS if of.cases[name].nunique(dropna=False) > 1}
    found = of.cases[["case_id", "label", *sorted({*FILTERS, *SHARED_WORK, *varying} - {"status"})]]
    found = found.assign(ranked=[entry_of(str(name)).ranked for name in found["strategy"]])
    numbers = by_side(of)
    columns = [(str(name), at) for at in every for name in numbers if at or str(name) in (*NUMBERS, "status")]
    wide = numbers.reset_index().pivot(index="row", columns="at").reindex(columns=columns)
    found = found.join(wide.set_axis([f"{name}.{at}" for name, at in columns], axis="columns"))
    if any(of.other_hardware):
        # 'cuda', or 'cuda, cpu' if sides differ.
        found["devices"] = of.numbers.groupby("row")["device"].agg(lambda own: ", ".join(own.dropna().unique()))
    found["status"] = [_status(of, row) for row in of.ids.index]
    there = [[of.names[at] for at in every if own[at]] for own in of.measured.to_numpy()]
    found["sides"] = ["all" if len(names) == len(of.names) else format.joined(names) for names in there]
    fastest = found[[f"step_time_s.{at}" for at in every]].min(axis=1)
    return found.loc[fastest.sort_values(na_position="last", kind="stable").index].reset_index(drop=True)


def _status(of: Comparison, row: int) -> str:
    """Return the results of a configuration's launches on all sides: 'ok', '4 ok, 2 oom', '3 ok, 1 not measured'."""
    found: list[str] = []
    for at, side in enumerate(of.sides):
        there = of.measured.at[row, at]
        found += side.repetitions[of.id(row, at)]["status"].tolist() if there else [ABSENT]
    return status_counts(found)


def _times(title: str, name: str, suffix: str = "") -> Column:
    """Return the column of a ratio with its interval."""

    def show(row: Mapping[Any, Any]) -> Cell:
        ratio, low, high = (row[f"{name}{end}{suffix}"] for end in ("", "_low", "_high"))
        text = FORMATS["times"](ratio)
        known = format.known(ratio) and format.known(low)
        return {"text": text, "sub": format.times_between(low, high)} if known else text

    return Column(title, f"{name}{suffix}", "times", show=show)


def _side_ms(row: Mapping[Any, Any], at: int) -> Cell:
    """Return the step time on a side, or the status if there is none."""
    step_s, status = row[f"step_time_s.{at}"], row[f"status.{at}"]
    if format.known(step_s):
        return FORMATS["ms"](step_s)
    return flagged(status if isinstance(status, str) else ABSENT, True)


def _range_ms(row: Mapping[Any, Any]) -> str:
    return f"{FORMATS['ms'](row['low_s'])} to {FORMATS['ms'](row['high_s'])}" if format.known(row["low_s"]) else DASH


def _columns(of: Comparison, cases: pd.DataFrame) -> list[Column]:
    """Return the columns of the table of all configurations: each side's step time, and the ratios of the others."""
    two = len(of.sides) == 2
    columns = [NAME]
    if "devices" in cases:
        columns.append(Column("Devices", "devices"))
    for at, name in enumerate(of.names):
        columns.append(Column(f"{name}, ms", f"step_time_s.{at}", "ms", show=partial(_side_ms, at=at)))
    for at, side in enumerate(of.names[1:], 1):
        for name, quantity in RATIOS.items():
            # With more sides the table would be wide.
            if name == "ratio" or (two and cases[f"{name}.{at}"].notna().any()):
                head = TITLES[quantity] if two else f"{side}, times"
                columns.append(_times(head, name, f".{at}"))
        if two:
            columns.append(Column(f"{side} is", f"change.{at}"))
    return columns


def _details(of: Comparison, works: Sequence[Overall]) -> list[dict[str, Any]]:
    """Return the details of each configuration: `case_id`, `label`, and a table.

    The table has the `head` of its columns, and (name, note, cells) of each side in `rows`. Columns that are unknown on
    all sides are left out.
    """
    units = " or ".join(dict.fromkeys(format.unit_of(each.work["seq_len"]) for each in works))
    columns = [
        Column("Step ms", "step_time_s", "ms"),
        _times("Times", "ratio"),
        Column("Launches, ms", "low_s", "ms", show=_range_ms),
        Column("p90 ms", "p90_s", "ms"),
        Column(f"{units.capitalize()}/s", "tokens_per_s", "rate"),
        Column("Peak MiB", "peak_memory_bytes", "mib"),
        Column("Launches ok", "n_ok", "count", show=out_of("n_ok", "n_launches")),
        _times("Per GB, times", "per_gb"),
        _times("Per joule, times", "per_joule"),
    ]
    of_row: dict[int, list[dict[Any, Any]]] = {}
    for each in records(by_side(of).reset_index()):
        of_row.setdefault(each["row"], []).append(each)
    found = []
    for row, case_id, label in of.cases[["case_id", "label"]].itertuples():
        known = [each for each in columns if any(format.known(side[each.value]) for side in of_row[row])]
        rows = []
        for side in sorted(of_row[row], key=itemgetter("at")):
            status = side["status"] if isinstance(side["status"], str) else ABSENT
            notes = [status, side["change"]] if isinstance(side["change"], str) else [status]
            cells = ["1" if not side["at"] and each.format == "times" else each.cell(side) for each in known]
            rows.append((of.names[side["at"]], ", ".join(notes), cells))
        found.append({"case_id": case_id, "label": label, "head": [each.title for each in known], "rows": rows})
    return found
