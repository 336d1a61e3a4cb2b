"""The tables that the rules about training sessions read, with a row per configuration, launch, device or node.

A host enqueues kernels without waiting. A slower device lags until the launch queue is full (about 1,000 kernels). With
a slower host, the device lags by a kernel or two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.carry_over import carry_over, sentence
from parabench.analysis.environment import nodes
from parabench.analysis.environment.nodes import node_of_rank, rank_said
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import taken_apart
from parabench.analysis.step.device_time import IDLE, POWER_CAP, THROTTLES, measured, readings, windows
from parabench.analysis.step.stragglers import always_last, straggler_table
from parabench.machine import accelerator
from parabench.metrics import STEP_PARTS
from parabench.models import PRECISIONS
from parabench.store.record import MAY_HAVE_WRAPPED, NOT_SUPPORTED
from parabench.store.results import records
from parabench.strategies import STRATEGIES
from parabench.strategies import Rule as Verified

# In these strategies, the forward pass does not communicate, so ranks differ only by hardware and chance. All ranks
# wait for each other.
LOCAL_FORWARD = [name for name, entry in STRATEGIES.items() if entry.local_forward and entry.rule is Verified.REFERENCE]
# Ranks of a slow node take this many times as long to compute: on CPUs, twice the variation of equal launches' medians
# (9.7%). Clocks of dedicated GPUs stay within 1-2%.
SLOW_NODE = {"cpu": 1.20, accelerator.TYPE: 1.05}
# Undisturbed launches drift by less. On shared CPUs, medians of equal launches differ by 9.7%. A dedicated GPU is
# quieter.
DRIFTS = {"cpu": 0.10, accelerator.TYPE: 0.05}
# Twice what drivers, monitors and daemons take on an idle host; ranks wait for each core that others use.
OTHERS_SHARE = 0.10
# Many devices lack these metrics. Figures show that, without a warning.
OPTIONAL = (
    "ecc_corrected", "ecc_uncorrected", "nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s", "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
)  # fmt: skip
# The variation between launches of one configuration, not measured for a dedicated GPU.
AA_SPREAD = {"cpu": 0.025}
# Twice that; a dedicated GPU's clocks stay within about 1-2%.
NOISY = {"cpu": 2 * AA_SPREAD["cpu"], accelerator.TYPE: 0.03}


def configurations(seen: SessionData) -> pd.DataFrame:
    """Return the configurations with the share of a step that waits for its batch.

    The share is of the sum of the parts, which are medians: a step's own number may be another quantile.
    """
    whole_s = seen.cases[list(STEP_PARTS)].sum(axis=1)
    limit = seen.cases["device"].map(NOISY).astype(float)
    return seen.cases.assign(limit=limit, whole_s=whole_s, data_share=seen.cases["data_s"] / whole_s)


def interference(seen: SessionData) -> pd.DataFrame:
    """Return one row with the interference of interleaved configurations, if some was found."""
    tested = seen.once(carry_over)
    if not (tested and tested.found):
        return pd.DataFrame()
    return pd.DataFrame([{"text": sentence(tested, seen.labels), "case_id": tested.found["case_id"]}])


def arithmetic(seen: SessionData) -> pd.DataFrame:
    """Return the launches on CUDA whose ranks computed in an unexpected arithmetic."""
    good = seen.counted[seen.counted["device"] == accelerator.TYPE]
    launches = zip(good["precision"], good["launch_id"], strict=True)
    texts = [_other(name, seen.facts[at].get("arithmetic")) for name, at in launches]
    other = pd.Series(texts, good.index, dtype=object)
    return good.assign(other=other)[other.notna()]


def instrumented(seen: SessionData) -> pd.DataFrame:
    """Return the cost of the instruments, and whether communication was recorded, by configuration."""
    cases = seen.once(taken_apart)[["case_id", "label", "strategy", "world_size", "unseen", "instruments_ratio"]]
    return cases.assign(slower=cases["instruments_ratio"] - 1)


def stragglers(seen: SessionData) -> pd.DataFrame:
    """Return the rank of each configuration that the others wait for most."""
    table = seen.once(straggler_table)
    return table.assign(always_last=always_last(table))


def devices(seen: SessionData) -> pd.DataFrame:
    """Return the readings of each configuration and device, as `_read` sums them up."""
    return pd.DataFrame([place | _read(rows) for place, rows in _places(seen, readings(seen))])


def unreadable(seen: SessionData) -> pd.DataFrame:
    """Return what could not be read of devices and hosts, with the reason."""
    return pd.DataFrame([*_unread(seen), *_without(seen)])


def drifting(seen: SessionData) -> pd.DataFrame:
    """Return the launch of each configuration that drifts the most, if it drifts by more than DRIFTS."""
    good = seen.counted.assign(case_id=seen.counted["case"], size=seen.counted["drift"].abs())
    good["n"] = good.groupby("case")["case"].transform("size")
    far = good[good["size"] > good["device"].map(DRIFTS).astype(float)]
    far = far.assign(
        n_far=far.groupby("case")["case"].transform("size"), way=np.where(far["drift"] > 0, "slower", "faster")
    )
    return far.sort_values("size", ascending=False, kind="stable").drop_duplicates("case")


def _forward(seen: SessionData) -> pd.DataFrame:
    """Return the median forward pass of each rank: `launch_id, rank, node, rank_s, case_id, label, device`.

    Launches whose ranks are not all known are left out.
    """
    medians = seen.results.medians
    forward = medians[medians["metric"] == "forward_s"].rename(columns={"value": "rank_s"})
    good = seen.counted[seen.counted["strategy"].isin(LOCAL_FORWARD) & (seen.counted["world_size"] > 1)]
    good = good[["launch_id", "case", "label", "device", "world_size"]].rename(columns={"case": "case_id"})
    ranks = good.merge(forward[["launch_id", "rank", "rank_s"]].dropna(), on="launch_id")
    ranks = ranks[ranks.groupby("launch_id")["rank"].transform("size") == ranks["world_size"]]
    node_of = {at: node_of_rank(seen.facts[at]) for at in ranks["launch_id"].unique()}
    nodes = [node_of[at].get(rank, 0) for at, rank in zip(ranks["launch_id"], ranks["rank"], strict=True)]
    return ranks.assign(node=nodes)


def _slowest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the slowest row of each launch by `rank_s`, with its `ratio` to the median of the other rows."""
    rows = rows.sort_values("rank_s", kind="stable")
    slowest = rows.drop_duplicates("launch_id", keep="last").set_index("launch_id")
    others = rows[rows.duplicated("launch_id", keep="last")].groupby("launch_id")["rank_s"].median()
    return slowest.assign(ratio=slowest["rank_s"] / others)


