"""Agreement of launches: variation between them, drift within them, and excluded launches."""

from __future__ import annotations

from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.launch_number import STATISTIC
from parabench.analysis.numbers import status_counts
from parabench.analysis.session import SessionData
from parabench.analysis.warnings.launches import AA_SPREAD, DRIFTS, NOISY
from parabench.report.figures.launches import drift, spread
from parabench.report.spec import Column, Section, block_name, table_of
from parabench.store.record import EXPLAIN_BLOCK, FIRST_BLOCK, REFERENCE_BLOCK, TWIN_BLOCK, UNCOUNTED, Status

NEVER_DELETED = "Outliers are never deleted: a launch that succeeded counts."
_NO_NUMBER = "no measured step has a known length"
_WHY_NO_COUNT = {
    REFERENCE_BLOCK: "other launches are verified against it",
    EXPLAIN_BLOCK: "NCCL logs in it, which takes time",
    TWIN_BLOCK: "a second copy of a case in a shared launch, for the noise floor",
}


def spread_section(seen: SessionData) -> Section:
    """Return the section of the variation between launches of a case."""
    shaded = (
        f"Shaded is ±{format.percent(AA_SPREAD['cpu'])}, the variation of the {STATISTIC['cpu']} of a case's launches "
        f"on a shared CPU. A case whose launches differ by more than {format.percent(NOISY['cpu'])} has a warning."
    )
    return Section(
        "spread",
        "Launch-to-launch variation",
        "Each launch relative to the step time of its configuration. The narrower the range, the smaller the "
        "differences that can be detected.",
        "No case has two valid launches, so their variation is unknown.",
        panels=spread(seen),
        reading=shaded if (seen.counted["device"] == "cpu").any() else "",
    )


def drift_section(seen: SessionData) -> Section:
    """Return the section of drift within launches."""
    devices = [device for device in DRIFTS if (seen.counted["device"] == device).any()] or list(DRIFTS)
    limits = [f"±{format.percent(DRIFTS[each])}" + f" on {each}" * (len(devices) > 1) for each in devices]
    return Section(
        "drift",
        "Drift within a launch",
        "The last third of a launch's measured steps relative to its first third; above zero, steps became slower. "
        f"Launches beyond the dashed lines ({', '.join(limits)}) are marked: warm-up may be too short.",
        "No launch has nine measured steps or more, so drift within launches is unknown.",
        panels=drift(seen),
    )


def excluded_section(seen: SessionData) -> Section:
    """Return the section of the launches that do not count, with the reasons."""
    launches = seen.numbers.rename(columns={"case": "case_id"})
    others = launches[~launches["launch_id"].isin(seen.counted["launch_id"])]
    # Failures are listed before planned exclusions.
    planned = others["repetition"] < FIRST_BLOCK
    table = table_of(
        "Excluded launches",
        (
            Column("Case", "label"),
            Column("Block", lambda row: block_name(row["repetition"])),
            Column("Status", "status"),
            Column("Why", _why),
        ),
        pd.concat([others[~planned], others[planned]]),
        closed=len(others) > 20,
    )
    count = f"Excluded: {len(others):,} of {format.count(len(launches), 'launch')}"
    why = f"{count}: {status_counts(map(_kind, others['repetition'], others['status']))}." if len(others) else ""
    return Section(
        "excluded",
        "Excluded launches",
        "Excluded launches are in no number, figure or verdict.",
        "No launch is excluded.",
        (table,),
        lead=f"{NEVER_DELETED} {why}".strip(),
    )


def _kind(repetition: int, status: str) -> str:
    name = UNCOUNTED.get(repetition)
    if status != Status.OK:
        return f"{name} ({status})" if name else status
    return name or f"{status} without a step time"


def _why(row: dict[Any, Any]) -> str:
    if row["status"] != Status.OK:
        error = row["error"] if isinstance(row["error"], str) else ""
        return format.one_line(error.partition("\n")[0])[:300] or "no error was recorded"
    return _WHY_NO_COUNT.get(row["repetition"], _NO_NUMBER)
