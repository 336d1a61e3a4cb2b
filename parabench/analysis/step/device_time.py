"""Select and summarize the sampled readings of devices, hosts and memory.

Times are in seconds after the launch began. Unknown values are NaN.
"""

from __future__ import annotations

import math

import pandas as pd

from parabench.analysis import format
from parabench.analysis.energy import joules_between, phases, too_short
from parabench.analysis.environment import nodes
from parabench.analysis.session import SessionData
from parabench.store.record import NOT_SUPPORTED, Phase

# Bits of `clock_event_reasons` (nvmlClocksEventReason... in nvml.h).
IDLE, POWER_CAP = 0x1, 0x4
# The bits for limits. Application clocks (0x2) and a display's clocks (0x100) are not limits.
THROTTLES = {
    0x8: "hardware slowdown",
    0x10: "sync boost with slower devices",
    0x20: "heat, by software",
    0x40: "heat, by hardware",
    0x80: "power brake",
    0x200: "board limit",
    0x400: "reliability",
}
# Means that the sensor computes. They are unknown for times shorter than it needs.
_OF_SENSORS = ["power_w", "gpu_utilization", "memory_utilization"]
_MEANS = [
    *_OF_SENSORS, "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s", "nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s",
]  # fmt: skip
# Columns of `readings` that are always there.
_READ = [*_MEANS, "temperature_c", "foreign_processes", "foreign_bytes", "clock_event_reasons", "sm_clock_hz"]
_DEVICE = ["case_id", "label", "node", "device"]


def windows(seen: SessionData) -> pd.DataFrame:
    """Return when the measured steps ran: one row per launch that counts and has readings.

    The columns are `launch_id, case_id, label, begin_s, end_s`. Call it through `SessionData.once`.
    """
    sampled = {*seen.results.device_sample["launch_id"], *seen.results.host_sample["launch_id"]}
    table = seen.of_launch[seen.of_launch["launch_id"].isin(sampled)].reset_index(drop=True)
    times = [phases(seen.facts[at]).get(Phase.MEASURE, (math.nan, math.nan)) for at in table["launch_id"]]
    return table.join(pd.DataFrame(times, columns=["begin_s", "end_s"], dtype=float))


def measured(seen: SessionData, table: str) -> pd.DataFrame:
    """Return the rows of a table (`device_sample` or `host_sample`) that were read during the measured steps.

    The columns of `windows` are added.
    """
    rows = seen.rows(table).merge(seen.once(windows), on="launch_id")
    rows = rows[rows["t_s"].between(rows["begin_s"], rows["end_s"])]
    return rows.assign(value=pd.to_numeric(rows["value"]))


def readings(seen: SessionData) -> pd.DataFrame:
    """Return one row per reading of a whole device during the measured steps.

    The columns are `launch_id, case_id, label, node, device, t_s`, and one for each metric.
    """
    rows = measured(seen, "device_sample")
    keys = ["launch_id", *_DEVICE, "t_s"]
    if rows.empty:
        return pd.DataFrame(columns=[*keys, *_READ])
    wide = rows[rows["rank"].isna()].pivot_table(
        index=keys, columns="metric", values="value", aggfunc="last", dropna=False, observed=True
    )
    return wide.dropna(how="all").reindex(columns=[*dict.fromkeys([*wide.columns, *_READ])]).reset_index()


