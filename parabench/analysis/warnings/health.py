"""What devices and host say against a result: others on the device, clocks held down, memory errors, a busy host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.environment import nodes
from parabench.analysis.session import SessionData
from parabench.analysis.step.device_time import IDLE, POWER_CAP, THROTTLES, measured, readings, windows
from parabench.store.record import MAY_HAVE_WRAPPED, NOT_SUPPORTED, Finding

# A dedicated GPU's clocks stay within about 1-2% under a steady load.
CLOCK_RANGE = 0.05
THIRDS = 3
# At its power limit now and then is what a device does under load; for longer, the limit decides how fast it is.
CAPPED_SHARE = 0.05
# Twice what drivers, monitors and daemons take on an idle host; each core that others use is one that ranks wait for.
OTHERS_SHARE = 0.10
# Metrics that many devices lack: figures show that, and it is no warning.
OPTIONAL = (
    "ecc_corrected", "ecc_uncorrected", "nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s", "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
)  # fmt: skip


def findings(seen: SessionData) -> tuple[Finding, ...]:
    """Return all warnings of a session about devices and hosts, for `SessionData.once`."""
    devices = (
        rule(*place) for place in _places(seen, readings(seen)) for rule in (_foreign, _throttled, _clocks_moved)
    )
    return (*_unreadable(seen), *(finding for found in devices for finding in found), *_ecc(seen), *_host_busy(seen))


def _places(seen: SessionData, rows: pd.DataFrame) -> Iterator[tuple[pd.DataFrame, str, str]]:
    """Yield the readings of each configuration and device, with its name and the configuration's id."""
    of_several = nodes.several_nodes(seen.session.environment)
    for (case_id, label, node, device), own in rows.groupby(["case_id", "label", "node", "device"], sort=False):
        yield own, f"{label}: {nodes.device_said(device, node, of_several)}", str(case_id)


def _foreign(rows: pd.DataFrame, where: str, case_id: str) -> Iterator[Finding]:
    count, size = rows["foreign_processes"].max(), rows["foreign_bytes"].max()
    if count > 0:
        held = f"up to {format.mebibytes(size)}" if format.known(size) else "an unknown amount of memory"
        yield Finding(
            "foreign_process",
            f"{where} had up to {format.count(int(count), 'foreign process')} during the timed steps, holding {held}.",
            "End what else runs on the device (nvidia-smi names it), and measure again.",
            case_id,
        )


def _throttled(rows: pd.DataFrame, where: str, case_id: str) -> Iterator[Finding]:
    masks = rows["clock_event_reasons"].dropna().astype(int)
    held = {name: share for bit, name in THROTTLES.items() if (share := _share(masks, bit))}
    if held:
        each = ", ".join(f"{name} in {format.percent(share)}" for name, share in held.items())
        yield Finding(
            "throttled",
            f"{where} throttled its clocks in {format.percent(_share(masks, sum(THROTTLES)))} of the readings during "
            f"the timed steps: {each}.",
            "Look at cooling, power supply and power limits; a throttled device is not representative of its model.",
            case_id,
        )
    capped = _share(masks, POWER_CAP)
    if capped > CAPPED_SHARE:
        yield Finding(
            "power_capped",
            f"{where} was at its power limit in {format.percent(capped)} of the readings during the timed steps.",
            "Compare only with devices of the same power limit (nvidia-smi -q -d POWER).",
            case_id,
        )


def _clocks_moved(rows: pd.DataFrame, where: str, case_id: str) -> Iterator[Finding]:
    """Compare means of thirds of the measured steps, because at its power limit a clock swings by a tenth from one
    reading to the next. `power_capped` explains such clocks, so they cause no second warning."""
    rows = rows.sort_values(["launch_id", "t_s"])
    masks = rows.groupby("launch_id")["clock_event_reasons"].ffill().fillna(0).astype(int)
    if _share(rows["clock_event_reasons"].dropna().astype(int), POWER_CAP) > CAPPED_SHARE:
        return
    busy = rows[(masks & IDLE) == 0].dropna(subset=["sm_clock_hz"])
    worst, slowest, fastest = 0.0, 0.0, 0.0
    for _, clocks in busy.groupby("launch_id")["sm_clock_hz"]:
        if len(clocks) < THIRDS:
            continue
        means = [float(third.mean()) for third in np.array_split(clocks.to_numpy(float), THIRDS)]
        if (moved := 1 - min(means) / max(means)) > worst:
            worst, slowest, fastest = moved, min(means), max(means)
    if worst > CLOCK_RANGE:
        yield Finding(
            "clocks_moved",
            f"{where} ran at {slowest / 1e6:,.0f} MHz in one third of a launch's timed steps and at "
            f"{fastest / 1e6:,.0f} MHz in another (means, {format.percent(worst)} apart).",
            "Warm up for longer (--warmup-seconds), or lock the clocks (nvidia-smi -lgc).",
            case_id,
        )


