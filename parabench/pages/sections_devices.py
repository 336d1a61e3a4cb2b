"""Sections of memory over time, power, clocks and health."""

from __future__ import annotations

from typing import Any

import pandas as pd

from parabench.analysis import words
from parabench.analysis.evidence import Evidence
from parabench.analysis.instruments.device_time import (
    device_line,
    device_table,
    drawn_launches,
    host_table,
    throttled_at,
    unread,
)
from parabench.analysis.instruments.memory_time import launch_phases, memory_timeline
from parabench.pages.figures import Panel
from parabench.pages.figures_devices import MOST_LINES, device_panel, memory_panel
from parabench.pages.section import Section, Table

DASH = "–"
# Metric, heading, axis, unit and how many of the stored unit make one drawn.
OVER_TIME = (
    ("power_w", "Power", "power (W)", "W", 1.0),
    ("sm_clock_hz", "SM clock", "SM clock (MHz)", "MHz", 1e6),
    ("temperature_c", "Temperature", "temperature (°C)", "°C", 1.0),
)


def sections(seen: Evidence) -> list[Section]:
    """Those of a session, in the order in which a reader asks."""
    return [_memory(seen), _devices(seen)]


def _memory(seen: Evidence) -> Section:
    launches = drawn_launches(seen, "host_sample") or drawn_launches(seen, "device_sample")
    panels: list[Panel] = []
    crowded = False
    for launch_id in launches:
        timeline = memory_timeline(seen, launch_id)
        crowded |= timeline["place"].nunique() > MOST_LINES
        if len(timeline):
            panels.append(memory_panel(_label(seen, launch_id), timeline, launch_phases(seen, launch_id)))
    host = host_table(seen)
    table = Table(
        "The host during the timed steps",
        ("Case", "Used by other processes", "Cost of reading, of a core"),
        [
            (str(row["label"]), words.percent(row["other_share"]), words.percent(row["sampler_share"]))
            for row in host.to_dict("records")
        ],
    )
    return Section(
        "time-memory",
        "Memory over time",
        "Read from outside ten times a second, of the fastest cases the launch in the middle each: the resident set of "
        "each rank's process and, on GPUs, what is in use on each device and by each rank there. What a rank must hold "
        "by theory is in the section on the training state; peaks of the timed steps alone are above."
        + (f" The first {MOST_LINES} lines are drawn." if crowded else ""),
        panels,
        _why_no_memory(seen),
        (table,) if panels and len(host) else (),
    )


def _why_no_memory(seen: Evidence) -> str:
    if seen.good.empty:
        return "No launch ended well, so there is nothing to draw."
    return "Memory was not read over time: unknown, not zero. " + " ".join(f"{why}." for why in unread(seen))


def _devices(seen: Evidence) -> Section:
    table = device_table(seen)
    panels: list[Panel] = []
    for launch_id in drawn_launches(seen, "device_sample")[:1]:
        phases, held_down = launch_phases(seen, launch_id), throttled_at(seen, launch_id)
        for metric, title, axis, unit, divisor in OVER_TIME:
            lines = device_line(seen, launch_id, metric)
            if lines["value"].notna().any():
                lines = lines.assign(value=lines["value"] / divisor)
                marks = held_down if metric == "sm_clock_hz" else None
                panels.append(device_panel(f"{title} · {_label(seen, launch_id)}", lines, phases, axis, unit, marks))
    missing = unread(seen)
    lacking = f" Not read: {'; '.join(missing)}." if missing else ""
    return Section(
        "time-devices",
        "Power, clocks and temperature",
        "Read through NVML ten times a second; figures are of the fastest case's launch in the middle, the table is of "
        "all launches' timed steps. Energy is the growth of the device's own counter. A triangle marks a reading at "
        f"which something held the clocks down.{lacking}",
        panels,
        _why_no_devices(seen, missing),
        (_device_rows(table),) if len(table) else (),
    )


def _why_no_devices(seen: Evidence, missing: list[str]) -> str:
    if seen.good.empty:
        return "No launch ended well, so there is nothing to draw."
    if not (seen.good["device"] == "cuda").any():
        return "Ranks ran on CPU cores, so there was no GPU whose power, clocks and temperature could be read."
    return f"Devices were not read: {'; '.join(missing) or 'no reading was recorded'}."


def _device_rows(table: pd.DataFrame) -> Table:
    def row(of: dict[Any, Any]) -> tuple[str, ...]:
        low, high = of["sm_clock_low_hz"], of["sm_clock_high_hz"]
        clocks = f"{low / 1e6:,.0f}–{high / 1e6:,.0f}" if words.known(low) else DASH
        return (
            str(of["label"]),
            str(of["device"]),
            _said(of["power_w"]),
            _said(of["energy_j"]),
            clocks,
            _said(of["temperature_c"]),
            words.percent(of["gpu_utilization"]) if words.known(of["gpu_utilization"]) else DASH,
            _both(of["pcie_tx_bytes_per_s"], of["pcie_rx_bytes_per_s"]),
            _both(of["nvlink_tx_bytes_per_s"], of["nvlink_rx_bytes_per_s"]),
        )

    return Table(
        "Every device during the timed steps",
        (
            "Case", "Device", "Power, W", "Energy, J", "SM clock, MHz", "Hottest, °C", "Busy", "PCIe out and in, GB/s",
            "NVLink out and in, GB/s",
        ),
        [row(of) for of in table.to_dict("records")],
    )  # fmt: skip


def _said(value: float) -> str:
    return words.digits(value) if words.known(value) else DASH


def _both(sent: float, received: float) -> str:
    if not words.known(sent) or not words.known(received):
        return DASH
    return f"{words.digits(sent / 1e9)}, {words.digits(received / 1e9)}"


def _label(seen: Evidence, launch_id: int) -> str:
    return str(seen.launches.loc[seen.launches["launch_id"] == launch_id, "label"].iloc[0])
