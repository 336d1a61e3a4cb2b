"""The bubble of a pipeline: theory, and the share of a step that its ranks do not compute."""

from __future__ import annotations

import pandas as pd

from parabench.analysis.session import SessionData

_TOLD = {"stages": "stages", "microbatches": "microbatches", "schedule": "schedule", "theory": "bubble"}


def bubbles(seen: SessionData) -> pd.DataFrame:
    """Return one row per configuration that ran as a pipeline, in order of launch.

    The columns are `case_id, label, stages, microbatches, schedule, theory, measured, n_launches`. `theory` assumes
    equal stages and free messages. `measured` is 1 - the mean share of computing over ranks. It is the median over
    launches.
    """
    told = {at: found for at in seen.counted["launch_id"] if (found := seen.facts[at].get("pipeline"))}
    good = seen.counted[seen.counted["launch_id"].isin(list(told))]
    whole = seen.results.whole
    busy = whole[whole["metric"] == "stage_busy_share"].groupby("launch_id")["value"].agg(["mean", "count"])
    busy = busy.reindex(good["launch_id"]).set_index(good.index)
    table = good.assign(
        **{name: [told[at][key] for at in good["launch_id"]] for name, key in _TOLD.items()},
        measured=1 - busy["mean"].where(busy["count"] == good["world_size"]),
    )
    groups = table.groupby("case", sort=False)
    found = (
        groups[["label", *_TOLD]]
        .first()
        .assign(measured=groups["measured"].median(), n_launches=groups["measured"].count())
    )
    return found.rename_axis("case_id").reset_index()
