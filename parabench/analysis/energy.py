"""The energy of a launch: joules of a measured step over its devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from parabench import json_text

# The source of joules: the device's energy counter, or its power readings, integrated.
COUNTER, POWER = "energy counter", "power readings"
# What a device's power sensor and energy counter need. On A100 and H100 the sensor looks at 25% of the time, the
# counter moves every 20 to 100 ms, and utilization is a mean of up to a second: over a shorter time what is read is
# mostly chance (Yang, Adamek, Armour, "Part-time Power Measurements", arXiv 2312.02741). A counter is behind by up to
# one move, at the begin as at the end, so its growth is off by one at most: 100 ms are a twentieth of 2 s, and of a
# counter that moves more slowly one of 10 moves is a tenth. A window of 2 s has 20 readings; a counter that moves as
# often as it is read stands still between some of them, so no more than half of them can be asked to see it move.
SENSOR_S = 2.0
SENSOR_MOVES = 10


def phases(facts: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return {phase: (begin, end)} of a launch, in seconds after it began, for the phases that it reached."""
    began_s = (facts.get("clock") or {}).get("began_s")
    if began_s is None:
        return {}
    return {name: (begin - began_s, end - began_s) for name, (begin, end) in (facts.get("phases") or {}).items()}


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


def launch_energy(launches: pd.DataFrame, readings: pd.DataFrame) -> pd.DataFrame:
    """Return `joules_per_step`, `joules_source` and `joules_reason` of launches that count.

    `launches` has `launch_id`, `counted`, `device`, `n_steps` and `facts`; `readings` are rows of `device_sample` for
    whole devices. Unknown energy is NaN, with the reason.
    """
    readings = readings[readings["rank"].isna() & readings["metric"].isin(("energy_j", "power_w"))]
    of_launch = dict(iter(readings.groupby("launch_id")))
    names = ("launch_id", "counted", "device", "n_steps", "facts")
    rows = zip(*(launches[name] for name in names), strict=True)
    found = [
        _energy(device, n_steps, facts, of_launch.get(at)) if counted else (np.nan, None, "")
        for at, counted, device, n_steps, facts in rows
    ]
    return pd.DataFrame(found, launches.index, columns=["joules_per_step", "joules_source", "joules_reason"])


def _energy(device: str, n_steps: int, facts: object, own: pd.DataFrame | None) -> tuple[float, str | None, str]:
    if device == "cpu":
        return np.nan, None, "it ran on CPU cores, whose energy is not read"
    if own is None:
        return np.nan, None, "no energy of its devices was recorded"
    known = json_text.parsed(facts) if isinstance(facts, str) else {}
    begin, end = phases(known).get("measure", (np.nan, np.nan))
    if np.isnan(begin):
        return np.nan, None, "when the measured steps ran was not recorded"
    if why := too_short(begin, end):
        return np.nan, None, why
    devices = [group for _, group in own.groupby(["node", "device"])]
    for source, metric in ((COUNTER, "energy_j"), (POWER, "power_w")):
        spent = [joules_between(group[group["metric"] == metric], begin, end, source) for group in devices]
        if not any(np.isnan(joules) for joules, _ in spent):
            return sum(joules for joules, _ in spent) / n_steps, source, ""
        if why := next((why for _, why in spent if why), ""):
            return np.nan, None, why
    told = own["reason"].dropna()
    why = str(told.iloc[0]) if len(told) else "its devices were not read before and after the measured steps"
    return np.nan, None, why


def joules_between(rows: pd.DataFrame, begin: float, end: float, source: str) -> tuple[float, str]:
    """Return the joules of one device between two times, interpolated between its readings, and a reason.

    They are NaN if a reading before or after is missing, if a counter ran backwards, or, with the reason, if it moved
    too rarely.
    """
    rows = rows.assign(value=pd.to_numeric(rows["value"])).dropna(subset=["value"]).sort_values("t_s")
    t, value = rows["t_s"].to_numpy(float), rows["value"].to_numpy(float)
    if not len(t) or t[0] > begin or t[-1] < end:
        return np.nan, ""
    if source == COUNTER:
        if (np.diff(value) < 0).any():
            return np.nan, ""
        first, last = np.interp([begin, end], t, value)
        why = moves_too_few(begin, end, t, value)
        return (np.nan, why) if why else (float(last - first), "")
    inside = (t > begin) & (t < end)
    moments = np.concatenate(([begin], t[inside], [end]))
    return float(np.trapezoid(np.interp(moments, t, value), moments)), ""
