"""Warn about devices and hosts by their readings: functions that return tables, and the rules about their rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.environment.nodes import device_text, nodes_text, samplers, several_nodes
from parabench.analysis.session import SessionData
from parabench.analysis.step.device_time import IDLE, POWER_CAP, THROTTLES, measured, readings, windows
from parabench.analysis.warnings import Rule
from parabench.store.record import MAY_HAVE_WRAPPED, NOT_SUPPORTED
from parabench.store.results import records

# Many devices lack these metrics. Figures show that, without a warning.
_OPTIONAL = (
    "ecc_corrected", "ecc_uncorrected", "nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s", "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
)  # fmt: skip
# Twice what drivers, monitors and daemons take on an idle host; ranks wait for each core that others use.
_OTHERS_SHARE = 0.10
# A device under load reaches its power limit now and then; if it stays there, the limit decides its speed.
_CAPPED_SHARE = 0.05


def _unreadable(seen: SessionData) -> pd.DataFrame:
    """Return one row per reason why something could not be read: `what, during, reason`.

    Samplers may have read nothing, or readings during the measured steps may have no value. A reading is valid until
    the next one of the same metric.
    """
    several = several_nodes(seen.session.environment)
    without: dict[tuple[str, str], set[int]] = {}
    for at in seen.counted["launch_id"]:
        for node, sampler in samplers(seen.facts[at]).items():
            for name, reason in (sampler.get("unread") or {}).items():
                without.setdefault((name, reason), set()).add(node)
    nulls = []
    for table in ("device_sample", "host_sample"):
        rows = seen.rows(table).merge(seen.once(windows), on="launch_id")
        keys = [name for name in ("launch_id", "node", "metric", "rank", "device") if name in rows]
        until = rows.groupby(keys, dropna=False)["t_s"].shift(-1).fillna(float("inf"))
        lacks = rows["metric"].isin(_OPTIONAL) & rows["reason"].isin([NOT_SUPPORTED, MAY_HAVE_WRAPPED])
        null = rows["value"].isna() & ~lacks & (rows["t_s"] < rows["end_s"]) & (until > rows["begin_s"])
        for row in records(rows[null]):
            what = row["metric"] + ("" if pd.isna(row["rank"]) else f" of rank {row['rank']:.0f}")
            if "device" in row:
                what += f" of {device_text(row['device'], row['node'], several)}"
            what += f" of node {row['node']}" * ("device" not in row and several)
            nulls.append((str(row["reason"]), row["launch_id"], what))
    found = []
    for reason, own in pd.DataFrame(nulls, columns=["reason", "launch", "what"]).groupby("reason", sort=False):
        during = f" during the measured steps of {format.count(own['launch'].nunique(), 'launch')}"
        found.append({"what": format.listed(own["what"].unique(), most=4), "during": during, "reason": reason})
    for (name, reason), where in without.items():
        what = ("The devices" if name == "nvml" else "The host") + f" of {nodes_text(where)}" * several
        found.append({"what": what, "during": "", "reason": reason})
    return pd.DataFrame(found)


def _places(seen: SessionData, rows: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Yield ({"case_id", "place"}, readings) for each configuration and device. `place` names both."""
    several = several_nodes(seen.session.environment)
    for (case_id, label, node, device), place_rows in rows.groupby(["case_id", "label", "node", "device"], sort=False):
        yield {"case_id": str(case_id), "place": f"{label}: {device_text(device, node, several)}"}, place_rows


def _devices(seen: SessionData) -> pd.DataFrame:
    """Return one row per configuration and device: foreign processes, limited clocks, and changes of the SM clock."""
    found = []
    for place, rows in _places(seen, readings(seen)):
        masks = rows["clock_event_reasons"].dropna().astype(int)
        shares = {bit: _share(masks, bit) for bit in THROTTLES}
        reasons = [f"{THROTTLES[bit]} in {format.percent(share)}" for bit, share in shares.items() if share]
        size = rows["foreign_bytes"].max()
        numbers = {
            "foreign": rows["foreign_processes"].max(),
            "held": f"up to {format.mebibytes(size)}" if format.known(size) else "an unknown amount of memory",
            "throttled": _share(masks, sum(THROTTLES)),
            "reasons": ", ".join(reasons),
            "capped": _share(masks, POWER_CAP),
        }
        found.append(place | numbers | _clocks(rows.sort_values(["launch_id", "t_s"])))
    return pd.DataFrame(found)


def _share(masks: pd.Series, bits: int) -> float:
    """Return the share of the readings with one of these bits; 0 without readings."""
    return float((masks & bits).astype(bool).mean()) if len(masks) else 0.0


