"""What devices did while cases were timed, one row per case and device; and which launches are worth drawing."""

from __future__ import annotations

import numpy as np
import pandas as pd

from parabench.analysis.energy import moves_too_few, too_short
from parabench.analysis.environment import nodes
from parabench.analysis.session import SessionData
from parabench.analysis.step.windows import measured, windows
from parabench.analysis.text import format
from parabench.analysis.warnings.health import THROTTLES, readings
from parabench.store.record import NOT_SUPPORTED

MEANS = (
    "power_w", "gpu_utilization", "memory_utilization", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s",
    "nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s",
)  # fmt: skip
# Of these a sensor's own mean is read: of a time shorter than it needs they are unknown.
OF_SENSORS = ("power_w", "gpu_utilization", "memory_utilization")
# More of them than this are a wall, not a figure.
MOST_LAUNCHES = 3


def drawn_launches(seen: SessionData, table: str) -> list[int]:
    """Of the fastest cases that were read by a sampler (`table`), the launch in the middle each, fastest case first."""
    read = seen.counted[seen.counted["launch_id"].isin(seen.rows(table)["launch_id"])]
    known = set(read["case"])
    fastest = [case_id for case_id in seen.cases["case_id"] if case_id in known][:MOST_LAUNCHES]
    chosen = []
    for case_id in fastest:
        ordered = read[read["case"] == case_id].sort_values("step_s", kind="stable")
        chosen.append(int(ordered["launch_id"].iloc[(len(ordered) - 1) // 2]))
    return chosen


def device_line(seen: SessionData, launch_id: int, metric: str) -> pd.DataFrame:
    """Columns `node, device, place, t_s, value` of one metric of the whole device, ordered; NaN is a gap. `place` is
    the device in words."""
    rows = seen.results.device_sample
    rows = rows[(rows["launch_id"] == launch_id) & (rows["metric"] == metric) & rows["rank"].isna()]
    line = rows[["node", "device", "t_s"]].assign(place=_places(seen, rows), value=pd.to_numeric(rows["value"]))
    return line[["node", "device", "place", "t_s", "value"]]


def _places(seen: SessionData, rows: pd.DataFrame) -> list[str]:
    of_several = nodes.several_nodes(seen.session.environment)
    pairs = zip(rows["device"], rows["node"], strict=True)
    return [nodes.device_said(device, node, of_several) for device, node in pairs]


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
    rows.loc[rows["launch_id"].isin(_too_short(seen)), list(OF_SENSORS)] = np.nan
    keys = ["case_id", "label", "node", "device"]
    groups = rows.groupby(keys, sort=False)
    table = groups[list(MEANS)].mean()
    table["sm_clock_low_hz"] = groups["sm_clock_hz"].min()
    table["sm_clock_high_hz"] = groups["sm_clock_hz"].max()
    table["temperature_c"] = groups["temperature_c"].max()
    energy = _energy(seen).groupby(keys)["energy_j"].mean()
    table = table.join(energy).reset_index()
    return _fastest_first(seen, table.assign(place=_places(seen, table)))


def _too_short(seen: SessionData) -> dict[int, str]:
    """Why power, energy and utilization are unknown of launches whose timed steps were too short for the sensors."""
    table = seen.once(windows)
    whys = zip(table["launch_id"], map(too_short, table["begin_s"], table["end_s"]), strict=True)
    return {int(at): why for at, why in whys if why}


def too_short_said(seen: SessionData) -> str:
    """What of launches is unknown because it was too short for the sensors, in words; empty where nothing is."""
    short, read = _too_short(seen), set(seen.rows("device_sample")["launch_id"])
    whys = [why for at, why in short.items() if at in read]
    if not whys:
        return ""
    more = f" (and {format.count(len(whys) - 1, 'launch')} alike)" if len(whys) > 1 else ""
    return f"power, energy and utilization of a launch: {whys[0]}{more}"


def node_table(devices: pd.DataFrame) -> pd.DataFrame:
    """`device_table` with the devices of a node in one row: means, extremes, and the energy of all of them."""
    keys = ["case_id", "label", "node"]
    how = dict.fromkeys(MEANS, "mean") | {
        "sm_clock_low_hz": "min", "sm_clock_high_hz": "max", "temperature_c": "max", "device": "size",
    }  # fmt: skip
    groups = devices.groupby(keys, sort=False)
    table = groups.agg(how).assign(energy_j=groups["energy_j"].sum(min_count=1)).reset_index()
    places = zip(table["node"], table["device"], strict=True)
    return table.assign(place=[f"node {node}, {format.count(n, 'device')}" for node, n in places])


def _energy(seen: SessionData) -> pd.DataFrame:
    """What each device drew from the first timed step to the last, from its counter; NaN unless it was read around, for
    as long as it needs."""
    rows = seen.rows("device_sample")
    rows = rows[(rows["metric"] == "energy_j") & rows["value"].notna()].merge(seen.once(windows), on="launch_id")
    found = []
    keys = ["case_id", "label", "node", "device"]
    for key, own in rows.groupby([*keys, "launch_id"], sort=False):
        own = own.sort_values("t_s")
        begin_s, end_s = (float(each) for each in own[["begin_s", "end_s"]].iloc[0])
        t_s, counted = own["t_s"].to_numpy(float), pd.to_numeric(own["value"]).to_numpy(float)
        at = np.interp([begin_s, end_s], t_s, counted, left=np.nan, right=np.nan)
        known = not (too_short(begin_s, end_s) or moves_too_few(begin_s, end_s, t_s, counted))
        found.append((*key[:-1], at[1] - at[0] if known else np.nan))
    return pd.DataFrame(found, columns=[*keys, "energy_j"])


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
    return _fastest_first(seen, means.assign(other_share=shares, node=node))


def _fastest_first(seen: SessionData, table: pd.DataFrame) -> pd.DataFrame:
    place = {case_id: at for at, case_id in enumerate(seen.cases["case_id"])}
    return table.sort_values("case_id", key=lambda ids: ids.map(place), kind="stable").reset_index(drop=True)


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
        said += [f"{format.listed(places, most=4)}: {what}"] if of_several else [f"{one}: {what}" for one in places]
    return list(dict.fromkeys(said))


def _cost(seen: SessionData, launch_id: int) -> float:
    """CPU seconds that reading a launch cost, on the node where it cost most; NaN where one does not tell."""
    costs = [sampler.get("cpu_s") for sampler in nodes.samplers(seen.facts[launch_id]).values()]
    known = [float(cost) for cost in costs if cost is not None]
    return max(known) if len(known) == len(costs) else float("nan")
