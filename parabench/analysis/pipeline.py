"""A pipeline's bubble: what theory says of it, and what its ranks saw."""

from __future__ import annotations

from typing import Any

import pandas as pd

from parabench import json_text

BUSY = "stage_busy_share"
COLUMNS = ("case_id", "label", "stages", "microbatches", "schedule", "theory", "measured", "n_launches")


def bubbles(launches: pd.DataFrame, whole: pd.DataFrame) -> pd.DataFrame:
    """One row per case that ran as a pipeline, in the launches' order; none where there is no such case.

    `launches` is `numbers.numbers`, `whole` as `Results` has it. `stages`, `microbatches`, `schedule`: what ran;
    `theory` the bubble of that schedule where all stages take equally long and messages nothing
    (`plan/pipeline_schedule.py` derives it). A launch's bubble is 1 - the mean over its ranks of the share of a step in
    which they compute, messages and uneven stages included; `measured` is the median over the `n_launches` that count
    and of which every rank's share is known, NaN without any. All bubbles are shares of the whole time.
    """
    good = launches[launches["counted"]]
    good = good[good["facts"].str.contains('"pipeline"', regex=False, na=False)]
    told = {
        launch: pipeline for launch, facts in good.set_index("launch_id")["facts"].items() if (pipeline := _of(facts))
    }
    measured = _measured(whole[whole["launch_id"].isin(list(told))], good.set_index("launch_id")["world_size"])
    rows = []
    for case_id, group in good[good["launch_id"].isin(list(told))].groupby("case", sort=False):
        first = group.iloc[0]
        pipeline = told[first["launch_id"]]
        known = measured.reindex(group["launch_id"]).dropna()
        rows.append(
            {
                "case_id": case_id,
                "label": first["label"],
                **{name: pipeline[name] for name in ("stages", "microbatches", "schedule")},
                "theory": pipeline["bubble"],
                "measured": known.median(),
                "n_launches": len(known),
            }
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _of(facts: Any) -> dict[str, Any] | None:
    """What a launch's facts, JSON text or nothing, say of its pipeline."""
    read = json_text.parsed(facts) if isinstance(facts, str) else {}
    pipeline = read.get("pipeline")
    return pipeline if isinstance(pipeline, dict) else None


def _measured(whole: pd.DataFrame, ranks: pd.Series[int]) -> pd.Series[float]:
    """Each launch's bubble by its id; NaN where a rank's share is not known."""
    shares = whole[whole["metric"] == BUSY]
    groups = shares["value"].groupby(shares["launch_id"])
    return 1 - groups.mean().where(groups.count() == ranks.reindex(groups.size().index))