def slowest_ranks(seen: SessionData) -> pd.DataFrame:
    """Return the rank of each configuration that is the slowest one in every launch, and its least `ratio`."""
    slowest = _slowest(seen.once(_forward))
    launches = slowest["case_id"].map(seen.counted["case"].value_counts())
    by_case = slowest.groupby("case_id")
    always = (by_case["rank"].transform("nunique") == 1) & (by_case["rank"].transform("size") == launches)
    slowest = slowest.assign(ratio=by_case["ratio"].transform("min"))[always].sort_index().drop_duplicates("case_id")
    where = [rank_said(rank, seen.facts[at]) for at, rank in zip(slowest.index, slowest["rank"], strict=True)]
    return slowest.assign(where=where, slower=slowest["ratio"] - 1)


def slowest_nodes(seen: SessionData) -> pd.DataFrame:
    """Return each node that is slower than the others by more than SLOW_NODE, by device."""
    table = _slowest(seen.once(_forward).groupby(["device", "launch_id", "node"])["rank_s"].median().reset_index())
    table = table.assign(limit=table["device"].map(SLOW_NODE).astype(float)).dropna()
    table = table.assign(n=table.groupby("device")["node"].transform("size"))
    slow = table[table["ratio"] > table["limit"]].groupby(["device", "node"])
    rows = slow[["n", "limit"]].first().assign(n_slow=slow.size(), slower=slow["ratio"].median() - 1)
    return rows.assign(limit=rows["limit"] - 1).reset_index()


def host_lags(seen: SessionData) -> pd.DataFrame:
    """Return the rank whose device lags least in the median launch of each configuration on CUDA.

    Launches whose collectives block the host, as gloo's do, are left out: there, the lag says nothing.
    """
    medians, good = seen.results.medians, seen.counted
    free = (good["device"] == accelerator.TYPE) & ((good["world_size"] == 1) | (good["backend"] == accelerator.BACKEND))
    rows = medians[medians["metric"].isin(["device_lag_s", "step_s", "data_s"])]
    wide = rows.pivot_table("value", ["launch_id", "rank"], "metric", observed=True).rename(
        columns={"device_lag_s": "lag_s"}
    )
    wide = wide.reindex(columns=["lag_s", "step_s", "data_s"]).dropna(subset=["lag_s", "step_s"]).reset_index()
    lags = seen.of_launch[free].merge(wide.assign(lag=wide["lag_s"] / wide["step_s"]), on="launch_id")
    lags = lags.sort_values("lag", kind="stable").drop_duplicates("launch_id")
    by_case = lags.groupby("case_id", sort=False)
    lags = lags.assign(median_lag=by_case["lag"].transform("median"))
    return lags[by_case.cumcount() == (by_case["lag"].transform("size") - 1) // 2]


def compiled(seen: SessionData) -> pd.DataFrame:
    """Return the most graphs and eager frames of a rank in each launch with torch.compile."""
    found = [
        {"label": label, **{name: max(rank[name] for rank in ranks) for name in ("graphs", "eager_frames")}}
        for at, label in zip(seen.counted["launch_id"], seen.counted["label"], strict=True)
        if (ranks := seen.facts[at].get("compiled"))
    ]
    return pd.DataFrame(found, columns=["label", "graphs", "eager_frames"])


def _other(precision: str, reported: dict[str, Any] | None) -> str | None:
    """Return how the arithmetic that a rank reported differs from the arithmetic of `precision`."""
    if reported is None:
        return None
    wants = PRECISIONS[precision].allows_tf32
    if reported["overrides"]:
        return f"{' and '.join(f'{name}={value}' for name, value in reported['overrides'].items())} was set"
    if (reported["matmul"] != "highest") is not wants:
        return f"float32 matrix products ran at torch's precision {reported['matmul']!r}"
    if reported["cudnn_tf32"] is not wants:
        return f"cuDNN's TF32 was {'on' if reported['cudnn_tf32'] else 'off'}"
    return None


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


def memory_errors(seen: SessionData) -> pd.DataFrame:
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


def busy_hosts(seen: SessionData) -> pd.DataFrame:
    """Return the number of launches with a busy host, by configuration and node."""
    rows = measured(seen, "host_sample")
    rows = rows[(rows["metric"] == "other_cpu_share") & rows["value"].notna()]
    shares = rows.groupby(["case_id", "label", "node", "launch_id"], sort=False)["value"].mean()
    by_node = shares.groupby(["case_id", "label", "node"], sort=False)
    table = by_node.agg(n="size", most="max", n_busy=lambda own: (own > OTHERS_SHARE).sum()).reset_index()
    of_several = nodes.several_nodes(seen.session.environment)
    return table.assign(where=[f"node {node}" if of_several else "the host" for node in table["node"]])
