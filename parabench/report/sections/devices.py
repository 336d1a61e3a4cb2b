"""Sections of hardware utilization, energy, and readings of devices over time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.efficiency import COUNTED, FORMULA, efficiency
from parabench.analysis.energy import POWER, phases
from parabench.analysis.session import SessionData
from parabench.analysis.step.device_time import (
    device_line,
    device_table,
    drawn_launch,
    memory_timeline,
    throttled_at,
    unread,
)
from parabench.machine import accelerator
from parabench.report.figures import FROM_ZERO, Panel, Trace, band, lay_out, listed, marks, plain, side_style
from parabench.report.spec import MARKED, WORDED, Column, Section, nothing_to_draw, table_of
from parabench.store.record import MIB, Phase
from parabench.store.results import records
from parabench.strategies import entry_of

# -- utilization and energy -------------------------------------------------------------------------------------------


def on_gpus(seen: SessionData) -> bool:
    """Return whether any case ran on accelerators."""
    return bool((seen.cases["device"] == accelerator.TYPE).any())


def usage_section(seen: SessionData) -> Section:
    """Return the section of the FLOP/s of each case, their share of the devices' peak, and the energy of a step."""
    table, title = seen.once(efficiency), "Hardware utilization and energy"
    if table.empty:
        return Section("usage", title, "", f"{seen.why_none}, so utilization is unknown.")
    units = " or ".join(table["unit"].unique())
    unit = units.removesuffix("s")
    columns = [MARKED, Column(f"{units.capitalize()}/s", "tokens_per_s", "rate")]
    if table["flops_per_s"].notna().any():
        factor, prefix = format.scaled(table["flops_per_s"].max())
        columns.append(Column(f"{prefix}FLOP/s", lambda row: row["flops_per_s"] / factor, "digits"))
    if table["mfu"].notna().any():
        columns.append(Column("MFU", lambda row: _share(row["mfu"]), WORDED))
    if table["joules_per_step"].notna().any():
        columns.append(Column("J per step", "joules_per_step", "digits"))
        columns.append(Column(f"mJ per {unit}", lambda row: row["joules_per_token"] * 1e3, "digits"))
    if len(columns) == 2:
        return Section("usage", title, "", " ".join(_sources(seen, table)) or "Neither FLOP/s nor energy is known.")
    return Section(
        "usage",
        title,
        "FLOP/s are the floating-point operations of forward and backward, divided by the step time. Energy is the sum "
        "of all devices, including idle time between steps.",
        tables=(table_of("Throughput, FLOP/s and energy of the configurations", columns, table, closed=False),),
        lead=" ".join(_usage_lead(table)),
        reading=" ".join(_sources(seen, table)),
    )


def _usage_lead(table: pd.DataFrame) -> Iterator[str]:
    """Yield the utilization of the fastest ranked case, and the ranked case with the lowest energy."""
    ranked = table[[entry_of(str(strategy)).ranked for strategy in table["strategy"]]]
    for best in records(ranked[ranked["flops_per_s"].notna()].head(1)):
        share = f", {_share(best['mfu'])} of its devices' peak" if format.known(best["mfu"]) else ""
        yield f"{best['label']} computes {format.flop_rate(best['flops_per_s'])}{share}."
    for least in records(ranked.dropna(subset="joules_per_token").nsmallest(1, "joules_per_token")):
        energy = f"{format.joules(least['joules_per_step'])} per step, {format.joules(least['joules_per_token'])}"
        yield f"Lowest energy: {least['label']}: {energy} per {least['unit'].removesuffix('s')}."


def _share(mfu: float) -> str | None:
    """Return the MFU with two digits, because a small model may use a thousandth of a large device."""
    return f"{format.digits(mfu * 100, 2)}%" if format.known(mfu) else None


def _sources(seen: SessionData, table: pd.DataFrame) -> Iterator[str]:
    """Yield the formulas and the sources of the numbers, and the reasons why numbers are unknown."""
    sources = set(table["flops_source"].dropna())
    if FORMULA in sources:
        yield (
            "Operations are by torchtitan's formula: per token 6 for each parameter (embeddings that are only looked "
            "up excepted) and 12 × layers × heads × head width × sequence length."
        )
    if COUNTED in sources:
        yield "Operations of other models are counted by torch's FlopCounterMode in the reference launch."
    if len(known := table.dropna(subset=["mfu"])):
        rates = map(format.flop_rate, known["peak_flops_per_s"] / known["devices"])
        peaks = [f"{rate} ({source})" for rate, source in zip(rates, known["peak_source"], strict=True)]
        yield f"MFU is the share of all devices' peak, without sparsity: {' or '.join(dict.fromkeys(peaks))} each."
    if (table["joules_source"] == POWER).any():
        yield "If a device has no energy counter, its power readings are integrated."
    names = {"FLOP/s": "flops", "MFU": "mfu"} | ({"Energy": "joules"} if on_gpus(seen) else {})
    numbers = {"flops": "flops_per_s", "mfu": "mfu", "joules": "joules_per_step"}
    for name, key in names.items():
        for why, group in table[table[numbers[key]].isna()].groupby(f"{key}_reason", sort=False):
            cases = "" if len(group) == len(table) else f" of {format.listed(group['label'], most=2)}"
            yield f"{name}{cases}: unknown: {why}."


