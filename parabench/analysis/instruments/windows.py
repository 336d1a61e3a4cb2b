"""When a launch's phases were, in seconds after it began: the time that all samplers' readings are told in."""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd

from parabench.analysis.evidence import Evidence
from parabench.record import Phase


def phases(facts: object) -> dict[str, tuple[float, float]]:
    """{phase: (begin, end)} from a launch's facts (JSON text); without those that it did not come to."""
    known: dict[str, Any] = json.loads(facts) if isinstance(facts, str) else {}
    began_s = (known.get("clock") or {}).get("began_s")
    if began_s is None:
        return {}
    return {name: (begin - began_s, end - began_s) for name, (begin, end) in (known.get("phases") or {}).items()}


def windows(seen: Evidence) -> pd.DataFrame:
    """When the timed steps of each launch were that counts and has readings of a sampler: columns `launch_id, case_id,
    label, begin_s, end_s`; NaN where it was not recorded. For `Evidence.once`."""
    read = set(seen.results.device_sample["launch_id"]) | set(seen.results.host_sample["launch_id"])
    good = seen.good[seen.good["launch_id"].isin(read)]
    rows = []
    for launch in good[["launch_id", "case_id", "label", "facts"]].to_dict("records"):
        begin_s, end_s = phases(launch.pop("facts")).get(Phase.MEASURE, (math.nan, math.nan))
        rows.append(launch | {"begin_s": begin_s, "end_s": end_s})
    return pd.DataFrame(rows, columns=["launch_id", "case_id", "label", "begin_s", "end_s"])


def measured(seen: Evidence, table: str) -> pd.DataFrame:
    """The rows of a sampler's table (`device_sample`, `host_sample`) that were read during the timed steps, with
    `case_id` and `label`; values are numbers, NaN where unknown."""
    rows = seen.rows(table).merge(seen.once(windows), on="launch_id")
    rows = rows[(rows["t_s"] >= rows["begin_s"]) & (rows["t_s"] <= rows["end_s"])]
    return rows.assign(value=pd.to_numeric(rows["value"]))
