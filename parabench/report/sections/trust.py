"""How far launches agree: their spread, their drift, what the order did, and which of them do not count."""

from __future__ import annotations

from typing import Any

import pandas as pd

from parabench.analysis.launch_number import STATISTIC
from parabench.analysis.session import SessionData
from parabench.analysis.tables import status_counts
from parabench.analysis.text import format
from parabench.analysis.warnings.launches import AA_SPREAD, DRIFTS, NOISY
from parabench.report.spec import Column, Section, table_of
from parabench.store.record import EXPLAIN_BLOCK, FIRST_BLOCK, REFERENCE_BLOCK, Status

# More rows than this nobody reads; the table of all launches has every one.
MOST_EXCLUDED = 100
NEVER_DELETED = "Outliers are never deleted: a launch that ended well counts, however far it is from the others."
_NO_COUNT = {
    REFERENCE_BLOCK: ("reference", "it is what other launches' training is verified against"),
    EXPLAIN_BLOCK: ("explaining", "in it NCCL told what it chooses, which takes time"),
}


def spread_section(seen: SessionData) -> Section:
    """How far the launches of a case are from one another."""
    on_cpu = (seen.valid["device"] == "cpu").any()
    return Section(
        "spread",
        "Launches of the same case",
        "Each launch's number against the step time of its case. The narrower, the smaller the differences between "
        "cases that can be told." + (_shaded() if on_cpu else ""),
        "No case has two launches that count, so how far launches agree is unknown.",
        draw="spread",
    )


def drift_section(seen: SessionData) -> Section:
    """Whether steps became slower within a launch."""
    devices = [device for device in DRIFTS if (seen.valid["device"] == device).any()] or list(DRIFTS)
    return Section(
        "drift",
        "Drift within a launch",
        "The last third of a launch's measured steps against its first third; above zero, steps became slower. "
        f"Beyond the dashed lines ({_limits(devices)}) a launch is marked, and warm-up was perhaps too short.",
        "No launch has nine measured steps or more, so drift within launches is unknown.",
        draw="drift",
    )


def order_section(seen: SessionData) -> Section:
    """Whether the machine drifted from launch to launch."""
    return Section(
        "order",
        "Drift of the machine",
        "The same launches in the order in which they ran: a trend, or a jump from block to block, is the "
        "machine's (clocks, temperature, other work), for every block has its cases in an order of its own. The "
        "lines are each block's median, of all its launches.",
        "No case has two launches that count, so nothing can be said about the order.",
        draw="order",
    )


def _shaded() -> str:
    spread, noisy = format.percent(AA_SPREAD["cpu"]), format.percent(NOISY["cpu"])
    return (
        f" Shaded is ±{spread}: by that much the {STATISTIC['cpu']} of launches of one case differed on a shared CPU. "
        f"A case whose launches differ by more than {noisy} has a finding."
    )


def _limits(devices: list[str]) -> str:
    return ", ".join(
        f"±{format.percent(DRIFTS[device])}" + (f" on {device}" if len(devices) > 1 else "") for device in devices
    )


def excluded_section(seen: SessionData) -> Section:
    """The launches that do not count, and why."""
    launches = seen.launches
    others = launches[~launches["launch_id"].isin(seen.valid["launch_id"])]
    own = others[others["block"] >= FIRST_BLOCK]
    # What went wrong is read before what is as planned.
    shown = pd.concat([own, others[others["block"] < FIRST_BLOCK]]).head(MOST_EXCLUDED)
    more = f"The first {len(shown)} of {len(others):,}; the table of launches under Data has every one."
    table = table_of(
        "Launches that do not count, and why",
        (
            Column("Case", "label"),
            Column("Block", lambda row: _block(row["block"])),
            Column("Status", "status"),
            Column("Why", _why),
        ),
        shown.to_dict("records"),
        closed=len(shown) > 20,
        note=more if len(others) > len(shown) else "",
        cases=tuple(map(str, shown["case_id"])),
    )
    count = (
        f"{format.count(len(others), 'launch')} of {len(launches):,} {'does' if len(others) == 1 else 'do'} not count"
    )
    what = f"{count}: {status_counts(map(_kind, others.to_dict('records')))}." if len(others) else ""
    return Section(
        "excluded",
        "Launches that do not count",
        "They are in no number, figure or verdict.",
        "Every launch counts.",
        (table,) if table.rows else (),
        lead=f"{NEVER_DELETED} {what}".strip(),
    )


def _kind(row: dict[Any, Any]) -> str:
    name, status = _NO_COUNT.get(row["block"], ("",))[0], str(row["status"])
    if name:
        return name if status == Status.OK else f"{name} ({status})"
    return f"{status} without a number" if status == Status.OK else status


def _block(block: int) -> str:
    return _NO_COUNT[block][0] if block in _NO_COUNT else str(block)


def _why(row: dict[Any, Any]) -> str:
    if row["status"] != Status.OK:
        error = row["error"] if isinstance(row["error"], str) else ""
        return format.one_line(error.partition("\n")[0])[:300] or "no error was recorded"
    if row["block"] in _NO_COUNT:
        return _NO_COUNT[row["block"]][1]
    return "it has no measured step of known length"
