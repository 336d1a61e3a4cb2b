"""DDP's logger next to our instruments: three spans of one instrumented step, measured by both.

- forward: to the end of the module's forward, without the loss
- backward: from there to the last gradient (DDP), or to the all-reduce of the last bucket (instruments)
- communication: from the first bucket until the last one is copied back (DDP) or reduced (instruments)
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import with_numbers
from parabench.store.record import Phase
from parabench.store.results import records

SPANS = ("forward", "backward", "communication")
_STEP = ["launch_id", "rank", "step"]


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
