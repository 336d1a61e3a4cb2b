"""Readings of samplers: what devices, hosts and the memory did while a launch ran, in seconds after it began."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.energy import COUNTER, joules_between, phases, too_short
from parabench.analysis.environment import nodes
from parabench.analysis.session import SessionData
from parabench.store.record import NOT_SUPPORTED, Phase

# Why clocks are not higher, as bits (nvmlClocksEventReason... in nvml.h). These are limits that something imposed. No
# limits are: nothing to do (1), clocks that somebody chose (2), a display's (0x100).
IDLE, POWER_CAP = 0x1, 0x4
THROTTLES = {
    0x8: "hardware slowdown",
    0x10: "sync boost with slower devices",
    0x20: "heat, by software",
    0x40: "heat, by hardware",
    0x80: "power brake",
    0x200: "board limit",
    0x400: "reliability",
}
MEANS = (
    "power_w", "gpu_utilization", "memory_utilization", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s",
    "nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s",
)  # fmt: skip
# Means by the sensor itself, which are unknown over a shorter time than it needs.
OF_SENSORS = ("power_w", "gpu_utilization", "memory_utilization")
# More figures than this are not compared.
MOST_LAUNCHES = 3
_DEVICE = ["case_id", "label", "node", "device"]


def windows(seen: SessionData) -> pd.DataFrame:
    """Return when the measured steps ran, for each sampled launch that counts; unknown times are NaN.

    The columns are `launch_id, case_id, label, begin_s, end_s`. Call it with `SessionData.once`.
    """
    sampled = {*seen.results.device_sample["launch_id"], *seen.results.host_sample["launch_id"]}
    table = seen.of_launch[seen.of_launch["launch_id"].isin(sampled)]
    times = [phases(seen.facts[at]).get(Phase.MEASURE, (math.nan, math.nan)) for at in table["launch_id"]]
    return table.assign(begin_s=[begin for begin, _ in times], end_s=[end for _, end in times]).reset_index(drop=True)


def measured(seen: SessionData, table: str) -> pd.DataFrame:
    """Return the readings during the measured steps, of `device_sample` or `host_sample`.

    They have `case_id` and `label`; values are numbers, NaN if they are unknown.
    """
    rows = seen.rows(table).merge(seen.once(windows), on="launch_id")
    rows = rows[(rows["t_s"] >= rows["begin_s"]) & (rows["t_s"] <= rows["end_s"])]
    return rows.assign(value=pd.to_numeric(rows["value"]))


def readings(seen: SessionData) -> pd.DataFrame:
    """Return one row per reading of a device during the measured steps.

    The columns are `launch_id, case_id, label, node, device, t_s` and each metric that was read of the whole device;
    NaN if it is unknown.
    """
    rows = measured(seen, "device_sample")
    rows = rows[rows["rank"].isna()]
    keys = ["launch_id", "case_id", "label", "node", "device", "t_s"]
    wide = rows.pivot_table(index=keys, columns="metric", values="value", aggfunc="last", dropna=False, observed=True)
    wide = wide.dropna(how="all").reindex(columns=[*dict.fromkeys([*wide.columns, *_NEEDED])])
    return wide.reset_index()


_NEEDED = ("foreign_processes", "foreign_bytes", "clock_event_reasons", "sm_clock_hz")


def drawn_launches(seen: SessionData, table: str) -> list[int]:
    """Return the median launch of each of the fastest configurations with readings in `table`, the fastest first."""
    read = seen.counted[seen.counted["launch_id"].isin(seen.rows(table)["launch_id"])]
    read = read.sort_values("step_s", kind="stable")
    launches = {case_id: own["launch_id"].iloc[(len(own) - 1) // 2] for case_id, own in read.groupby("case")}
    return [int(launches[case_id]) for case_id in seen.cases["case_id"] if case_id in launches][:MOST_LAUNCHES]


def device_line(seen: SessionData, launch_id: int, metric: str) -> pd.DataFrame:
    """Columns `node, device, place, t_s, value` of one metric of the whole device, ordered; NaN is a gap. `place` is
    the device in words."""
    rows = seen.results.device_sample
    rows = rows[(rows["launch_id"] == launch_id) & (rows["metric"] == metric) & rows["rank"].isna()]
    line = rows[["node", "device", "t_s"]].assign(place=_device_places(seen, rows), value=pd.to_numeric(rows["value"]))
    return line[["node", "device", "place", "t_s", "value"]]


def _device_places(seen: SessionData, rows: pd.DataFrame) -> list[str]:
    of_several = nodes.several_nodes(seen.session.environment)
    pairs = zip(rows["device"], rows["node"], strict=True)
    return [nodes.device_said(device, node, of_several) for device, node in pairs]


def memory_timeline(seen: SessionData, launch_id: int) -> pd.DataFrame:
    """Columns `place, t_s, bytes`, ordered: what a launch held, in seconds after it began.

    A place is `rank 0` (the resident set of its process), `device 0` (all that is in use there) or
    `rank 0 on device 0`; on several nodes a device is named with its own, `node 1, device 0`. Unknown is NaN: a gap.
    """
    of_several = nodes.several_nodes(seen.session.environment)
    host, device = seen.results.host_sample, seen.results.device_sample
    host = host[(host["launch_id"] == launch_id) & (host["metric"] == "rss_bytes")]
    device = device[(device["launch_id"] == launch_id) & (device["metric"] == "used_bytes")]
    on_host = host.assign(place=[f"rank {rank:.0f}" for rank in host["rank"]])
    on_device = device.assign(
        place=[
            ("" if pd.isna(rank) else f"rank {rank:.0f} on ") + nodes.device_said(index, node, of_several)
            for node, index, rank in zip(device["node"], device["device"], device["rank"], strict=True)
        ]
    )
    both = [rows[["place", "t_s", "value"]] for rows in (on_device, on_host) if len(rows)]
    if not both:
        return pd.DataFrame(columns=["place", "t_s", "bytes"])
    table = pd.concat(both).rename(columns={"value": "bytes"})
    return table.assign(bytes=pd.to_numeric(table["bytes"])).sort_values("t_s", kind="stable").reset_index(drop=True)


def throttled_at(seen: SessionData, launch_id: int) -> pd.DataFrame:
    """Columns `node, device, t_s, why`: the readings at which something held a device's clocks down, and what."""
    line = device_line(seen, launch_id, "clock_event_reasons").dropna()
    line = line[(line["value"].astype(int) & sum(THROTTLES)) > 0]
    whys = [", ".join(name for bit, name in THROTTLES.items() if int(mask) & bit) for mask in line["value"]]
    return line[["node", "device", "t_s"]].assign(why=whys)


