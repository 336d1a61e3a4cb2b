"""Read a results database as pandas tables. Each table is read when it is first used."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import numpy as np
import pandas as pd

from parabench.store.database import KIND_OF_SESSION, LISTED, MEDIAN, SLOWEST, TABLES, WHOLE, open_to_read

_GROWING = ("session", "launch", "finding")


def records(table: pd.DataFrame, names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the rows as dictionaries with Python's types, with all columns or `names`. Unknown numbers are NaN."""
    rows = (table[[*names]] if names else table).to_numpy(dtype=object).tolist()
    names = names or [*map(str, table)]
    return [dict(zip(names, row, strict=True)) for row in rows]


def known_records(table: pd.DataFrame, names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the rows as `records` does, with None for unknown values."""
    rows = records(table, names)
    return [{name: None if value is pd.NA or value != value else value for name, value in row.items()} for row in rows]


def _table(name: str) -> cached_property[pd.DataFrame]:
    return cached_property(lambda results: results.read(name))


@dataclass(frozen=True)
class Results:
    """The tables of a results database, as DataFrames with the names and columns of the database.

    - `listed`: all sessions (id, label, suite and times)
    - `newest`: the last row of some tables when the database was opened, because later rows are not read
    - `only`: SQL conditions by table
    - `sessions`: the ids of the sessions in the tables; None for all
    - `steps`, `medians`, `whole`: the needed parts of `sample`, which can have millions of rows

    Reading a table raises UsageError if the file cannot be read.
    """

    path: Path
    listed: pd.DataFrame
    newest: Mapping[str, int]
    only: Mapping[str, str] = field(default_factory=dict)
    sessions: frozenset[int] | None = None
    _whole: Results | None = field(default=None, repr=False, compare=False)

    @property
    def whole_store(self) -> Results:
        """Return the results of all sessions."""
        return self._whole or self

    def of(self, sessions: Iterable[int]) -> Results:
        """Return the results of these sessions only. Equal sets give the same object, so that tables are read once."""
        whole, chosen = self.whole_store, frozenset(sessions)
        if chosen.issuperset(whole.listed["id"]):
            return whole
        if chosen not in whole._narrowed:
            whole._narrowed[chosen] = replace(whole, sessions=chosen, _whole=whole)
        return whole._narrowed[chosen]

    @cached_property
    def _narrowed(self) -> dict[frozenset[int], Results]:
        return {}

    def of_kind(self, kind: str) -> list[int]:
        """Return the ids of the sessions that measured `kind`, such as training or collectives."""
        condition = f"{KIND_OF_SESSION} = '{kind}'"
        condition += f" OR {KIND_OF_SESSION} IS NULL" if kind == "training" else ""
        return [int(each) for each in self.read("session", condition, ("id",))["id"]]

    session = _table("session")
    launch = _table("launch")
    finding = _table("finding")
    sample = _table("sample")
    collective = _table("collective")
    device_sample = _table("device_sample")
    host_sample = _table("host_sample")
    span = _table("span")
    links = _table("link")
    link_messages = _table("link_message")

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Return `launch_id, step, step_s` for each measured step.

        `step_s` are the seconds on the slowest rank; NaN if the time on a rank is unknown.
        """
        found = self._digested(SLOWEST)
        # A step of 0 s was not measured.
        step_s = found["value"].where(found["value"] > 0)
        return pd.DataFrame({"launch_id": found["launch_id"], "step": found["rank"], "step_s": step_s})

    @cached_property
    def medians(self) -> pd.DataFrame:
        """Return `launch_id, rank, phase, metric, value`: medians of step times and parts over measured steps."""
        return self._digested(MEDIAN)

    @cached_property
    def whole(self) -> pd.DataFrame:
        """Return `launch_id, rank, phase, metric, value` of the samples without a step, such as memory peaks."""
        return self._digested(WHOLE)

    def read(self, name: str, where: str = "TRUE", names: Sequence[str] = ("*",)) -> pd.DataFrame:
        """Return the rows of a table that meet an SQL condition, with all columns or those in `names`."""
        conditions = " AND ".join(f"({each})" for each in (where, self.only.get(name, "TRUE"), *self._scope(name)))
        order = "launch_id, rowid" if "launch_id" in TABLES[name] and name != "finding" else "rowid"
        query = f"SELECT {', '.join(names)} FROM {name} WHERE {conditions} ORDER BY {order}"
        with open_to_read(self.path) as db:
            return _frame(db, query, name)

    def _scope(self, name: str) -> list[str]:
        """Return SQL conditions for the chosen sessions, and for rows from before the database was opened."""
        own = None if self.sessions is None else f"IN ({', '.join(map(str, sorted(self.sessions)))})"
        # A plus keeps SQLite from searching by this column: nearly all rows meet the condition.
        if name == "session":
            return [f"+id <= {self.newest['session']}", *([f"id {own}"] if own else [])]
        if "session_id" in TABLES[name]:
            newest = [f"+rowid <= {self.newest[name]}"] if name in _GROWING else []
            return [*newest, *([f"session_id {own}"] if own else [])]
        of_launch = f"launch_id IN (SELECT id FROM launch WHERE session_id {own})"
        return [f"+launch_id <= {self.newest['launch']}", *([of_launch] if own else [])]

    def _digested(self, kind: str) -> pd.DataFrame:
        """Return one row per number of this kind of digest: `launch_id, rank, phase, metric, value`.

        For SLOWEST, `rank` is a step.
        """
        packed = self.read("digest", f"kind = '{kind}'")
        counts = packed["value"].map(len).to_numpy(dtype=np.int64) // 8
        repeated = {name: packed[name].to_numpy().repeat(counts) for name in ("launch_id", "phase", "metric")}
        rank, value = (b"".join(packed[name]) for name in ("place", "value"))
        found = {"rank": np.frombuffer(rank, "<i8"), "value": np.frombuffer(value, "<f8"), **repeated}
        return pd.DataFrame(found)[["launch_id", "rank", "phase", "metric", "value"]]


def _frame(db: sqlite3.Connection, query: str, table: str) -> pd.DataFrame:
    """Return the rows of a query. Unknown values are None in columns of text, and NaN in columns of numbers."""
    cursor = db.execute(query)
    names, rows = [name for name, *_ in cursor.description], cursor.fetchall()
    types = {"id": int, **TABLES[table]}
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return pd.DataFrame(
        {name: pd.Series(list(of), dtype=_dtype(types[name], of)) for name, of in zip(names, columns, strict=True)}
    )


def _dtype(hint: Any, values: Sequence[Any]) -> type:
    """Return the type of a column from its annotation: object for text and bytes, otherwise int or float."""
    kinds = set(get_args(hint) or (hint,)) - {NoneType}
    if not all(issubclass(kind, (int, float)) for kind in kinds):
        return object
    return int if int in kinds and None not in values else float


def load(path: Path, only: Mapping[str, str] | None = None) -> Results:
    """Return the results of a database. `only` has SQL conditions by table.

    Raises UsageError if `path` is missing, is not a results database or has another schema.
    """
    with open_to_read(path) as db:
        db.execute("BEGIN")  # one snapshot
        listed = _frame(db, f"SELECT id, {', '.join(LISTED)} FROM session ORDER BY id", "session")
        newest = {name: db.execute(f"SELECT coalesce(max(rowid), 0) FROM {name}").fetchone()[0] for name in _GROWING}
    return Results(path, listed, newest, only or {})
