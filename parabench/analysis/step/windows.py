"""When a launch's phases were, in seconds after it began: the time that all samplers' readings are told in."""

from __future__ import annotations

import math

import pandas as pd

from parabench.analysis.energy import phases
from parabench.analysis.session import SessionData
from parabench.store.record import Phase


def windows(seen: SessionData) -> pd.DataFrame:
    """When the timed steps of each launch were that counts and has readings of a sampler: columns `launch_id, case_id,
    label, begin_s, end_s`; NaN where it was not recorded. For `SessionData.once`."""
    read = set(seen.results.device_sample["launch_id"]) | set(seen.results.host_sample["launch_id"])
    good = seen.counted[seen.counted["launch_id"].isin(read)].rename(columns={"case": "case_id"})
    rows = []
    for launch in good[["launch_id", "case_id", "label", "facts"]].to_dict("records"):
        begin_s, end_s = phases(launch.pop("facts")).get(Phase.MEASURE, (math.nan, math.nan))
        rows.append(launch | {"begin_s": begin_s, "end_s": end_s})
    return pd.DataFrame(rows, columns=["launch_id", "case_id", "label", "begin_s", "end_s"])


def measured(seen: SessionData, table: str) -> pd.DataFrame:
    """The rows of a sampler's table (`device_sample`, `host_sample`) that were read during the timed steps, with
    `case_id` and `label`; values are numbers, NaN where unknown."""
    rows = seen.rows(table).merge(seen.once(windows), on="launch_id")
    rows = rows[(rows["t_s"] >= rows["begin_s"]) & (rows["t_s"] <= rows["end_s"])]
    return rows.assign(value=pd.to_numeric(rows["value"]))
