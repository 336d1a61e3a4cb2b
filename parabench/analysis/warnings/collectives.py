"""Warnings about a session of collectives."""

from __future__ import annotations

from parabench.analysis.collectives.bus import bus_table, measured
from parabench.analysis.numbers import status_counts
from parabench.analysis.session import SessionData
from parabench.analysis.warnings.codes import Rule
from parabench.analysis.warnings.launches import NOISY, common
from parabench.plan.collective_case import size_text
from parabench.store.record import Finding, Status

_OTHER_ALGORITHM = Rule(
    "other_algorithm",
    lambda row: row["ran"] != row["algorithm"],
    "{label}: {ran} ran, because {algorithm} has no {op}.",
    "The numbers are those of {ran}.",
)
_NOISY_SIZES = Rule(
    "noisy",
    lambda row: row["spread"] > row["limit"],
    "{label}: launches differ, the most at {size}, by {spread:percent}.",
    "Stop other processes on the machine, or run more launches.",
)


def check_collectives(seen: SessionData) -> list[Finding]:
    """Return all computed warnings, the broadest first."""
    launches = seen.numbers.drop_duplicates("launch_id")
    of_case = launches.assign(ok=launches["status"] == Status.OK).groupby("case", sort=False)
    fields = ["label", "world_size", "nodes", "threads", "device", "backend", "source"]
    cases = of_case[fields].first().assign(status=of_case["status"].agg(status_counts), n_ok=of_case["ok"].sum())
    cases = cases.assign(n_launches=of_case.size()).rename_axis("case_id").reset_index()
    table = bus_table(measured(seen.numbers))
    sizes = table.assign(limit=table["device"].map(NOISY).astype(float), size=table["bytes"].map(size_text))
    return [
        *common(cases, seen.session),
        *_OTHER_ALGORITHM.findings(table.drop_duplicates(["case_id", "ran"])),
        *_NOISY_SIZES.findings(sizes.sort_values("spread", ascending=False).drop_duplicates("case_id")),
    ]
