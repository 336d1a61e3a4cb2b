"""Warnings about devices and hosts: foreign processes, throttled clocks, memory errors, a busy host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.environment import nodes
from parabench.analysis.session import SessionData
from parabench.analysis.step.device_time import IDLE, POWER_CAP, THROTTLES, measured, readings, windows
from parabench.analysis.warnings.codes import Rule
from parabench.store.record import MAY_HAVE_WRAPPED, NOT_SUPPORTED, Finding
from parabench.store.results import records

# A dedicated GPU's clocks stay within about 1-2% under a steady load.
CLOCK_RANGE = 0.05
# A device under load reaches its power limit now and then; if it stays there, the limit decides its speed.
CAPPED_SHARE = 0.05
# Twice what drivers, monitors and daemons take on an idle host; ranks wait for each core that others use.
OTHERS_SHARE = 0.10
# Many devices lack these metrics. Figures show that, without a warning.
OPTIONAL = (
    "ecc_corrected", "ecc_uncorrected", "nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s", "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
)  # fmt: skip

DEVICES = (
    Rule(
        "foreign_process",
        lambda row: row["foreign"] > 0,
        "{place} had up to {foreign:#foreign process} during the measured steps, holding {held}.",
        "End other processes on the device (nvidia-smi lists them), and measure again.",
    ),
    Rule(
        "throttled",
        lambda row: row["throttled"] > 0,
        "{place} throttled its clocks in {throttled:percent} of the readings during the measured steps: {reasons}.",
        "Look at cooling, power supply and power limits; a throttled device is not representative of its model.",
    ),
    Rule(
        "power_capped",
        lambda row: row["capped"] > CAPPED_SHARE,
        "{place} was at its power limit in {capped:percent} of the readings during the measured steps.",
        "Compare only with devices of the same power limit (nvidia-smi -q -d POWER).",
    ),
    # `power_capped` explains clocks that swing at the power limit, so they cause no second warning.
    Rule(
        "clocks_moved",
        lambda row: row["moved"] > CLOCK_RANGE and row["capped"] <= CAPPED_SHARE,
        "{place} ran at {slowest_mhz:,.0f} MHz in one third of a launch's measured steps and at {fastest_mhz:,.0f} MHz "
        "in another (means, {moved:percent} apart).",
        "Warm up for longer (--warmup-seconds), or lock the clocks (nvidia-smi -lgc).",
    ),
)
ECC = Rule(
    "ecc_errors",
    lambda row: row["corrected"] > 0 or row["uncorrected"] > 0 or row["lasting"] > 0,
    "{place} had {corrected:,.0f} corrected and {uncorrected:,.0f} uncorrected memory errors during the launches; "
    "{since} uncorrected since its driver was loaded.",
    "Look at the device's retired pages (nvidia-smi -q -d ECC,PAGE_RETIREMENT), and do not trust results "
    "with an uncorrected error.",
)
HOST = Rule(
    "host_busy",
    lambda row: row["n_busy"] > 0,
    "{label}: in {n_busy:.0f} of {n:#launch} other processes used up to {most:percent} of {where}'s CPU time during "
    "the measured steps.",
    "End other processes on the host, and measure again.",
)
UNREADABLE = Rule(
    "device_unreadable",
    None,
    "{what} could not be read{during}: {reason}.",
    "Numbers that depend on it are unknown. Check the driver, permissions, and the devices that a container may use.",
)


def findings(seen: SessionData) -> tuple[Finding, ...]:
    """Return all warnings of a session about devices and hosts, for `SessionData.once`."""
    devices = pd.DataFrame([place | _read(rows) for place, rows in _places(seen, readings(seen))])
    return (
        *UNREADABLE.findings(pd.DataFrame([*_unread(seen), *_without(seen)])),
        *(finding for rule in DEVICES for finding in rule.findings(devices)),
        *ECC.findings(_errors(seen)),
        *HOST.findings(_busy(seen)),
    )


def _places(seen: SessionData, rows: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Yield the readings of each configuration and device, with its name and the configuration's id."""
    of_several = nodes.several_nodes(seen.session.environment)
    for (case_id, label, node, device), place_rows in rows.groupby(["case_id", "label", "node", "device"], sort=False):
        place = f"{label}: {nodes.device_said(device, node, of_several)}"
        yield {"case_id": str(case_id), "place": place}, place_rows


