"""DDP's logger next to our instruments: three spans of one instrumented step, measured by both.

- forward: to the end of the module's forward, without the loss
- backward: from there to the last gradient (DDP), or to the all-reduce of the last bucket (instruments)
- communication: from the first bucket until the last one is copied back (DDP) or reduced (instruments)
"""

from __future__ import annotations

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
    logged = [
        launch | log
        for launch in records(seen.of_launch)
        for log in seen.facts[launch["launch_id"]].get("ddp_logger", [])
    ]
    times = ["forward_end_s", *(f"{span}_s" for span in SPANS)]
    logs = pd.DataFrame(logged, columns=[*_STEP, "case_id", "label", *times]).astype(dict.fromkeys(times, float))
    spans = seen.rows("span")
    begin = spans[spans["name"] == "forward"].groupby(_STEP)["start_s"].first().rename("begin")
    calls = with_numbers(seen.rows("collective"))
    calls = calls[calls["bucket"].notna() & (calls["phase"] == Phase.INSTRUMENT)]
    calls = calls.assign(end_s=calls["start_s"] + calls["duration_s"]).merge(logs[[*_STEP, "forward_end_s"]], on=_STEP)
    # With gradient accumulation, the logged backward has only the buckets after the last forward.
    by_step = calls[calls["made_s"] >= calls["forward_end_s"]].groupby(_STEP)
    buckets = by_step.agg(first=("made_s", "min"), last=("made_s", "max"), end=("end_s", "max"))
    buckets["end"] = buckets["end"].where(by_step["end_s"].count() == by_step.size())
    logs = logs.join(begin.astype(float), on=_STEP).join(buckets.astype(float), on=_STEP)
    ours = {
        "forward": logs["forward_end_s"] - logs["begin"],
        "backward": logs["last"] - logs["forward_end_s"],
        "communication": logs["end"] - logs["first"],
    }
    rows = [
        logs[[*_STEP, "case_id", "label"]].assign(span=span, ddp_s=logs[f"{span}_s"], ours_s=ours[span])
        for span in SPANS
    ]
    table = pd.concat(rows).sort_index(kind="stable", ignore_index=True)
    return table.assign(difference=table["ddp_s"] / table["ours_s"] - 1)
