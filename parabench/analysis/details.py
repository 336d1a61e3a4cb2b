"""Make the detail tables of a session: its steps, its collective calls, and the memory of its ranks.

docs/reference/numbers.md lists the columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from parabench.analysis.numbers import COLUMNS, PEAKS
from parabench.analysis.session import SessionData
from parabench.metrics import METRICS, STATE_PARTS, STEP_PARTS
from parabench.store.record import Phase

# The first columns of all detail tables.
_LAUNCH = {name: COLUMNS[name] for name in ("launch_id", "case", "label", "repetition")}

STEPS = {
    **_LAUNCH,
    "phase": "`warmup`, `settle` (discarded), `measure`, `instrument` or `profile`",
    "step": "number of the step in its launch",
    "rank": "the rank",
    **{name: METRICS[name].meaning for name in ("step_s", *STEP_PARTS, "loss")},
}
CALLS = {
    **_LAUNCH,
    "rank": "the rank",
    "step": "the instrumented step; for `parabench collectives`, counts the rows of one size, form and phase",
    "seq": "index of the call on the rank",
    "op": "the operation",
    "algorithm": "the algorithm that ran",
    "group_size": "number of ranks in the group",
    "bytes": "size of the whole buffer, as in nccl-tests",
    "start_s": "when the call started to run, on the clock that all processes of a host share",
    "duration_s": "how long it ran",
    "phase": "`instrument`; for `parabench collectives`, `warmup` or `measure`; `flight` for a flight recorder",
    "in_place": "1 if the result overwrites the input; only for `parabench collectives`",
    "n_wrong": "number of wrong elements on this rank; unknown if they were not checked",
    "ranks": "the ranks in the group: `0-3` or `0,2`",
    "dtype": "type of the elements",
    "made_s": "when the rank made the call",
    "bucket": "number of DDP's bucket",
    "ready_s": "when the last gradient of the bucket was ready",
    "calls": "number of consecutive calls in the row; `duration_s` is their mean",
}
MEMORY = {**_LAUNCH, "rank": "the rank", **{name: METRICS[name].meaning for name in (*PEAKS, *STATE_PARTS)}}


def step_table(seen: SessionData) -> pd.DataFrame:
    """Return one row per launch, step and rank, with the columns of STEPS."""
    return _pivoted(seen, STEPS, ["launch_id", "phase", "step", "rank"], "step IS NOT NULL")


def call_table(seen: SessionData) -> pd.DataFrame:
    """Return one row per collective call of a rank, with the columns of CALLS."""
    return _with_case(seen, seen.results.collective, CALLS)


def memory_table(seen: SessionData) -> pd.DataFrame:
    """Return one row per launch and rank, with the columns of MEMORY."""
    return _pivoted(seen, MEMORY, ["launch_id", "rank"], f"step IS NULL AND phase = '{Phase.MEASURE}'")


def _pivoted(seen: SessionData, columns: dict[str, str], keys: Sequence[str], where: str) -> pd.DataFrame:
    """Return one row per combination of `keys` in the table `sample`, with its metrics as columns."""
    metrics = [name for name in columns if name in METRICS]
    names = ", ".join(f"'{name}'" for name in metrics)
    rows = seen.results.read("sample", f"{where} AND metric IN ({names})")
    rows = rows.astype({"value": float, **{name: int for name in keys if name != "phase"}})
    found = rows.groupby([*keys, "metric"], sort=False)["value"].first().unstack("metric").reindex(columns=metrics)
    return _with_case(seen, found.rename_axis(columns=None).reset_index(), columns)


def _with_case(seen: SessionData, rows: pd.DataFrame, columns: dict[str, str]) -> pd.DataFrame:
    """Return the rows with the columns of their launch, in the order of `columns`."""
    of_launch = seen.numbers.drop_duplicates("launch_id")[list(_LAUNCH)]
    return rows.merge(of_launch, on="launch_id")[list(columns)]
