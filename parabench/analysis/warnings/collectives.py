"""Warnings about a session of collectives."""

from __future__ import annotations

import pandas as pd

from parabench import json_text
from parabench.analysis.collectives.bus import bus_table, measured
from parabench.analysis.numbers import status_counts
from parabench.analysis.session import SessionData
from parabench.analysis.warnings.codes import Rule
from parabench.analysis.warnings.launches import FEW, NOISY, common
from parabench.plan.collective_case import CollectiveCase, size_text
from parabench.store.record import Finding, Status

OTHER_ALGORITHM = Rule(
    "other_algorithm",
    lambda row: row["ran"] != row["algorithm"],
    "{label}: {ran} ran, because {algorithm} has no {op}.",
    "The numbers are those of {ran}.",
)
NOISY_SIZES = Rule(
    "noisy",
    lambda row: row["spread"] > row["limit"],
    "{label}: launches differ, the most at {size}, by {spread:percent}.",
    "Stop other processes on the machine, or run more launches.",
)


def check_collectives(seen: SessionData) -> list[Finding]:
    """Return all computed warnings, the broadest first."""
    cases, table = case_table(seen.numbers), bus_table(measured(seen.numbers))
    sizes = table.assign(limit=table["device"].map(NOISY).astype(float), size=table["bytes"].map(size_text))
    return [
        *([] if (cases["source"] != "").any() else FEW.findings(cases)),
        *common(cases, seen.session),
        *OTHER_ALGORITHM.findings(table.drop_duplicates(["case_id", "ran"])),
        *NOISY_SIZES.findings(sizes.sort_values("spread", ascending=False).drop_duplicates("case_id")),
    ]


def case_table(numbers: pd.DataFrame) -> pd.DataFrame:
    """Return one row per configuration: its fields, and the status of its launches as in `status_counts`."""
    rows = []
    for case_id, launches in numbers.drop_duplicates("launch_id").groupby("case", sort=False):
        case = CollectiveCase.from_dict(json_text.parsed(launches["case_json"].iloc[0]))
        good = int((launches["status"] == Status.OK).sum())
        counts = {"status": status_counts(launches["status"]), "n_ok": good, "n_launches": len(launches)}
        rows.append({"case_id": case_id, "label": case.label} | case.to_dict() | counts | {"algorithm": case.line})
    fields = CollectiveCase.__struct_fields__
    return pd.DataFrame(rows, columns=["case_id", "label", *fields, "status", "n_ok", "n_launches"])
