"""When a launch's phases were, in seconds after it began: the time that all samplers' readings are told in."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from parabench.analysis.session import SessionData
from parabench.store import json_text
from parabench.store.record import Phase

# What a device's power sensor and energy counter need. On A100 and H100 the sensor looks at 25 % of the time, the
# counter moves every 20 to 100 ms, and utilization is a mean of up to a second: over a shorter time what is read is
# mostly chance (Yang, Adamek, Armour, "Part-time Power Measurements", arXiv 2312.02741). A counter is behind by up to
# one move, at the begin as at the end, so its growth is off by one at most: 100 ms are a twentieth of 2 s, and of a
# counter that moves more slowly one of 10 moves is a tenth. A window of 2 s has 20 readings; a counter that moves as
# often as it is read stands still between some of them, so no more than half of them can be asked to see it move.
SENSOR_S = 2.0
SENSOR_MOVES = 10


def phases(facts: object) -> dict[str, tuple[float, float]]:
    """{phase: (begin, end)} from a launch's facts (JSON text); without those that it did not come to."""
    known: dict[str, Any] = json_text.parsed(facts) if isinstance(facts, str) else {}
    began_s = (known.get("clock") or {}).get("began_s")
    if began_s is None:
        return {}
    return {name: (begin - began_s, end - began_s) for name, (begin, end) in (known.get("phases") or {}).items()}


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


def too_short(begin_s: float, end_s: float) -> str:
    """Why power, energy and utilization between two moments are unknown; empty where the sensors had the time."""
    if end_s - begin_s >= SENSOR_S:
        return ""
    return f"the measured steps took {end_s - begin_s:.2g} s, and the sensors need {SENSOR_S:g} s: measure longer"


def moves_too_few(begin_s: float, end_s: float, t_s: npt.NDArray[np.float64], counted: npt.NDArray[np.float64]) -> str:
    """Why the growth of an energy counter between two moments is unknown, of its readings in order; empty where it
    moved often enough, from the last reading before to the first one after."""
    first = max(0, int(np.searchsorted(t_s, begin_s, side="right")) - 1)
    last = int(np.searchsorted(t_s, end_s, side="left"))
    moves = int((np.diff(counted[first : last + 1]) != 0).sum())
    if moves >= SENSOR_MOVES:
        return ""
    said = f"the energy counter moved {moves} times in the measured steps"
    return f"{said}, and {SENSOR_MOVES} are needed: measure longer"


def measured(seen: SessionData, table: str) -> pd.DataFrame:
    """The rows of a sampler's table (`device_sample`, `host_sample`) that were read during the timed steps, with
    `case_id` and `label`; values are numbers, NaN where unknown."""
    rows = seen.rows(table).merge(seen.once(windows), on="launch_id")
    rows = rows[(rows["t_s"] >= rows["begin_s"]) & (rows["t_s"] <= rows["end_s"])]
    return rows.assign(value=pd.to_numeric(rows["value"]))