def drawn_launch(seen: SessionData, table: str) -> int | None:
    """Return the id of the launch that figures show: the median launch of the fastest case with rows in `table`.

    It is None without readings.
    """
    read = seen.counted[seen.counted["launch_id"].isin(seen.rows(table)["launch_id"])]
    case = next((case_id for case_id in seen.cases["case_id"] if case_id in set(read["case"])), None)
    launches = read[read["case"] == case].sort_values("step_s", kind="stable")["launch_id"]
    return int(launches.iloc[(len(launches) - 1) // 2]) if len(launches) else None


def device_line(seen: SessionData, launch_id: int, metric: str) -> pd.DataFrame:
    """Return the readings of one metric of whole devices: `node, device, place, t_s, value`.

    `place` is text such as 'device 3' or 'node 1, device 3'.
    """
    rows = seen.results.device_sample
    rows = rows[(rows["launch_id"] == launch_id) & (rows["metric"] == metric) & rows["rank"].isna()]
    return rows[["node", "device", "t_s"]].assign(place=_places(seen, rows), value=pd.to_numeric(rows["value"]))


def _places(seen: SessionData, rows: pd.DataFrame) -> list[str]:
    """Return the device of each row as text, such as 'node 1, device 3'."""
    several = nodes.several_nodes(seen.session.environment)
    return [nodes.device_text(*place, several) for place in zip(rows["device"], rows["node"], strict=True)]


def memory_timeline(seen: SessionData, launch_id: int) -> pd.DataFrame:
    """Return the memory readings of a launch, sorted by time: `place, t_s, bytes`. `place` is one of:

    - `rank 0`: the resident set of the rank's process
    - `device 0` (with several nodes `node 1, device 0`): all memory in use on the device
    - `rank 0 on device 0`: the memory of the rank on the device
    """
    host, device = (
        rows[(rows["launch_id"] == launch_id) & (rows["metric"] == metric)]
        for rows, metric in ((seen.results.host_sample, "rss_bytes"), (seen.results.device_sample, "used_bytes"))
    )
    on_host = [f"rank {rank:.0f}" for rank in host["rank"]]
    on_device = [
        place if pd.isna(rank) else f"rank {rank:.0f} on {place}"
        for place, rank in zip(_places(seen, device), device["rank"], strict=True)
    ]
    columns = {name: [*device[name], *host[name]] for name in ("t_s", "value")}
    table = pd.DataFrame({"place": [*on_device, *on_host], **columns}).rename(columns={"value": "bytes"})
    return table.astype({"t_s": float, "bytes": float}).sort_values("t_s", kind="stable", ignore_index=True)


def throttled_at(seen: SessionData, launch_id: int) -> pd.DataFrame:
    """Return the readings that report limited clocks: `node, device, t_s, why`, where `why` lists the limits."""
    line = device_line(seen, launch_id, "clock_event_reasons").dropna()
    line = line[(line["value"].astype(int) & sum(THROTTLES)) > 0]
    whys = [", ".join(name for bit, name in THROTTLES.items() if int(mask) & bit) for mask in line["value"]]
    return line[["node", "device", "t_s"]].assign(why=whys)


def device_table(seen: SessionData) -> pd.DataFrame:
    """Return one row per case and device that summarizes its readings during the measured steps of all launches.

    The columns are `case_id, label, node, device, place`, the means of _MEANS, `sm_clock_low_hz`, `sm_clock_high_hz`,
    `temperature_c` (the highest), and `energy_j` (the mean over launches).
    """
    rows = readings(seen)
    rows.loc[rows["launch_id"].isin(_too_short(seen)), _OF_SENSORS] = math.nan
    groups = rows.groupby(_DEVICE, sort=False)
    lowest, highest = groups["sm_clock_hz"].min(), groups[["sm_clock_hz", "temperature_c"]].max()
    table = groups[_MEANS].mean().assign(sm_clock_low_hz=lowest, sm_clock_high_hz=highest["sm_clock_hz"])
    table["temperature_c"] = highest["temperature_c"]
    energy = seen.rows("device_sample").merge(seen.once(windows), on="launch_id")
    energy = energy[energy["rank"].isna() & (energy["metric"] == "energy_j")]
    joules = [
        (*counter[_DEVICE].iloc[0], joules_between(counter, *counter[["begin_s", "end_s"]].iloc[0])[0])
        for _, counter in energy.groupby([*_DEVICE, "launch_id"], sort=False)
    ]
    energy_j = pd.DataFrame(joules, columns=[*_DEVICE, "energy_j"]).groupby(_DEVICE).mean()
    table = table.join(energy_j).reset_index()
    return seen.cases[["case_id"]].merge(table.assign(place=_places(seen, table)), on="case_id")


def _too_short(seen: SessionData) -> dict[int, str]:
    """Return {launch id: reason} for launches whose measured steps are too short for power and utilization."""
    table = seen.once(windows)
    whys = zip(table["launch_id"], map(too_short, table["begin_s"], table["end_s"]), strict=True)
    return {int(at): why for at, why in whys if why}


def unread(seen: SessionData) -> list[str]:
    """Return the reasons of missing readings: errors, metrics that devices lack, and too short launches."""
    reasons: list[str] = []
    for at in seen.counted["launch_id"]:
        for sampler in nodes.samplers(seen.facts[at]).values():
            reasons += (sampler.get("unread") or {}).values()
    rows = seen.rows("device_sample")
    lacking = rows[rows["value"].isna() & rows["reason"].eq(NOT_SUPPORTED)]
    by_place = lacking.assign(place=_places(seen, lacking)).groupby("place")["metric"]
    metrics = by_place.agg(lambda names: ", ".join(dict.fromkeys(names)))
    for names, places in metrics.groupby(metrics):
        reasons.append(f"{format.listed(places.index, most=4)}: {names} {NOT_SUPPORTED}")
    short = [why for at, why in _too_short(seen).items() if at in set(rows["launch_id"])]
    more = f" (and {format.count(len(short) - 1, 'launch')} alike)" * (len(short) > 1)
    reasons += [f"power, energy and utilization of a launch: {why}{more}" for why in short[:1]]
    return list(dict.fromkeys(reasons))
