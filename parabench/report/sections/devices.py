"""Sections of memory over time, energy, power, clocks and health."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.energy import phases
from parabench.analysis.environment.nodes import several_nodes
from parabench.analysis.session import SessionData
from parabench.analysis.step.device_time import (
    MOST_LAUNCHES,
    device_line,
    device_table,
    drawn_launches,
    host_table,
    memory_timeline,
    throttled_at,
    too_short_said,
    unread,
)
from parabench.analysis.warnings.health import findings
from parabench.report.figures.devices import MOST_LINES, device_panel, memory_panel
from parabench.report.figures.figures import Panel
from parabench.report.sections.usage import on_gpus
from parabench.report.spec import DASH, WORDED, Column, Section, Table, case_table

# More findings than these stand behind a heading.
_MOST_OPEN = 8
# Metric, heading, axis, unit and how many of the stored unit make one drawn.
OVER_TIME = (
    ("power_w", "Power", "power (W)", "W", 1.0),
    ("sm_clock_hz", "SM clock", "SM clock (MHz)", "MHz", 1e6),
    ("temperature_c", "Temperature", "temperature (°C)", "°C", 1.0),
)


def memory_section(seen: SessionData) -> Section:
    """Memory in use from a launch's begin to its end."""
    launches = drawn_launches(seen, "host_sample") or drawn_launches(seen, "device_sample")
    panels: list[Panel] = []
    crowded = False
    for launch_id in launches:
        timeline = memory_timeline(seen, launch_id)
        crowded |= timeline["place"].nunique() > MOST_LINES
        if len(timeline):
            case_id, label = _case(seen, launch_id)
            panels.append(replace(memory_panel(label, timeline, phases(seen.facts[launch_id])), case=case_id))
    return Section(
        "time-memory",
        "Memory over time",
        "Resident set of each rank and, on GPUs, memory in use per device and rank, sampled ten times a second; of a "
        "watched loop once a second.",
        _why_no_memory(seen),
        panels=panels,
        reading=f"Drawn is the median launch of each of the {MOST_LAUNCHES} fastest cases that were sampled. Peaks of "
        "the timed steps alone, and the training state by formula, are above."
        + (f" The first {MOST_LINES} lines are drawn." if crowded else ""),
    )


def _why_no_memory(seen: SessionData) -> str:
    if seen.counted.empty:
        return f"{seen.why_none}, so there is nothing to draw."
    return "Memory was not read over time: unknown, not zero. " + " ".join(f"{why}." for why in unread(seen))


def devices_section(seen: SessionData) -> Section | None:
    """Power, clocks and temperature; only where something ran on GPUs."""
    if not on_gpus(seen):
        return None
    table = device_table(seen)
    panels: list[Panel] = []
    crowded = False
    for launch_id in drawn_launches(seen, "device_sample"):
        ran, held_down = phases(seen.facts[launch_id]), throttled_at(seen, launch_id)
        case_id, label = _case(seen, launch_id)
        read = {metric: device_line(seen, launch_id, metric) for metric, *_ in OVER_TIME}
        # A device has one colour in all figures of a launch: they have the same order of devices.
        many = any(lines["place"].nunique() > MOST_LINES for lines in read.values())
        crowded |= many
        for metric, title, axis, unit, divisor in OVER_TIME:
            lines = read[metric]
            if lines["value"].notna().any():
                lines = _first(lines, held_down) if many else lines
                lines = lines.assign(value=lines["value"] / divisor)
                marks = held_down if metric == "sm_clock_hz" else None
                panel = device_panel(f"{title} · {label}", lines, ran, axis, unit, marks)
                panels.append(replace(panel, case=case_id))
    missing = [*unread(seen), *filter(None, [too_short_said(seen)])]
    lacking = f" Not read: {'; '.join(missing)}." if missing else ""
    return Section(
        "time-devices",
        "Power, clocks and temperature",
        "NVML readings, ten times a second; of a watched loop once a second. A triangle marks throttling; hover for "
        "the reason.",
        _why_no_devices(seen, missing),
        (_device_rows(table),) if len(table) else (),
        panels=panels,
        reading=f"Figures show the median launch of each of the {MOST_LAUNCHES} fastest cases that were read; the "
        "table is over all launches' timed steps. Energy is the increase of the device's own counter."
        + (f" {MOST_LINES} devices are drawn, throttled ones first." if crowded else "")
        + lacking,
    )


def _first(lines: pd.DataFrame, held_down: pd.DataFrame) -> pd.DataFrame:
    """The lines, those of devices that were held down before the others."""
    of_line, of_held = (pd.MultiIndex.from_frame(table[["node", "device"]]) for table in (lines, held_down))
    held = of_line.isin(of_held)
    return pd.concat([lines[held], lines[~held]])


