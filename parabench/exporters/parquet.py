"""Parquet tables, for pandas, DuckDB, Polars and Spark."""

from __future__ import annotations

import io

import pandas as pd

from parabench.analysis.collectives.bus import bus_table, measured
from parabench.analysis.session import SessionData


def tables(seen: SessionData) -> dict[str, bytes]:
    """`cases.parquet` and `launches.parquet`, as `best` and the report make them (docs/reference/report.md), and
    `samples.parquet`, the store's rows with the label of their case. Of a session of collectives `sizes.parquet`,
    `launches.parquet`, and `calls.parquet`. Seconds and bytes; unknown is null."""
    if seen.session.kind == "collectives":
        sizes = measured(seen.numbers)
        found = {"sizes": bus_table(sizes), "launches": sizes, "calls": seen.results.collective}
    else:
        labels = seen.numbers.set_index("launch_id")[["case", "label", "repetition"]]
        samples = seen.results.sample
        found = {
            "cases": seen.cases,
            "launches": seen.numbers,
            "samples": samples.join(labels, on="launch_id"),
        }
    return {f"{name}.parquet": _parquet(frame) for name, frame in found.items()}


def _parquet(frame: pd.DataFrame) -> bytes:
    """A column whose values are of several types, as only some cases have a number there, becomes text."""
    mixed = {
        name: frame[name].map(lambda value: None if pd.isna(value) else str(value))
        for name in frame.columns
        if frame[name].dtype == object and len({type(each) for each in frame[name].dropna()}) > 1
    }
    written = io.BytesIO()
    frame.assign(**mixed).reset_index(drop=True).to_parquet(written, engine="pyarrow", index=False)
    return written.getvalue()