def _share(masks: pd.Series, bit: int) -> float:
    """Return the share of the readings in which one of these bits was set; 0 if there are none."""
    return float((masks & bit).astype(bool).mean()) if len(masks) else 0.0


def _unreadable(seen: SessionData) -> Iterator[Finding]:
    """One finding for each reason: what was null during the timed steps, and where."""
    advice = "Numbers that rest on it are unknown. Look at the driver, at permissions, and at what a container may see."
    for reason, (launches, metrics) in _unread(seen).items():
        yield Finding(
            "device_unreadable",
            f"{format.listed(metrics, most=4)} could not be read during the timed steps "
            f"of {format.count(len(launches), 'launch')}: {reason}.",
            advice,
        )
    without: dict[tuple[str, str], set[int]] = {}
    for at in seen.counted["launch_id"]:
        for node, sampler in nodes.samplers(seen.facts[at]).items():
            for name, reason in (sampler.get("unread") or {}).items():
                without.setdefault((name, reason), set()).add(node)
    of_several = nodes.several_nodes(seen.session.environment)
    for (name, reason), where in without.items():
        what = ("The devices" if name == "nvml" else "The host") + (f" of {nodes.nodes_said(where)}" * of_several)
        yield Finding("device_unreadable", f"{what} could not be read: {reason}.", advice)


def _unread(seen: SessionData) -> dict[str, tuple[set[int], list[str]]]:
    """{reason: (launches, what)}. A null holds until the next reading of the same."""
    found: dict[str, tuple[set[int], list[str]]] = {}
    of_several = nodes.several_nodes(seen.session.environment)
    for table, where in (("device_sample", "device"), ("host_sample", None)):
        rows = seen.rows(table).merge(seen.once(windows), on="launch_id")
        keys = ["launch_id", "node", "metric", "rank", *([where] if where else [])]
        until = rows.groupby(keys, dropna=False)["t_s"].shift(-1).fillna(float("inf"))
        null = rows["value"].isna() & (rows["t_s"] < rows["end_s"]) & (until > rows["begin_s"])
        for row in rows[null].to_dict("records"):
            if row["reason"] in (NOT_SUPPORTED, MAY_HAVE_WRAPPED) and row["metric"] in OPTIONAL:
                continue
            of_rank = "" if pd.isna(row["rank"]) else f" of rank {row['rank']:.0f}"
            at = nodes.device_said(row[where], row["node"], of_several) if where else f"node {row['node']}"
            what = f"{row['metric']}{of_rank}" + (f" of {at}" if where or of_several else "")
            launches, metrics = found.setdefault(str(row["reason"]), (set(), []))
            launches.add(row["launch_id"])
            if what not in metrics:
                metrics.append(what)
    return found


def _ecc(seen: SessionData) -> Iterator[Finding]:
    """Find memory errors at any time of a launch, and uncorrected ones from before it."""
    rows = seen.rows("device_sample")
    rows = rows[rows["metric"].isin(("ecc_corrected", "ecc_uncorrected")) & rows["value"].notna()]
    rows = rows.merge(seen.of_launch, on="launch_id").astype({"value": float})
    for own, where, case_id in _places(seen, rows):
        of_launch = own.groupby(["launch_id", "metric"])["value"]
        new = (of_launch.max() - of_launch.min()).groupby("metric").sum()
        corrected, not_corrected = (int(new.get(f"ecc_{kind}", 0)) for kind in ("corrected", "uncorrected"))
        lasting = own.loc[own["metric"] == "ecc_uncorrected", "value"].max()
        if corrected or not_corrected or lasting > 0:
            yield Finding(
                "ecc_errors",
                f"{where} had {corrected:,} corrected and {not_corrected:,} uncorrected memory errors during "
                f"the launches; {f'{int(lasting):,}' if format.known(lasting) else 'unknown'} uncorrected since its "
                "driver was loaded.",
                "Look at the device's retired pages (nvidia-smi -q -d ECC,PAGE_RETIREMENT), and trust no result with "
                "an uncorrected error.",
                case_id,
            )


def _host_busy(seen: SessionData) -> Iterator[Finding]:
    rows = measured(seen, "host_sample")
    rows = rows[(rows["metric"] == "other_cpu_share") & rows["value"].notna()]
    of_several = nodes.several_nodes(seen.session.environment)
    shares = rows.groupby(["case_id", "label", "node", "launch_id"], sort=False)["value"].mean()
    for (case_id, label, node), own in shares.groupby(["case_id", "label", "node"], sort=False):
        busy = own[own > OTHERS_SHARE]
        if len(busy):
            yield Finding(
                "host_busy",
                f"{label}: in {len(busy)} of {format.count(len(own), 'launch')} other processes used up to "
                f"{format.percent(busy.max())} of {f'node {node}' if of_several else 'the host'}'s CPU time during the "
                "timed steps.",
                "End what else runs on the host, and measure again.",
                str(case_id),
            )
