"""Sections of memory over time, power, clocks, temperature and other processes."""

from __future__ import annotations

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
    unread,
)
from parabench.report.figures.figures import Panel, Trace, lay_out, listed, marks, plain
from parabench.report.palette import side_style
from parabench.report.sections.usage import on_gpus
from parabench.report.spec import WORDED, Column, Section, nothing_counted, table_of
from parabench.store.record import MIB, Phase

# Metric, title, axis, unit, and the stored units in one drawn unit.
OVER_TIME = (
    ("power_w", "Power", "power (W)", "W", 1.0),
    ("sm_clock_hz", "SM clock", "SM clock (MHz)", "MHz", 1e6),
    ("temperature_c", "Temperature", "temperature (°C)", "°C", 1.0),
)
# The most lines that can be distinguished, by color and dash, and two points per pixel of a wide page.
_MOST_LINES, _MOST_POINTS = 16, 400
# The phases of a launch, visible on light and dark pages.
_SHADE = {
    Phase.WARMUP: ("rgba(128,128,128,0.10)", "warm-up"),
    Phase.MEASURE: ("rgba(0,114,178,0.13)", "measured"),
    Phase.INSTRUMENT: ("rgba(230,159,0,0.16)", "instrumented"),
    Phase.PROFILE: ("rgba(204,121,167,0.16)", "profiled"),
}


def memory_section(seen: SessionData) -> Section:
    """Return the section of memory in use during a launch."""
    lines = {
        at: memory_timeline(seen, at)
        for at in drawn_launches(seen, "host_sample") or drawn_launches(seen, "device_sample")
    }
    reasons = " ".join(f"{why}." for why in unread(seen))
    return Section(
        "time-memory",
        "Memory over time",
        "Resident set of each rank and, on GPUs, memory in use per device and rank, sampled ten times a second, "
        "in a watched loop once a second.",
        nothing_counted(seen) or f"Memory was not read over time: unknown, not zero. {reasons}",
        panels=[
            _over_time(seen, at, "", own.assign(value=own["bytes"] / MIB), "memory in use (MiB)", "%{y:,.0f} MiB")
            for at, own in lines.items()
            if len(own)
        ],
        reading=f"Drawn is the median launch of each of the {MOST_LAUNCHES} fastest cases that were sampled, with up "
        f"to {_MOST_LINES} lines. Peaks of the measured steps alone, and the model states by formula, are above.",
    )


def devices_section(seen: SessionData) -> Section | None:
    """Return the section of power, clocks and temperature; None if no case ran on GPUs."""
    if not on_gpus(seen):
        return None
    panels: list[Panel] = []
    for launch_id in drawn_launches(seen, "device_sample"):
        for metric, title, axis, unit, divisor in OVER_TIME:
            lines = device_line(seen, launch_id, metric)
            if lines["value"].isna().all():
                continue
            lines = lines.assign(value=lines["value"] / divisor)
            panel = _over_time(seen, launch_id, f"{title} · ", lines, axis, f"%{{y:,.4~g}} {unit}")
            throttled = throttled_at(seen, launch_id).merge(lines, on=["node", "device", "t_s"])
            if metric == "sm_clock_hz" and len(throttled):
                marker = {"symbol": "triangle-down", "size": 9, "color": "#D55E00"}
                hover = {"hovertemplate": "%{x:.2f} s: throttled by %{hovertext}<extra></extra>"}
                at = throttled["t_s"], listed(throttled["value"])
                panel.figure["data"].append(marks(*at, "throttled", list(throttled["why"]), marker, **hover))
            panels.append(panel)
    missing = "; ".join(unread(seen))
    table = table_of(
        "The devices during the measured steps",
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
        device_table(seen),
    )
    return Section(
        "time-devices",
        "Power, clocks and temperature",
        "NVML readings, ten times a second, in a watched loop once a second. A triangle marks throttling; hover for "
        "the reason.",
        nothing_counted(seen) or f"Devices were not read: {missing or 'no reading was recorded'}.",
        (table,),
        panels=panels,
        reading=f"Figures show the median launch of each of the {MOST_LAUNCHES} fastest cases that were read, with up "
        f"to {_MOST_LINES} devices; the table is over all launches' measured steps. Energy is the increase of the "
        "device's own counter." + f" Not read: {missing}." * bool(missing),
    )


def _clocks(row: dict[Any, Any]) -> str | None:
    low, high = row["sm_clock_low_hz"], row["sm_clock_high_hz"]
    return f"{low / 1e6:,.0f}–{high / 1e6:,.0f}" if format.known(low) else None


