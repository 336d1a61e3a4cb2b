"""DDP's logger next to our instruments: three spans of one instrumented step, measured by both.

- forward: to the end of the module's forward, without the loss
- backward: from there to the last gradient (DDP), or to the all-reduce of the last bucket (instruments)
- communication: from the first bucket until the last one is copied back (DDP) or reduced (instruments)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import with_numbers
from parabench.store.record import Phase
from parabench.store.results import records

SPANS = ("forward", "backward", "communication")
_STEP = ["launch_id", "rank", "step"]
# Two clocks of the same step agree within a few percent: at 2 ranks on shared CPUs, three of four spans within 5%.
# Hooks, and copying small buckets back, are between the timestamps of the two: mostly 0.1 to 0.7 ms on a CPU.
_DISAGREES, _DISAGREES_S = 0.20, 1e-3


def ddp_comparison(seen: SessionData) -> pd.DataFrame:
    """Return one row per rank and span of each launch that counts and has DDP's log.

    The columns are `launch_id, case_id, label, rank, step, span, ddp_s, ours_s` and `difference`, ddp / ours - 1.
    Unknown is NaN.
    """
    rows = []
    spans, calls = seen.rows("span"), seen.rows("collective")
    forward = spans[spans["name"] == "forward"].drop_duplicates(_STEP).set_index(_STEP)["start_s"].to_dict()
    buckets = with_numbers(calls[calls["bucket"].notna() & (calls["phase"] == Phase.INSTRUMENT)])
    of_step: dict[Any, list[dict[Any, Any]]] = {}
    for call in records(buckets[[*_STEP, "made_s", "start_s", "duration_s"]]):
        of_step.setdefault(tuple(call[name] for name in _STEP), []).append(call)
    for launch in records(seen.of_launch):
        for log in seen.facts[launch["launch_id"]].get("ddp_logger", []):
            step = launch["launch_id"], log["rank"], log["step"]
            ended = math.nan if log["forward_end_s"] is None else log["forward_end_s"]
            # With gradient accumulation, the logged backward has only the buckets after the last forward.
            made = [call for call in of_step.get(step, []) if call["made_s"] >= ended]
            first, last = (pick((call["made_s"] for call in made), default=math.nan) for pick in (min, max))
            ends = [call["start_s"] + call["duration_s"] for call in made]
            end = math.nan if any(map(math.isnan, ends)) else max(ends, default=math.nan)
            ours = {
                "forward": ended - forward.get(step, math.nan),
                "backward": last - ended,
                "communication": end - first,
            }
            own = launch | {"rank": log["rank"], "step": log["step"]}
            rows += [own | {"span": span, "ddp_s": log[f"{span}_s"], "ours_s": ours[span]} for span in SPANS]
    table = pd.DataFrame(rows, columns=["launch_id", "case_id", "label", "rank", "step", "span", "ddp_s", "ours_s"])
    table = table.astype({"ddp_s": float, "ours_s": float})
    return table.assign(difference=table["ddp_s"] / table["ours_s"] - 1)


def ddp_disagreements(seen: SessionData) -> pd.DataFrame:
    """Return one row per case and span: the medians, and the number of pairs that differ `alike`."""
    pairs = seen.once(ddp_comparison).dropna(subset="difference")
    key = ["case_id", "label", "span"]
    medians = pairs.groupby(key, sort=False)[["ddp_s", "ours_s"]].transform("median")
    same_sign = (pairs["ddp_s"] > pairs["ours_s"]) == (medians["ddp_s"] > medians["ours_s"])
    groups = pairs.assign(alike=_apart(pairs) & same_sign).groupby(key, sort=False)
    found = groups[["ddp_s", "ours_s"]].median().assign(alike=groups["alike"].sum(), pairs=groups.size())
    return found.assign(disagrees=_apart(found)).reset_index()


def _apart(table: pd.DataFrame) -> pd.Series[bool]:
    """Return whether the times of each row differ by more than the measurement explains."""
    return (table["ddp_s"] - table["ours_s"]).abs() > np.maximum(_DISAGREES * table["ours_s"], _DISAGREES_S)
