"""Two or more stores or sessions beside each other: one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.compare.machines import TITLES
from parabench.analysis.compare.overall import Overall, explore, interval, overall, sentences, steps
from parabench.analysis.compare.several import SHARED_WORK, Several
from parabench.analysis.compare.sides import read_several
from parabench.analysis.compare.warnings import several_findings
from parabench.analysis.environment.diff import apart, facts
from parabench.analysis.numbers import status_counts
from parabench.files import write_whole
from parabench.plan.case import Case
from parabench.report.page import declared, fill, packed
from parabench.report.page_data import FILTERS
from parabench.report.palette import side_style
from parabench.report.sections.comparison import several_tabs
from parabench.report.spec import ABSENT, Column
from parabench.strategies import entry_of


def write_comparison(stores: list[tuple[Path, str | None]], out: Path, template_folder: Path | None = None) -> Path:
    """Write the comparison of sessions (None: its store's newest) to the file `out`, whole or not at all. What
    `template_folder` holds of the files of `reports/` stands for ours.

    Raises UsageError for fewer than two sessions, for one twice, for none such or one that trained nothing, when a
    template is wrong, or when `out` cannot be written.
    """
    write_whole(out, render(Several(read_several(stores)), template_folder), "page", "give another file for the report")
    return out


def render(of: Several, template_folder: Path | None = None) -> str:
    """The page as text."""
    works = overall(of)
    told = facts(of.sides)
    tabs = several_tabs(of, works, told)
    names, cases = list(of.names), case_rows(of)
    return fill(
        "several.html",
        [section for tab in tabs for section in tab.sections],
        template_folder,
        data=several_data(of, cases),
        opened=_details(of, works, cases),
        tabs=tabs,
        names=names,
        colours=[side_style(at).color for at in range(len(names))],
        apart=[apart(told, at) for at in range(len(names))],
        answers=[_answer(each) for each in works],
        origins=of.origins,
        started=max(origin.started_utc for origin in of.origins),
        paired=of.paired[1:],
        findings=several_findings(of),
        unfinished=[name for name, origin in zip(names, of.origins, strict=True) if not origin.finished_utc],
        next=steps(of, works),
        command=explore(*of.origins),
    )


def _answer(each: Overall) -> dict[str, object]:
    """Return the sentences of one workload, and its numbers as (name, number, unit, interval)."""
    numbers = []
    for at in each.others:
        mean, name = each.means[at - 1], f"a step on {each.names[at]}, relative to {each.names[0]}"
        if mean.ratio is None:
            numbers.append((name, format.UNKNOWN, "", mean.reason))
        else:
            ends = f"95%: {interval(mean)}" if mean.low is not None else f"no interval: {mean.reason}"
            numbers.append((name, format.times(mean.ratio), "times", ends))
    return {"heading": each.heading, "sentences": sentences(each), "numbers": numbers, "of": each}


# Of each side.
_NUMBERS = (
    "step_time_s", "low_s", "high_s", "spread", "p90_s", "tokens_per_s", "peak_memory_bytes", "n_ok", "n_launches",
)  # fmt: skip
RATIOS = {"ratio": "step_time", "per_joule": "per_joule", "per_gb": "per_gb"}
# With filters for what became of a case on more sides than these the bar would hide the page of a phone.
MOST_CHANGES = 2


def several_data(of: Several, cases: pd.DataFrame) -> dict[str, Any]:
    """Return the data of the page as JSON: the `cases`, with their table and their filters."""
    return {
        "cases": packed(cases),
        "tables": {"sides": declared(_columns(of, cases), cases, map(str, cases), partial(_head, of))},
        "details": True,
        "filters": _filters(cases, of),
    }


def _details(of: Several, works: Sequence[Overall], cases: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the details of each case: its `case_id` and `label`, and a table with the `head` of its columns and the
    (name, note, cells) of each side in `rows`. Columns that are unknown on all sides are left out."""
    every, found = _side_columns(works), []
    for case in cases.to_dict("records"):
        # The columns of each side, without its number.
        own = [
            {name: case.get(f"{name}.{at}") for each in every for name in (each.value, *each.beside)}
            for at in range(len(of.names))
        ]
        known = [each for each in every if any(format.known(row[each.value]) for row in own)]
        rows = []
        for at, (name, row) in enumerate(zip(of.names, own, strict=True)):
            status, change = (case.get(f"{each}.{at}") for each in ("status", "change"))
            notes = (status if isinstance(status, str) else ABSENT, change if isinstance(change, str) else "")
            cells = ["1" if at == 0 and each.format == "times" else each.rich(row) for each in known]
            rows.append((name, ", ".join(filter(None, notes)), cells))
        found.append(
            {"case_id": case["case_id"], "label": case["label"], "head": [c.title for c in known], "rows": rows}
        )
    return found


def case_rows(of: Several) -> pd.DataFrame:
    """Return a row for each case of any side: its fields, and of side i the columns `step_time_s.i` and so on, from 1
    also `ratio.i` with `ratio_low.i` and `ratio_high.i`, `change.i`, and the same for `per_joule.i` and `per_gb.i`, all
    relative to side 0."""
    table = of.cases
    tables = [side.cases_by_id.to_dict("index") for side in of.sides]
    varying = {name for name in Case().to_dict() if table[name].nunique(dropna=False) > 1}
    columns: dict[str, Any] = {
        name: table[name] for name in ("case_id", "label", *sorted({*FILTERS, *SHARED_WORK, *varying} - {"status"}))
    }
    columns["ranked"] = [entry_of(str(name)).ranked for name in table["strategy"]]
    for at, rows in enumerate(tables):
        own = [rows[row.cases[at]] if row.cases[at] is not None else {} for row in of.rows]
        for name in (*_NUMBERS, "status"):
            columns[f"{name}.{at}"] = [each.get(name) for each in own]
        if at:
            columns |= _beside(of, at)
    if any(of.other_hardware):
        # 'cuda', or 'cuda, cpu' if sides differ.
        devices = [[t[case]["device"] for t, case in zip(tables, row.cases, strict=True) if case] for row in of.rows]
        columns["devices"] = [", ".join(dict.fromkeys(map(str, each))) for each in devices]
    every = range(len(tables))
    columns["status"] = [_status(of, row.cases) for row in of.rows]
    columns["sides"] = [
        "all" if None not in row.cases else format.joined(of.names[at] for at in every if row.cases[at] is not None)
        for row in of.rows
    ]
    found = pd.DataFrame(columns)
    for at in every:
        found = found.astype({f"{name}.{at}": float for name in _NUMBERS})
    fastest = found[[f"step_time_s.{at}" for at in every]].min(axis=1)
    return found.loc[fastest.sort_values(na_position="last", kind="stable").index].reset_index(drop=True)


def _columns(of: Several, cases: pd.DataFrame) -> list[Column]:
    """Of the table of all cases: each side's step time, and what the others take and give beside the first."""
    two = len(of.sides) == 2
    columns = [Column("Case", "label", "case")]
    if "devices" in cases:
        columns.append(Column("Devices", "devices"))
    for at, side in enumerate(of.sides):
        columns.append(Column(f"{side.role}, ms", f"step_time_s.{at}", "side_ms", beside=(f"status.{at}",)))
    for at, side in enumerate(of.sides[1:], 1):
        for name, ratio in RATIOS.items():
            # Of more sides the table would be wide.
            if name == "ratio" or (two and cases[f"{name}.{at}"].notna().any()):
                head = TITLES[ratio] if two else f"{side.role}, times"
                ends = (f"{name}_low.{at}", f"{name}_high.{at}")
                columns.append(Column(head, f"{name}.{at}", "times", beside=ends))
        if two and f"change.{at}" in cases:
            columns.append(Column(f"{side.role} is", f"change.{at}", "outcome"))
    return columns


def _side_columns(works: Sequence[Overall]) -> list[Column]:
    """Of what each side knows of one case, a row a side; the ratios are beside the first side."""
    units = " or ".join(dict.fromkeys(format.unit_of(each.work["seq_len"]) for each in works))
    return [
        Column("Step ms", "step_time_s", "ms"),
        Column("Times", "ratio", "times", beside=("ratio_low", "ratio_high")),
        Column("Launches, ms", "low_s", "range_ms", beside=("high_s",)),
        Column("p90 ms", "p90_s", "ms"),
        Column(f"{units.capitalize()}/s", "tokens_per_s", "rate"),
        Column("Peak MiB", "peak_memory_bytes", "mib"),
        Column("Launches ok", "n_ok", "of", beside=("n_launches",)),
        Column("Per GB, times", "per_gb", "times", beside=("per_gb_low", "per_gb_high")),
        Column("Per joule, times", "per_joule", "times", beside=("per_joule_low", "per_joule_high")),
    ]


def _head(of: Several, name: str) -> str:
    """The head of a file's column: 'b: step_time_s' of `step_time_s.1`."""
    column, _, side = name.partition(".")
    return f"{of.sides[int(side)].role}: {column}" if side else name


def _beside(of: Several, at: int) -> dict[str, list[Any]]:
    """Return the columns of a side relative to the first."""
    found: dict[str, list[Any]] = {
        f"change.{at}": [(each := row.step_time[at - 1]) and each.outcome for row in of.rows]
    }
    for name, ratio in RATIOS.items():
        own = [row.ratio(ratio, at) for row in of.rows]
        for column, field in ((name, "ratio"), (f"{name}_low", "low"), (f"{name}_high", "high")):
            found[f"{column}.{at}"] = [each and getattr(each, field) for each in own]
    return found


def _status(of: Several, row: tuple[str | None, ...]) -> str:
    """How a case ended, over all sides: 'ok', '4 ok, 2 oom', '3 ok, 1 not measured'."""
    found: list[str] = []
    for side, case in zip(of.sides, row, strict=True):
        found += [ABSENT] if case is None else list(side.repetitions[case]["status"])
    return status_counts(found)


def _filters(cases: pd.DataFrame, of: Several) -> list[tuple[str, str]]:
    changes = {f"change.{at}": f"{side.role} is" for at, side in enumerate(of.sides) if at}
    works = {name: name.replace("_", " ").capitalize() for name in SHARED_WORK if name not in FILTERS}
    titles = FILTERS | works | {"sides": "Measured on"} | (changes if len(changes) <= MOST_CHANGES else {})
    return [(name, title) for name, title in titles.items() if cases[name].nunique(dropna=False) > 1]
