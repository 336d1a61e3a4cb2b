"""DDP's own logger beside our instruments: the same three spans of one instrumented step, measured twice.

- forward: from its begin to the end of the module's, where DDP lets backward begin; computing the loss is in neither.
- backward: from there to the last gradient; ours ends when the last bucket is called for.
- communication: from the first bucket to the last; theirs ends after the buckets are copied back into the gradients,
  ours when the last of them is reduced.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import with_numbers
from parabench.store.record import Finding, Phase

SPANS = ("forward", "backward", "communication")
# Two clocks that see the same step agree within a few percent: at 2 ranks on shared CPUs three spans in four by 5%.
DISAGREES = 0.20
# What lies between the two instruments' moments: hooks, and copying small buckets back, mostly 0.1 to 0.7 ms on a CPU.
DISAGREES_S = 1e-3
_STEP = ["launch_id", "rank", "step"]
COLUMNS = ["launch_id", "case_id", "label", "rank", "step", "span", "ddp_s", "ours_s", "difference"]


def ddp_comparison(seen: SessionData) -> pd.DataFrame:
    """Return one row per rank and span of each launch that counts and has DDP's log, with COLUMNS.

    `ddp_s` and `ours_s` are seconds, `difference` is ddp / ours - 1; unknown is NaN.
    """
    told = pd.DataFrame(
        [
            launch | each
            for launch in seen.of_launch.to_dict("records")
            for each in seen.facts[launch["launch_id"]].get("ddp_logger", [])
        ],
        columns=[*COLUMNS[:5], "forward_end_s", *(f"{span}_s" for span in SPANS)],
    ).astype(dict.fromkeys(("forward_end_s", *(f"{span}_s" for span in SPANS)), float))
    spans = seen.rows("span")
    begins = spans[spans["name"] == "forward"].groupby(_STEP)["start_s"].first()
    calls = with_numbers(seen.rows("collective"))
    calls = calls[calls["bucket"].notna() & (calls["phase"] == Phase.INSTRUMENT)]
    calls = calls.assign(end_s=calls["start_s"] + calls["duration_s"]).merge(told[[*_STEP, "forward_end_s"]], on=_STEP)
    # With gradient accumulation, `begins` is unknown, and buckets count from the end of the last forward.
    by_step = calls[calls["made_s"] >= calls["forward_end_s"]].groupby(_STEP)
    ends = by_step["end_s"].agg(lambda each: each.max(skipna=False))
    times = {"begin": begins, "first": by_step["made_s"].min(), "last": by_step["made_s"].max(), "end": ends}
    known = told.join(pd.DataFrame(times, dtype=float), on=_STEP)
    ours = {
        "forward": known["forward_end_s"] - known["begin"],
        "backward": known["last"] - known["forward_end_s"],
        "communication": known["end"] - known["first"],
    }
    rows = [told[COLUMNS[:5]].assign(span=name, ddp_s=told[f"{name}_s"], ours_s=ours[name]) for name in SPANS]
    table = pd.concat(rows).sort_index(kind="stable", ignore_index=True)
    return table.assign(difference=table["ddp_s"] / table["ours_s"] - 1)


def ddp_spans(table: pd.DataFrame) -> pd.DataFrame:
    """One row per case and span of a `ddp_comparison` that both tell: medians over launches and ranks, and how far they
    differ."""
    table = table.dropna(subset=["difference"])
    groups = table.groupby(["case_id", "label", "span"], sort=False)
    spans = groups[["ddp_s", "ours_s"]].median().assign(launches=groups["launch_id"].nunique()).reset_index()
    return spans.assign(difference=spans["ddp_s"] / spans["ours_s"] - 1)


def findings(seen: SessionData) -> Iterator[Finding]:
    """Yield spans for which DDP and the instruments disagree, in the median and in most of the pairs.

    One rank that lost its core pulls the median of few.
    """
    table = seen.once(ddp_comparison).dropna(subset=["difference"])
    for (case_id, label, span), pairs in table.groupby(["case_id", "label", "span"], sort=False):
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