# -- readings over time -----------------------------------------------------------------------------------------------

# Metric, title, axis, unit, and the stored units in one drawn unit.
OVER_TIME = (
    ("power_w", "Power", "power (W)", "W", 1.0),
    ("sm_clock_hz", "SM clock", "SM clock (MHz)", "MHz", 1e6),
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
_SAMPLED = f"Sampled ten times per second, in a watched loop once per second. At most {_MOST_LINES} lines are drawn."
_LAUNCH = "the median launch of the fastest configuration that was sampled"


def memory_section(seen: SessionData) -> Section:
    """Return the section of memory in use during a launch."""
    at, panels = drawn_launch(seen, "host_sample") or drawn_launch(seen, "device_sample"), []
    if at is not None and len(lines := memory_timeline(seen, at)):
        lines = lines.assign(value=lines["bytes"] / MIB)
        panels.append(_over_time(seen, at, "", lines, "memory in use (MiB)", "%{y:,.0f} MiB"))
    reasons = " ".join(f"{why}." for why in unread(seen))
    return Section(
        "time-memory",
        "Memory over time",
        f"Resident set of each rank and, on GPUs, memory in use per device and rank, in {_LAUNCH}.",
        nothing_to_draw(seen) or f"Memory was not read over time: unknown, not zero. {reasons}",
        panels=panels,
        reading=_SAMPLED,
    )


def devices_section(seen: SessionData) -> Section | None:
    """Return the section of power, clocks and temperature; None if no case ran on GPUs."""
    if not on_gpus(seen):
        return None
    at, missing = drawn_launch(seen, "device_sample"), "; ".join(unread(seen))
    table = table_of(
        "The devices during the measured steps of all launches",
        (
            Column("Configuration", "label"),
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
        closed=False,
    )
    return Section(
        "time-devices",
        "Power, clocks and temperature",
        f"NVML readings in {_LAUNCH}. A triangle marks throttling; hover for the reason.",
        nothing_to_draw(seen) or f"Devices were not read: {missing or 'no reading was recorded'}.",
        (table,),
        panels=[] if at is None else list(_readings(seen, at)),
        reading=f"{_SAMPLED} Energy is the increase of the device's own counter."
        + f" Not read: {missing}." * bool(missing),
    )


def _readings(seen: SessionData, at: int) -> Iterator[Panel]:
    """Yield a figure of a launch for each metric that was read."""
    for metric, title, axis, unit, divisor in OVER_TIME:
        lines = device_line(seen, at, metric)
        if lines["value"].isna().all():
            continue
        lines = lines.assign(value=lines["value"] / divisor)
        panel = _over_time(seen, at, f"{title} · ", lines, axis, f"%{{y:,.4~g}} {unit}")
        throttled = throttled_at(seen, at).merge(lines, on=["node", "device", "t_s"])
        if metric == "sm_clock_hz" and len(throttled):
            marker = {"symbol": "triangle-down", "size": 9, "color": "#D55E00"}
            hover = {"hovertemplate": "%{x:.2f} s: throttled by %{hovertext}<extra></extra>"}
            places = throttled["t_s"], throttled["value"]
            panel.figure["data"].append(marks(*places, "throttled", list(throttled["why"]), marker, **hover))
        yield panel


def _clocks(row: dict[Any, Any]) -> str | None:
    low, high = row["sm_clock_low_hz"], row["sm_clock_high_hz"]
    return f"{low / 1e6:,.0f}–{high / 1e6:,.0f}" if format.known(low) else None


def _both(row: dict[Any, Any], link: str) -> str | None:
    rates = [row[f"{link}_{way}_bytes_per_s"] for way in ("tx", "rx")]
    return ", ".join(format.digits(rate / 1e9) for rate in rates) if all(map(format.known, rates)) else None


def _over_time(seen: SessionData, launch_id: int, title: str, lines: pd.DataFrame, axis: str, text: str) -> Panel:
    """Return the figure of a launch and its phases. `lines` has `t_s`, `value`, and the device or rank as `place`."""
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
    figure = lay_out(
        traces,
        "seconds after the launch began",
        axis,
        showlegend=True,
        shapes=[band(begin_s, end_s, color) for color, _, begin_s, end_s in shaded],
        yaxis=FROM_ZERO,
    )
    return Panel(f"{title}{launch['label']}", figure, height, case=str(launch["case"]))


def _thinned(line: pd.DataFrame) -> pd.DataFrame:
    """Return the lowest and highest points of the stretches of a line, and its gaps; all points of a short line."""
    if len(line) <= _MOST_POINTS:
        return line
    line = line.reset_index(drop=True)
    stretch = pd.Series(range(len(line))) * (_MOST_POINTS // 2) // len(line)
    known = line.dropna(subset=["value"]).groupby(stretch)["value"]
    gaps = line.index[line["value"].isna()].to_series().groupby(stretch).first()
    return line.loc[sorted({0, len(line) - 1, *known.idxmin(), *known.idxmax(), *gaps})]