def _why_no_devices(seen: SessionData, missing: list[str]) -> str:
    if seen.counted.empty:
        return f"{seen.why_none}, so there is nothing to draw."
    return f"Devices were not read: {'; '.join(missing) or 'no reading was recorded'}."


def host_section(seen: SessionData) -> Section | None:
    """Only where the host was read."""
    host = host_table(seen)
    if host["other_share"].isna().all():
        return None
    most = host.iloc[int(host["other_share"].argmax())]
    of_several = several_nodes(seen.session.environment)
    whose = f"node {most['node']:.0f}'s" if of_several else "the host's"
    on_node = (Column("On", lambda row: f"node {row['node']:.0f}" if format.known(row["node"]) else DASH, WORDED),)
    return Section(
        "host",
        "Host CPU during the timed steps",
        "CPU time that other processes used, as a share of all cores (mean over launches).",
        "",
        (
            case_table(
                "CPU time of other processes",
                (
                    Column("Case", "label"),
                    Column("Other processes", "other_share", "percent"),
                    *(on_node if of_several else ()),
                    Column("Sampling, of a core", "sampler_share", "percent"),
                ),
                host,
            ),
        ),
        lead=f"Other processes used up to {format.percent(most['other_share'])} of {whose} CPU time ({most['label']}).",
        reading="Other processes are all but the driver and the ranks. The cost of sampling is of one core."
        + (" Of several nodes, the one with the highest share is listed." if of_several else "")
        + ("" if on_gpus(seen) else " Ranks ran on CPU cores, so no GPU was read."),
    )  # fmt: skip


def health_section(seen: SessionData) -> Section | None:
    """Warnings about devices and host; only where one of them was read."""
    if seen.rows("device_sample").empty and seen.rows("host_sample").empty:
        return None
    labels = seen.labels
    place = {case_id: at for at, case_id in enumerate(labels)}
    found = sorted(seen.once(findings), key=lambda each: place.get(each.case_id or "", -1))
    rows = [(each.case_id or "", each.code.replace("_", " "), each.message) for each in found]
    table = pd.DataFrame(rows, columns=["case_id", "code", "message"])
    columns = (
        Column("Case", lambda row: labels.get(row["case_id"], "all")),
        Column("Warning", lambda row: row["code"].replace(" ", "\u00a0")),
        Column("Observed", lambda row: row["message"].removeprefix(f"{labels.get(row['case_id'])}: ")),
    )
    counts = [
        str(code) + f" in {format.count(own['case_id'].nunique(), 'case')}" * bool(own["case_id"].any())
        for code, own in table.groupby("code", sort=False)
    ]
    return Section(
        "health",
        "Health",
        "Advice on each is under Trust.",
        "No problems found: no other process on a device, no throttling, no memory errors, no busy host, as far as "
        "they were read.",
        (case_table("Health warnings", columns, table, closed=len(table) > _MOST_OPEN),) if found else (),
        lead=f"Found: {', '.join(counts)}." if counts else "",
    )


def _device_rows(table: pd.DataFrame) -> Table:
    return case_table(
        "The devices during the timed steps",
        (
            Column("Case", "label"),
            Column("Device", lambda row: row["place"].removeprefix("device "), WORDED),
            Column("Power, W", "power_w", "digits"),
            Column("Energy, J", "energy_j", "digits"),
            Column("SM clock, MHz", _clocks, WORDED),
            Column("Hottest, °C", "temperature_c", "digits"),
            Column("Busy", "gpu_utilization", "percent"),
            Column("PCIe out and in, GB/s", lambda row: _both(row, "pcie"), WORDED),
            Column("NVLink out and in, GB/s", lambda row: _both(row, "nvlink"), WORDED),
        ),
        table,
    )


def _clocks(row: dict[Any, Any]) -> str:
    low, high = row["sm_clock_low_hz"], row["sm_clock_high_hz"]
    return f"{low / 1e6:,.0f}–{high / 1e6:,.0f}" if format.known(low) else DASH


def _both(row: dict[Any, Any], link: str) -> str:
    sent, received = row[f"{link}_tx_bytes_per_s"], row[f"{link}_rx_bytes_per_s"]
    if not format.known(sent) or not format.known(received):
        return DASH
    return f"{format.digits(sent / 1e9)}, {format.digits(received / 1e9)}"


def _case(seen: SessionData, launch_id: int) -> tuple[str, str]:
    """The id and the label of a launch's case."""
    own = seen.numbers[seen.numbers["launch_id"] == launch_id].iloc[0]
    return str(own["case"]), str(own["label"])