def _both(row: dict[Any, Any], link: str) -> str | None:
    rates = [row[f"{link}_{way}_bytes_per_s"] for way in ("tx", "rx")]
    return ", ".join(format.digits(rate / 1e9) for rate in rates) if all(map(format.known, rates)) else None


def _over_time(seen: SessionData, launch_id: int, title: str, lines: pd.DataFrame, axis: str, text: str) -> Panel:
    """Return the figure of a launch with one line per place of `lines` (`place, t_s, value`), and its phases."""
    launch = seen.numbers[seen.numbers["launch_id"] == launch_id].iloc[0]
    traces: list[Trace] = []
    for i, name in enumerate(lines["place"].unique()[:_MOST_LINES]):
        points = _thinned(lines[lines["place"] == name])
        traces.append({
            "type": "scatter", "mode": "lines", "name": plain(name), "connectgaps": False,
            "x": points["t_s"].round(3).to_list(), "y": listed(points["value"].round(3)),
            "line": {"color": side_style(i).color, "width": 2, "dash": "solid" if i < _MOST_LINES / 2 else "dash"},
            "hovertemplate": f"%{{x:.2f}} s: {text}<extra>%{{fullData.name}}</extra>",
        })  # fmt: skip
    shaded = [(*_SHADE[Phase(name)], *ends) for name, ends in phases(seen.facts[launch_id]).items() if name in _SHADE]
    height = 260 + 20 * (len(traces) + len(shaded))
    # Phases are named in the legend, because short ones have no room for a name in the figure.
    traces += [
        {
            "type": "scatter", "mode": "markers", "name": meaning, "x": [None], "y": [None], "hoverinfo": "skip",
            "marker": {"symbol": "square", "size": 13, "color": color, "line": {"width": 1, "color": "#888888"}},
        }
        for color, meaning, *_ in shaded
    ]  # fmt: skip
    area = {"type": "rect", "xref": "x", "y0": 0, "y1": 1, "yref": "y domain", "line": {"width": 0}, "layer": "below"}
    figure = lay_out(
        traces,
        "seconds after the launch began",
        axis,
        showlegend=True,
        shapes=[area | {"x0": begin_s, "x1": end_s, "fillcolor": color} for color, _, begin_s, end_s in shaded],
        # Only zero degrees Celsius has no meaning.
        yaxis={"rangemode": "normal" if axis.endswith("(°C)") else "tozero"},
    )
    return Panel(f"{title}{launch['label']}", figure, height, case=str(launch["case"]))


def _thinned(line: pd.DataFrame) -> pd.DataFrame:
    """Return at most _MOST_POINTS points of a line: the lowest and the highest of each stretch, and the gaps."""
    if len(line) <= _MOST_POINTS:
        return line
    line = line.reset_index(drop=True)
    stretch = pd.Series(range(len(line))) * (_MOST_POINTS // 2) // len(line)
    known = line.dropna(subset=["value"]).groupby(stretch)["value"]
    gaps = line.index[line["value"].isna()].to_series().groupby(stretch).first()
    return line.loc[sorted({0, len(line) - 1, *known.idxmin(), *known.idxmax(), *gaps})]


def host_section(seen: SessionData) -> Section | None:
    """Return the section of CPU time of other processes; None if the host was not read."""
    host = host_table(seen)
    if host["other_share"].isna().all():
        return None
    most = host.iloc[int(host["other_share"].argmax())]
    several = several_nodes(seen.session.environment)
    whose = f"node {most['node']:.0f}'s" if several else "the host's"
    on_node = Column("On", lambda row: f"node {row['node']:.0f}" if format.known(row["node"]) else None, WORDED)
    table = table_of(
        "CPU time of other processes",
        (
            Column("Case", "label"),
            Column("Other processes", "other_share", "percent"),
            *([on_node] if several else []),
            Column("Sampling, of a core", "sampler_share", "percent"),
        ),
        host,
    )
    return Section(
        "host",
        "Host CPU during the measured steps",
        "CPU time that other processes used, as a share of all cores (mean over launches).",
        "",
        (table,),
        lead=f"Other processes used up to {format.percent(most['other_share'])} of {whose} CPU time ({most['label']}).",
        reading="Other processes are all but the driver and the ranks. The cost of sampling is of one core."
        + " The node with the highest share is listed." * several
        + " Ranks ran on CPU cores, so no GPU was read." * (not on_gpus(seen)),
    )
