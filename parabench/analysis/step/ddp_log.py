"""DDP's own logger next to our instruments: the same three spans of one instrumented step, measured twice.

- forward: from its start to the end of the module's forward, without the loss.
- backward: from there to the last gradient; ours ends when the all-reduce of the last bucket is called.
- communication: from the first bucket to the last; theirs ends after the buckets are copied back into the gradients,
  ours when the last bucket is reduced.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import with_numbers
from parabench.store.record import Finding, Phase
from parabench.store.results import records

SPANS = ("forward", "backward", "communication")
# Two clocks of the same step agree within a few percent: at 2 ranks on shared CPUs, three of four spans within 5%.
DISAGREES = 0.20
# Hooks, and copying small buckets back, are between the timestamps of the two: mostly 0.1 to 0.7 ms on a CPU.
DISAGREES_S = 1e-3
_STEP = ["launch_id", "rank", "step"]
_CASE = ["case_id", "label", "span"]


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
    # With gradient accumulation, only the buckets after the last forward are of the logged backward.
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


def ddp_spans(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per case and span of a `ddp_comparison` that both measured, with medians over launches and ranks
    and their difference."""
    groups = table.dropna(subset=["difference"]).groupby(_CASE, sort=False)
    spans = groups[["ddp_s", "ours_s"]].median().assign(launches=groups["launch_id"].nunique()).reset_index()
    return spans.assign(difference=spans["ddp_s"] / spans["ours_s"] - 1)


def findings(seen: SessionData) -> Iterator[Finding]:
    """Yield spans for which DDP and the instruments disagree, in the median and in most of the pairs."""
    table = seen.once(ddp_comparison).dropna(subset=["difference"])
    for (case_id, label, span), pairs in table.groupby(_CASE, sort=False):
        theirs, ours = pairs["ddp_s"].median(), pairs["ours_s"].median()
        apart = (pairs["ddp_s"] - pairs["ours_s"]).abs() > np.maximum(DISAGREES * pairs["ours_s"], DISAGREES_S)
        alike = int((apart & ((pairs["ddp_s"] > pairs["ours_s"]) == (theirs > ours))).sum())
        if abs(theirs - ours) > max(DISAGREES * ours, DISAGREES_S) and alike > max(1, len(pairs) / 2):
            yield Finding(
                code="ddp_disagrees",
                message=f"{label}: DDP's logger reports {format.milliseconds(theirs)} of {span} in an "
                f"instrumented step, the instruments {format.milliseconds(ours)} (in {alike} of "
                f"{format.count(len(pairs), 'pair')}).",
                advice="One of them is wrong, or they measure different spans (docs/explanation/instruments.md): only "
                "one includes a forward hook of your own, and on a busy host a rank may lose its core between two "
                "readings of the clock. Trust neither until you know which.",
                case_id=str(case_id),
            )
