"""The details of a configuration, which the page shows when a reader opens it, and the numbers of the best."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.analysis.warnings.codes import all_findings
from parabench.analysis.warnings.launches import session_warnings
from parabench.report.cases import page_cases, page_launches
from parabench.report.rerun import rerun_of
from parabench.report.spec import FORMATS, Column
from parabench.store.results import records


def case_details(seen: SessionData, columns: tuple[Column, ...]) -> list[dict[str, Any]]:
    """Return the content of `details.html` for each configuration.

    - `case`: its row of `page_cases`.
    - `numbers`: see `numbers_of`.
    - `head` and `launches`: the table of its launches, with `columns`, and the error of each.
    - `warnings`: (code, message, advice) about it alone.
    - `command`: the command that measures it again.
    """
    launches: dict[str, list[dict[str, Any]]] = {}
    for row in records(seen.once(page_launches).sort_values("repetition", kind="stable")):
        launches.setdefault(row["case_id"], []).append(row)
    warnings: dict[str, list[tuple[str, str, str]]] = {}
    for each in all_findings(seen.results, seen.session, seen.once(session_warnings)):
        if (case_id := each.case_id) in seen.labels:
            message = each.message.removeprefix(f"{seen.labels[case_id]}: ")
            warnings.setdefault(case_id, []).append((each.code, message, each.advice))
    command = rerun_of(seen.session)
    return [
        {
            "case": case,
            "numbers": numbers_of(case),
            "head": [each.title for each in columns],
            "launches": [
                ([each.cell(row) for each in columns], row["error"] or "") for row in launches[case["case_id"]]
            ],
            "warnings": warnings.get(case["case_id"], []),
            "command": command(seen.case(case["case_id"])),
        }
        for case in records(seen.once(page_cases))
    ]


def numbers_of(case: Mapping[str, Any], named: str = "") -> list[tuple[str, str, str, str]]:
    """Return (name, number, ±, unit) of the results in a row of `page_cases`; the first name starts with `named`."""
    step_s, margin_s, rate = case["step_time_s"], case["plus_minus_s"], case["tokens_per_s"]
    sure = format.known(margin_s)
    margin_ms = format.margin_ms(margin_s, step_s) if sure else ""
    # The relative margin of a throughput equals the relative margin of the step time.
    margin_rate = format.margin_rate(rate * margin_s / step_s, rate) if sure and format.known(rate) else ""
    return [
        (f"{named}step time, {case['statistic']}", *_number("ms", step_s, "ms", margin_ms)),
        ("throughput", *_number("rate", rate, f"{case['unit']}/s", margin_rate)),
        ("peak memory", *_number("mib", case["peak_memory_bytes"], "MiB")),
    ]


def _number(style: str, value: Any, unit: str, margin: str = "") -> tuple[str, str, str]:
    return (FORMATS[style](value), margin, unit) if format.known(value) else (format.UNKNOWN, "", "")