def device_table(seen: SessionData) -> pd.DataFrame:
    """One row per case and device of what was read during the timed steps, over all launches that count.

    `case_id, label, node, device, place`, the means of MEANS, `sm_clock_low_hz`, `sm_clock_high_hz`, `temperature_c`
    (the highest), and `energy_j` (mean over launches). Unknown is NaN, as `too_short_said` says.
    """
    rows = readings(seen)
    rows = rows.reindex(columns=[*dict.fromkeys([*rows.columns, *MEANS, "temperature_c"])])
    rows.loc[rows["launch_id"].isin(_too_short(seen)), list(OF_SENSORS)] = math.nan
    groups = rows.groupby(_DEVICE, sort=False)
    table = groups[list(MEANS)].mean()
    table["sm_clock_low_hz"] = groups["sm_clock_hz"].min()
    table["sm_clock_high_hz"] = groups["sm_clock_hz"].max()
    table["temperature_c"] = groups["temperature_c"].max()
    table = table.join(_energy(seen)).reset_index()
    return seen.cases[["case_id"]].merge(table.assign(place=_device_places(seen, table)), on="case_id")


def _too_short(seen: SessionData) -> dict[int, str]:
    """Return why power, energy and utilization of launches are unknown: the sensors need longer measured steps."""
    table = seen.once(windows)
    whys = zip(table["launch_id"], map(too_short, table["begin_s"], table["end_s"]), strict=True)
    return {int(at): why for at, why in whys if why}