def _read(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the numbers that the rules use, from the readings of a device."""
    masks = rows["clock_event_reasons"].dropna().astype(int)
    held = {name: share for bit, name in THROTTLES.items() if (share := _share(masks, bit))}
    size = rows["foreign_bytes"].max()
    return {
        "foreign": rows["foreign_processes"].max(),
        "held": f"up to {format.mebibytes(size)}" if format.known(size) else "an unknown amount of memory",
        "throttled": _share(masks, sum(THROTTLES)),
        "reasons": ", ".join(f"{name} in {format.percent(share)}" for name, share in held.items()),
        "capped": _share(masks, POWER_CAP),
        **_clocks(rows.sort_values(["launch_id", "t_s"])),
    }


def _share(masks: pd.Series, bit: int) -> float:
    """Return the share of the readings with one of these bits; 0 without readings."""
    return float((masks & bit).astype(bool).mean()) if len(masks) else 0.0


def _clocks(rows: pd.DataFrame) -> dict[str, float]:
    """Return the means of the clock in the thirds of a launch that differ most, without idle readings.

    They are means, because at its power limit a clock swings by a tenth from one reading to the next.
    """
    masks = rows.groupby("launch_id")["clock_event_reasons"].ffill().fillna(0).astype(int)
    busy = rows[(masks & IDLE) == 0].dropna(subset=["sm_clock_hz"]).groupby("launch_id")["sm_clock_hz"]
    found = [(0.0, 0.0, 0.0)]
    for _, clocks in busy:
        if len(clocks) >= 3:
            means = [float(third.mean()) / 1e6 for third in np.array_split(clocks.to_numpy(float), 3)]
            found.append((1 - min(means) / max(means), min(means), max(means)))
    return dict(zip(("moved", "slowest_mhz", "fastest_mhz"), max(found), strict=True))


def _unread(seen: SessionData) -> Iterator[dict[str, Any]]:
    """Yield what was unknown during the measured steps, by reason. A null is valid until the next reading of the same
    metric."""
    of_several = nodes.several_nodes(seen.session.environment)
    found: dict[str, tuple[set[int], dict[str, None]]] = {}
    for table in ("device_sample", "host_sample"):
        rows = seen.rows(table).merge(seen.once(windows), on="launch_id")
        keys = [name for name in ("launch_id", "node", "metric", "rank", "device") if name in rows]
        until = rows.groupby(keys, dropna=False)["t_s"].shift(-1).fillna(float("inf"))
        lacks = rows["metric"].isin(OPTIONAL) & rows["reason"].isin([NOT_SUPPORTED, MAY_HAVE_WRAPPED])
        null = rows["value"].isna() & ~lacks & (rows["t_s"] < rows["end_s"]) & (until > rows["begin_s"])
        for row in records(rows[null]):
            what = row["metric"] + ("" if pd.isna(row["rank"]) else f" of rank {row['rank']:.0f}")
            if "device" in row:
                what += f" of {nodes.device_said(row['device'], row['node'], of_several)}"
            elif of_several:
                what += f" of node {row['node']}"
            launches, metrics = found.setdefault(str(row["reason"]), (set(), {}))
            launches.add(row["launch_id"])
            metrics[what] = None
    for reason, (launches, metrics) in found.items():
        during = f" during the measured steps of {format.count(len(launches), 'launch')}"
        yield {"what": format.listed(metrics, most=4), "during": during, "reason": reason}


def _without(seen: SessionData) -> Iterator[dict[str, Any]]:
    """Yield the samplers that could not read the devices or the host at all, by reason."""
    without: dict[tuple[str, str], set[int]] = {}
    for at in seen.counted["launch_id"]:
        for node, sampler in nodes.samplers(seen.facts[at]).items():
            for name, reason in (sampler.get("unread") or {}).items():
                without.setdefault((name, reason), set()).add(node)
    of_several = nodes.several_nodes(seen.session.environment)
    for (name, reason), where in without.items():
        what = "The devices" if name == "nvml" else "The host"
        yield {"what": what + f" of {nodes.nodes_said(where)}" * of_several, "during": "", "reason": reason}


def _errors(seen: SessionData) -> pd.DataFrame:
    """Return the memory errors of each device at any time of a launch, and the uncorrected errors from before the
    launch."""
    rows = seen.rows("device_sample")
    rows = rows[rows["metric"].isin(("ecc_corrected", "ecc_uncorrected")) & rows["value"].notna()]
    rows = rows.merge(seen.of_launch, on="launch_id").astype({"value": float})
    found = []
    for place, place_rows in _places(seen, rows):
        of_launch = place_rows.groupby(["launch_id", "metric"])["value"]
        new = (of_launch.max() - of_launch.min()).groupby("metric").sum()
        counts = {kind: new.get(f"ecc_{kind}", 0.0) for kind in ("corrected", "uncorrected")}
        lasting = place_rows.loc[place_rows["metric"] == "ecc_uncorrected", "value"].max()
        since = f"{lasting:,.0f}" if format.known(lasting) else format.UNKNOWN
        found.append(place | counts | {"lasting": lasting, "since": since})
    return pd.DataFrame(found)


def _busy(seen: SessionData) -> pd.DataFrame:
    """Return the number of launches with a busy host, by configuration and node."""
    rows = measured(seen, "host_sample")
    rows = rows[(rows["metric"] == "other_cpu_share") & rows["value"].notna()]
    shares = rows.groupby(["case_id", "label", "node", "launch_id"], sort=False)["value"].mean()
    by_node = shares.groupby(["case_id", "label", "node"], sort=False)
    table = by_node.agg(n="size", most="max", n_busy=lambda own: (own > OTHERS_SHARE).sum()).reset_index()
    of_several = nodes.several_nodes(seen.session.environment)
    return table.assign(where=[f"node {node}" if of_several else "the host" for node in table["node"]])
