"""Compute the energy of a launch from readings of its devices: joules per measured step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from parabench import json_text
from parabench.store.record import Phase
from parabench.store.results import records

# The source of joules: the device's energy counter, or its power readings, integrated.
COUNTER, POWER = "energy counter", "power readings"
# The time that a device's power sensor and counter need. On A100 and H100 the sensor samples 25% of the time, the
# counter moves every 20 to 100 ms, and utilization is a mean of up to a second (Yang, Adamek, Armour, "Part-time Power
# Measurements", arXiv 2312.02741). The growth of a counter is off by one move at most, so 10 moves bound the error.
SENSOR_S = 2.0
SENSOR_MOVES = 10
NO_WINDOW = "when the measured steps ran was not recorded"


def phases(facts: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return {phase: (start, end)} in seconds after the launch began, for the phases that the launch reached."""
    began_s = (facts.get("clock") or {}).get("began_s")
    if began_s is None:
        return {}
    return {name: (begin - began_s, end - began_s) for name, (begin, end) in (facts.get("phases") or {}).items()}


def too_short(begin_s: float, end_s: float) -> str:
    """Return the reason if the measured steps are too short for sensors, or their times are NaN; else ''."""
    if end_s - begin_s >= SENSOR_S:
        return ""
    if np.isnan(end_s - begin_s):
        return NO_WINDOW
    return f"the measured steps took {end_s - begin_s:.2g} s, and the sensors need {SENSOR_S:g} s: measure longer"


def launch_energy(launches: pd.DataFrame, readings: pd.DataFrame) -> pd.DataFrame:
    """Return `joules_per_step` (over all devices), `joules_source` and `joules_reason` for each launch.

    `launches` has `launch_id`, `counted`, `device`, `n_steps` and `facts`; `readings` are rows of `device_sample`.
    Unknown energy is NaN with a reason. Launches that do not count have neither.
    """
    readings = readings[readings["rank"].isna() & readings["metric"].isin(("energy_j", "power_w"))]
    of_launch = dict(iter(readings.groupby("launch_id")))
    found = [
        _energy(launch, of_launch.get(launch["launch_id"])) if launch["counted"] else (np.nan, None, "")
        for launch in records(launches[["launch_id", "counted", "device", "n_steps", "facts"]])
    ]
    return pd.DataFrame(found, launches.index, columns=["joules_per_step", "joules_source", "joules_reason"])


def _energy(launch: Mapping[Any, Any], own: pd.DataFrame | None) -> tuple[float, str | None, str]:
    """Return (joules per step, source, reason) of a launch from its `own` readings."""
    if launch["device"] == "cpu":
        return np.nan, None, "it ran on CPU cores, whose energy is not read"
    if own is None:
        return np.nan, None, "no energy of its devices was recorded"
    window = phases(json_text.parsed(launch["facts"])).get(Phase.MEASURE)
    if window is None:
        return np.nan, None, NO_WINDOW
    whys = own["reason"].dropna().to_list()
    for source in (COUNTER, POWER):
        spent = [joules_between(device, *window, source) for _, device in own.groupby(["node", "device"])]
        if not any(np.isnan(joules) for joules, _ in spent):
            return sum(joules for joules, _ in spent) / launch["n_steps"], source, ""
        if why := next((why for _, why in spent if why), ""):
            return np.nan, None, why
    return np.nan, None, str([*whys, "its devices were not read before and after the measured steps"][0])


def joules_between(rows: pd.DataFrame, begin: float, end: float, source: str = COUNTER) -> tuple[float, str]:
    """Return (joules of one device between two times, ''), or (NaN, reason) if they are unknown.

    Readings are interpolated. The reason is empty if a reading before or after is missing, or if the counter ran
    backwards.
    """
    rows = rows[rows["metric"] == ("energy_j" if source == COUNTER else "power_w")]
    rows = rows.assign(value=pd.to_numeric(rows["value"])).dropna(subset=["value"]).sort_values("t_s")
    t, value = rows["t_s"].to_numpy(float), rows["value"].to_numpy(float)
    if why := too_short(begin, end):
        return np.nan, why
    if not len(t) or t[0] > begin or t[-1] < end or (source == COUNTER and (np.diff(value) < 0).any()):
        return np.nan, ""
    inside = (t > begin) & (t < end)
    if source == POWER:
        times = np.concatenate(([begin], t[inside], [end]))
        return float(np.trapezoid(np.interp(times, t, value), times)), ""
    # From the last reading before to the first one after.
    moves = int(np.count_nonzero(np.diff(value[(t >= t[t <= begin].max()) & (t <= t[t >= end].min())])))
    if moves < SENSOR_MOVES:
        needed = f"and {SENSOR_MOVES} are needed: measure longer"
        return np.nan, f"the energy counter moved {moves} times in the measured steps, {needed}"
    first, last = np.interp([begin, end], t, value)
    return float(last - first), ""