def too_short_said(seen: SessionData) -> str:
    """Return what is unknown of launches that were too short for the sensors; empty if there are none."""
    read = set(seen.rows("device_sample")["launch_id"])
    whys = [why for at, why in _too_short(seen).items() if at in read]
    more = f" (and {format.count(len(whys) - 1, 'launch')} alike)" if len(whys) > 1 else ""
    return f"power, energy and utilization of a launch: {whys[0]}{more}" if whys else ""


def _energy(seen: SessionData) -> pd.DataFrame:
    """Return `energy_j` by configuration and device: the growth of its counter in the measured steps."""
    rows = seen.rows("device_sample")
    rows = rows[(rows["metric"] == "energy_j") & rows["value"].notna()].merge(seen.once(windows), on="launch_id")
    found = []
    groups: Any = rows.groupby([*_DEVICE, "launch_id", "begin_s", "end_s"], sort=False, dropna=False)
    for (*device, _, begin_s, end_s), own in groups:
        joules, _ = joules_between(own, begin_s, end_s, COUNTER)
        found.append((*device, joules if not too_short(begin_s, end_s) else math.nan))
    return pd.DataFrame(found, columns=[*_DEVICE, "energy_j"]).groupby(_DEVICE).mean()


def host_table(seen: SessionData) -> pd.DataFrame:
    """One row per case: `case_id, label, other_share` (mean over launches of what other processes used of the host's
    CPU time during the timed steps), `node` (on which they used most, where there are several: the share is its own)
    and `sampler_share` (what reading cost of one core). Unknown is NaN."""
    rows = measured(seen, "host_sample")
    rows = rows[rows["metric"] == "other_cpu_share"]
    by_node = rows.groupby(["case_id", "node", "launch_id"])["value"].mean().groupby(["case_id", "node"]).mean()
    most = by_node.dropna().reset_index().sort_values("value", kind="stable").groupby("case_id").last()
    cost_s = pd.Series([_cost(seen, at) for at in seen.counted["launch_id"]], index=seen.counted.index, dtype=float)
    good = seen.of_launch.assign(sampler_share=cost_s / seen.counted["wall_s"])
    means = good.groupby(["case_id", "label"], sort=False)[["sampler_share"]].mean().reset_index()
    shares, node = (means["case_id"].map(most[name]).astype(float) for name in ("value", "node"))
    return seen.cases[["case_id"]].merge(means.assign(other_share=shares, node=node), on="case_id")


def unread(seen: SessionData) -> list[str]:
    """Why readings are missing, in words: of the sampler as a whole, and what devices do not have."""
    said: list[str] = []
    for at in seen.counted["launch_id"]:
        for sampler in nodes.samplers(seen.facts[at]).values():
            said += (sampler.get("unread") or {}).values()
    rows = seen.rows("device_sample")
    lacking = rows[rows["value"].isna() & rows["reason"].eq(NOT_SUPPORTED)]
    alike: dict[str, list[str]] = {}
    of_several = nodes.several_nodes(seen.session.environment)
    for (node, device), own in lacking.groupby(["node", "device"]):
        what = f"{', '.join(dict.fromkeys(own['metric']))} {NOT_SUPPORTED}"
        alike.setdefault(what, []).append(nodes.device_said(device, node, of_several))
    for what, places in alike.items():
        said.append(f"{format.listed(places, most=4)}: {what}")
    return list(dict.fromkeys(said))


def _cost(seen: SessionData, launch_id: int) -> float:
    """Return the CPU seconds of a launch's sampler on the node with the highest ones; NaN if a node lacks them."""
    costs = [sampler.get("cpu_s") for sampler in nodes.samplers(seen.facts[launch_id]).values()]
    return float(pd.Series(costs, dtype=float).max(skipna=False))
