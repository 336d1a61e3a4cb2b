"""Parquet tables, for pandas, DuckDB, Polars and Spark."""

from __future__ import annotations

import io

import pandas as pd

from parabench.analysis.collectives.bus import bus_table, measured
from parabench.analysis.session import SessionData


def export(seen: SessionData) -> dict[str, bytes]:
    """Return the tables `cases`, `launches` and `samples`, or `sizes`, `launches` and `calls` of collectives.

    The columns are in docs/reference/report.md and docs/reference/store.md. Units are seconds and bytes; unknown values
    are null.
    """
    if seen.session.kind == "collectives":
        sizes = measured(seen.numbers)
        found = {"sizes": bus_table(sizes), "launches": sizes, "calls": seen.results.collective}
    else:
        labels = seen.numbers.set_index("launch_id")[["case", "label", "repetition"]]
        samples = seen.results.sample.join(labels, on="launch_id")
        found = {"cases": seen.cases, "launches": seen.numbers, "samples": samples}
    return {f"{name}.parquet": _parquet(frame) for name, frame in found.items()}


def _parquet(frame: pd.DataFrame) -> bytes:
    """Return a table as Parquet. Columns with values of several types become text."""
    mixed = {
        name: frame[name].map(lambda value: None if pd.isna(value) else str(value))
        for name in frame.columns
        if frame[name].dtype == object and len({type(each) for each in frame[name].dropna()}) > 1
    }
    written = io.BytesIO()
    frame.assign(**mixed).reset_index(drop=True).to_parquet(written, engine="pyarrow", index=False)
    return written.getvalue()
