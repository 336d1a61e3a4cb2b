"""DDP's own logger beside our instruments: the same three spans of one instrumented step, measured twice.

- forward: from its begin to the end of the module's, where DDP lets backward begin; computing the loss is in neither.
- backward: from there to the last gradient; ours ends when the last bucket is called for.
- communication: from the first bucket to the last; theirs ends after the buckets are copied back into the gradients,
  ours when the last of them is reduced.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis.session import SessionData
from parabench.analysis.text import format
from parabench.store.record import Finding, Phase

# A launch, a rank and a step of it.
Step = tuple[int, int, int]

SPANS = ("forward", "backward", "communication")
# Two clocks that see the same step agree within a few percent: at 2 ranks on shared CPUs three spans in four by 5 %.
DISAGREES = 0.20
# What lies between the two instruments' moments: hooks, and copying small buckets back, mostly 0.1 to 0.7 ms on a CPU.
DISAGREES_S = 1e-3
COLUMNS = ["launch_id", "case_id", "label", "rank", "step", "span", "ddp_s", "ours_s", "difference"]


def ddp_comparison(seen: SessionData) -> pd.DataFrame:
    """One row per rank and span of every launch that counts and has DDP: `launch_id, case_id, label, rank, step, span`,
    `ddp_s` and `ours_s` in seconds, `difference` = ddp / ours - 1. Unknown is NaN."""
    rows: list[dict[str, Any]] = []
    calls = seen.rows("collective")
    calls = calls[calls["bucket"].notna() & (calls["phase"] == Phase.INSTRUMENT)]
    moments = [pd.to_numeric(calls[name]).astype(float) for name in ("made_s", "start_s", "duration_s")]
    calls_of: dict[Step, list[tuple[float, float]]] = {}
    for key, made, start, duration in zip(_steps(calls), *moments, strict=True):
        calls_of.setdefault(key, []).append((made, start + duration))
    forward = seen.rows("span").loc[lambda spans: spans["name"] == "forward"]
    begins: dict[Step, float] = {}
    for key, begin in zip(_steps(forward), forward["start_s"], strict=True):
        begins.setdefault(key, begin)
    for launch in seen.of_launch.to_dict("records"):
        for told in seen.facts[launch["launch_id"]].get("ddp_logger", []):
            key = launch["launch_id"], told["rank"], told["step"]
            ours = _ours(told["forward_end_s"], begins.get(key, math.nan), calls_of.get(key, []))
            for name, ours_s in zip(SPANS, ours, strict=True):
                theirs = told[f"{name}_s"]
                rows.append(
                    {
                        **{of: launch[of] for of in ("launch_id", "case_id", "label")},
                        **{of: told[of] for of in ("rank", "step")},
                        "span": name,
                        "ddp_s": np.nan if theirs is None else theirs,
                        "ours_s": ours_s,
                    }
                )
    table = pd.DataFrame(rows, columns=COLUMNS[:-1])
    return table.assign(difference=table["ddp_s"].astype(float) / table["ours_s"].astype(float) - 1)


def ddp_spans(table: pd.DataFrame) -> pd.DataFrame:
    """One row per case and span of a `ddp_comparison` that both tell: medians over launches and ranks, and how far they
    differ."""
    table = table.dropna(subset=["difference"])
    groups = table.groupby(["case_id", "label", "span"], sort=False)
    spans = groups[["ddp_s", "ours_s"]].median().assign(launches=groups["launch_id"].nunique()).reset_index()
    return spans.assign(difference=spans["ddp_s"] / spans["ours_s"] - 1)


def findings(seen: SessionData) -> Iterator[Finding]:
    """Where DDP and we say different things of the same steps: in the median over a case's launches and ranks, and in
    most of them in that direction, for a rank that lost its core once pulls the median of few."""
    table = seen.once(ddp_comparison).dropna(subset=["difference"])
    pairs: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for *of, theirs, ours in table[["case_id", "label", "span", "ddp_s", "ours_s"]].itertuples(index=False):
        pairs.setdefault((of[0], of[1], of[2]), []).append((theirs, ours))
    for (case_id, label, span), group in pairs.items():
        theirs, ours = (statistics.median(each) for each in zip(*group, strict=True))
        alike = sum(_apart(*pair) and (pair[0] > pair[1]) == (theirs > ours) for pair in group)
        if _apart(theirs, ours) and alike > len(group) / 2 and alike > 1:
            yield Finding(
                code="ddp_disagrees",
                message=f"{label}: DDP's logger reports {format.milliseconds(theirs)} of {span} in an "
                f"instrumented step, the instruments {format.milliseconds(ours)} (in {alike} of "
                f"{format.count(len(group), 'pair')}).",
                advice="One of them is wrong, or they measure different spans (docs/explanation/instruments.md): only "
                "one includes a forward hook of your own, and on a busy host a rank may lose its core between two "
                "readings of the clock. Trust neither until you know which.",
                case_id=str(case_id),
            )


def _apart(theirs: float, ours: float) -> bool:
    """Whether two seconds of one span disagree."""
    return abs(theirs - ours) > max(DISAGREES * ours, DISAGREES_S)


def _steps(rows: pd.DataFrame) -> Iterator[Step]:
    """The launch, rank and step of each row."""
    return zip(rows["launch_id"], rows["rank"], rows["step"], strict=True)


def _ours(forward_end: float, begin: float, calls: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Our seconds of SPANS, of `calls` of buckets by when they were made and ended. Where forward and backward take
    turns, no span tells when the last forward began, so that `begin` is NaN; buckets count from its end."""
    later = [call for call in calls if call[0] >= forward_end]
    made, ends = [made for made, _ in later], [end for _, end in later]
    end = max(ends, default=math.nan) if not any(map(math.isnan, ends)) else math.nan
    return forward_end - begin, max(made, default=math.nan) - forward_end, end - min(made, default=math.nan)