def _clocks(rows: pd.DataFrame) -> dict[str, float]:
    """Return how far the mean SM clock differs between thirds of a launch, for the launch with the largest difference.

    Idle readings are left out. Means are compared, because at the power limit successive readings differ by a tenth.
    """
    masks = rows.groupby("launch_id")["clock_event_reasons"].ffill().fillna(0).astype(int)
    busy = rows[(masks & IDLE) == 0].dropna(subset=["sm_clock_hz"]).groupby("launch_id")["sm_clock_hz"]
    found = [(0.0, 0.0, 0.0)]
    for _, clocks in busy:
        if len(clocks) >= 3:
            means = [float(third.mean()) / 1e6 for third in np.array_split(clocks.to_numpy(float), 3)]
            found.append((1 - min(means) / max(means), min(means), max(means)))
    return dict(zip(("moved", "slowest_mhz", "fastest_mhz"), max(found), strict=True))


def _memory_errors(seen: SessionData) -> pd.DataFrame:
    """Return one row per configuration and device: memory errors during launches, and uncorrected ones in total."""
    rows = seen.rows("device_sample")
    rows = rows[rows["metric"].isin(("ecc_corrected", "ecc_uncorrected")) & rows["value"].notna()]
    rows = rows.merge(seen.of_launch, on="launch_id").astype({"value": float})
    found = []
    for place, place_rows in _places(seen, rows):
        of_launch = place_rows.groupby(["launch_id", "metric"])["value"]
        new = (of_launch.max() - of_launch.min()).groupby("metric").sum()
        lasting = place_rows.loc[place_rows["metric"] == "ecc_uncorrected", "value"].max()
        counts = {kind: new.get(f"ecc_{kind}", 0.0) for kind in ("corrected", "uncorrected")}
        since = f"{lasting:,.0f}" if format.known(lasting) else format.UNKNOWN
        found.append(place | counts | {"lasting": lasting, "since": since})
    return pd.DataFrame(found)


def _busy_hosts(seen: SessionData) -> pd.DataFrame:
    """Return one row per configuration and node: in how many launches (`n_busy` of `n`) the host was busy."""
    rows = measured(seen, "host_sample")
    rows = rows[(rows["metric"] == "other_cpu_share") & rows["value"].notna()]
    shares = rows.groupby(["case_id", "label", "node", "launch_id"], sort=False)["value"].mean()
    by_node = shares.groupby(["case_id", "label", "node"], sort=False)
    table = by_node.agg(n="size", most="max", n_busy=lambda own: (own > _OTHERS_SHARE).sum()).reset_index()
    several = several_nodes(seen.session.environment)
    return table.assign(where=[f"node {node}" if several else "the host" for node in table["node"]])


# Each table with the rules about its rows.
RULES = (
    (_unreadable, Rule(
        "device_unreadable",
        None,
        "{what} could not be read{during}: {reason}.",
        "Numbers that depend on it are unknown. Check the driver, permissions, and the devices that a container may "
        "use.",
    )),
    (_devices, Rule(
        "foreign_process",
        lambda row: row["foreign"] > 0,
        "{place} had up to {foreign:#foreign process} during the measured steps, holding {held}.",
        "End other processes on the device (nvidia-smi lists them), and measure again.",
    )),
    (_devices, Rule(
        "throttled",
        lambda row: row["throttled"] > 0,
        "{place} throttled its clocks in {throttled:percent} of the readings during the measured steps: {reasons}.",
        "Look at cooling, power supply and power limits; a throttled device is not representative of its model.",
    )),
    (_devices, Rule(
        "power_capped",
        lambda row: row["capped"] > _CAPPED_SHARE,
        "{place} was at its power limit in {capped:percent} of the readings during the measured steps.",
        "Compare only with devices of the same power limit (nvidia-smi -q -d POWER).",
    )),
    # A dedicated GPU's clocks stay within about 1-2% under a steady load. `power_capped` explains clocks that swing at
    # the power limit, so they cause no second warning.
    (_devices, Rule(
        "clocks_moved",
        lambda row: row["moved"] > 0.05 and row["capped"] <= _CAPPED_SHARE,
        "{place} ran at {slowest_mhz:,.0f} MHz in one third of a launch's measured steps and at {fastest_mhz:,.0f} MHz "
        "in another (means, {moved:percent} apart).",
        "Warm up for longer (--warmup-seconds), or lock the clocks (nvidia-smi -lgc).",
    )),
    (_memory_errors, Rule(
        "ecc_errors",
        lambda row: row["corrected"] > 0 or row["uncorrected"] > 0 or row["lasting"] > 0,
        "{place} had {corrected:,.0f} corrected and {uncorrected:,.0f} uncorrected memory errors during the launches; "
        "{since} uncorrected since its driver was loaded.",
        "Look at the device's retired pages (nvidia-smi -q -d ECC,PAGE_RETIREMENT), and do not trust results "
        "with an uncorrected error.",
    )),
    (_busy_hosts, Rule(
        "host_busy",
        lambda row: row["n_busy"] > 0,
        "{label}: in {n_busy:.0f} of {n:#launch} other processes used up to {most:percent} of {where}'s CPU time "
        "during the measured steps.",
        "End other processes on the host, and measure again.",
    )),
)  # fmt: skip
