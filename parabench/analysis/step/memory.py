"""Memory while a launch ran (of each rank's process, of each device, and of each rank on it), and by the parts of an
instrumented step, as torch's allocator counts it, or the resident set on the CPU."""

from __future__ import annotations

import pandas as pd

from parabench.analysis.energy import phases
from parabench.analysis.environment import nodes
from parabench.analysis.session import SessionData
from parabench.metrics import MEMORY_PARTS, MEMORY_READINGS


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


def launch_phases(seen: SessionData, launch_id: int) -> dict[str, tuple[float, float]]:
    """{phase: (begin, end)} of a launch, in seconds after it began."""
    own = seen.numbers.loc[seen.numbers["launch_id"] == launch_id, "facts"]
    return phases(own.iloc[0]) if len(own) else {}


COLUMNS = ["case_id", "label", "device", "part", *MEMORY_READINGS, "launches"]


def memory_phases(seen: SessionData) -> pd.DataFrame:
    """One row per case and part of the step, cases by step time and parts in their order: `case_id, label, device,
    part`, MEMORY_READINGS in bytes, `launches`. Unknown is NaN; empty where nothing was read.

    Of a launch they are those of the rank that holds most in any part (reserved on CUDA, resident on the CPU), each the
    largest over its instrumented steps; of a case the median over launches.
    """
    names = {f"{part}_{reading}": (part, reading) for part in MEMORY_PARTS for reading in MEMORY_READINGS}
    rows = seen.rows("instrumented")
    rows = rows[rows["metric"].isin(names)]
    told = rows["metric"].map(names)
    rows = rows.assign(part=told.str[0], reading=told.str[1], value=pd.to_numeric(rows["value"]))
    most = rows.pivot_table(index=["launch_id", "rank", "part"], columns="reading", values="value", aggfunc="max")
    most = most.reindex(columns=list(MEMORY_READINGS)).reset_index()
    held = most["reserved_bytes"].fillna(most["rss_bytes"]).groupby([most["launch_id"], most["rank"]]).max()
    largest = pd.MultiIndex.from_tuples(held.dropna().groupby("launch_id").idxmax(), names=["launch_id", "rank"])
    own = most[pd.MultiIndex.from_frame(most[["launch_id", "rank"]]).isin(largest)]
    own = own.merge(seen.of_launch[["launch_id", "case_id"]], on="launch_id")
    groups = own.groupby(["case_id", "part"])
    table = groups[list(MEMORY_READINGS)].median().assign(launches=groups["launch_id"].nunique()).reset_index()
    table = seen.cases[["case_id", "label", "device"]].merge(table, on="case_id")
    order = {part: at for at, part in enumerate(MEMORY_PARTS)}
    place = table["case_id"].map({case_id: at for at, case_id in enumerate(seen.cases["case_id"])})
    table = table.assign(_case=place, _part=table["part"].map(order)).sort_values(["_case", "_part"], kind="stable")
    return table.reset_index(drop=True)[COLUMNS]
