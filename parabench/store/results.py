"""A store as tidy tables, each read when it is first asked for: most of a large store nobody needs at once."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parabench.errors import UsageError
from parabench.store.columns import Columns
from parabench.store.digest import MEDIAN, SLOWEST, WHOLE
from parabench.store.record import Phase
from parabench.store.schema import TABLES
from parabench.store.soundness import REMEDY, check_rows
from parabench.store.store import open_to_read

if TYPE_CHECKING:
    import pandas as pd


def _table(name: str) -> cached_property[pd.DataFrame]:
    """A table of `Results` with the columns of that name's."""
    return cached_property(lambda results: results._read(name))


def _frame(columns: str) -> cached_property[pd.DataFrame]:
    """The columns of `Results` of that name as a DataFrame."""
    return cached_property(lambda results: getattr(results, columns).frame())


@dataclass(frozen=True)
class Results:
    """A store's tables as DataFrames named like them. `environment`, `plan` and `facts` stay JSON text.

    `session`, `launch` and `finding` are few rows. `sample` may be millions: analysis takes `steps`, `medians`, `whole`
    and `instrumented`, which hold what it needs of them. What a quick answer needs is there as `Columns` too. `only`
    are SQL conditions, by table, for what is left out. Any that is read later raises UsageError where the file cannot
    be read any more.
    """

    path: Path
    session_columns: Columns
    launch_columns: Columns
    finding_columns: Columns
    only: Mapping[str, str] = field(default_factory=dict)
    # The sessions whose launches were looked at, whether they tell what launches tell.
    checked: set[int] = field(default_factory=set)

    session = _frame("session_columns")
    launch = _frame("launch_columns")
    finding = _frame("finding_columns")
    # All samples: of ten thousand cases more than fit into memory.
    sample = _table("sample")
    collective = _table("collective")
    device_sample = _table("device_sample")
    host_sample = _table("host_sample")
    span = _table("span")
    # What lies between each two ranks of a session, no row where nobody measured; and the messages that this is from.
    links = _table("link")
    link_messages = _table("link_message")

    @cached_property
    def instrumented(self) -> pd.DataFrame:
        """The samples of instrumented steps, with the columns of `sample`."""
        # In the order of their index, so that no other sample is looked at.
        return self._read("sample", f"phase = '{Phase.INSTRUMENT}'", "launch_id, rowid")

    # These are not kept: of many launches they are much, and whoever asks again has a DataFrame of them.
    @property
    def steps_columns(self) -> Columns:
        """`launch_id, step, step_s` of every timed step, by launch and step. It takes as long as its slowest rank, so
        `step_s` is the maximum over ranks; NaN when a rank's is unknown."""
        return self._steps(Phase.MEASURE)

    @property
    def settling_columns(self) -> Columns:
        """The same of the first steps of turns, which do not count."""
        return self._steps(Phase.SETTLE)

    def _steps(self, phase: Phase) -> Columns:
        found = self._digested(SLOWEST, f"phase = '{phase}'")
        return Columns({"launch_id": found["launch_id"], "step": found["rank"], "step_s": found["value"]})

    @property
    def medians_columns(self) -> Columns:
        """`launch_id, rank, phase, metric, value`: the median of `step_s` and of each part of it over a rank's timed
        steps."""
        return self._digested(MEDIAN)

    @property
    def whole_columns(self) -> Columns:
        """`launch_id, rank, phase, metric, value` of the samples that belong to no step, such as peaks of memory."""
        return self._digested(WHOLE)

    # The same as DataFrames.
    steps = _frame("steps_columns")
    medians = cached_property(lambda results: _categorical(results.medians_columns))
    whole = cached_property(lambda results: _categorical(results.whole_columns))

    def columns(self, name: str, where: str = "") -> Columns:
        """The rows of one of the store's tables that a condition of SQL holds of."""
        return _columns(self.path, name, *self._conditions(name, where))

    def _read(self, name: str, where: str = "", order: str = "rowid") -> pd.DataFrame:
        import pandas as pd

        with _selected(self.path, name, *self._conditions(name, where), order=order) as (db, query):
            return pd.read_sql_query(query, db)

    def _conditions(self, name: str, where: str) -> tuple[str, ...]:
        known = f"+launch_id <= {self._newest}" if "launch_id" in TABLES[name].belongs_to else ""
        return where, self.only.get(name, ""), known

    @cached_property
    def _newest(self) -> int:
        """The last launch that `launch` has: a run may go on while its store is read, and what it adds is not ours.
        (The plus in `+launch_id` keeps SQLite from an index that it would have to sort by.)"""
        return int(self.launch_columns["id"].max()) if len(self.launch_columns) else 0

    def _digested(self, kind: str, where: str = "TRUE") -> Columns:
        """One row a number: `launch_id, rank, phase, metric, value`; `rank` may be a step."""
        packed = self.columns("digest", f"kind = '{kind}' AND {where}")
        counts = np.array([len(value) // 8 for value in packed["value"]], dtype=np.int64)
        return Columns(
            {
                "launch_id": packed["launch_id"].astype(np.int64).repeat(counts),
                "rank": np.frombuffer(b"".join(packed["place"]), "<i8"),
                **{name: packed[name].repeat(counts) for name in ("phase", "metric")},
                "value": np.frombuffer(b"".join(packed["value"]), "<f8"),
            }
        )


def _categorical(digested: Columns) -> pd.DataFrame:
    import pandas as pd

    words = {name: digested[name] for name in ("phase", "metric")}
    return digested.assign(**{name: pd.Categorical(each, pd.unique(each)) for name, each in words.items()}).frame()


def load(path: Path, only: Mapping[str, str] | None = None) -> Results:
    """A store to read. `only` are SQL conditions: of a table that it names no other rows are read.

    Raises UsageError when `path` is missing, no store, or of another schema.
    """
    _check_file(path)
    session, launch, finding = (_columns(path, name) for name in ("session", "launch", "finding"))
    return Results(path, session, launch, finding, only or {})


@contextlib.contextmanager
def _selected(
    path: Path, name: str, *conditions: str, order: str = "rowid"
) -> Iterator[tuple[sqlite3.Connection, str]]:
    """The store and the query for the rows of a table that all conditions hold of; raises UsageError for one that
    cannot be read."""
    where = " AND ".join(f"({each})" for each in conditions if each) or "TRUE"
    try:
        with open_to_read(path) as db:
            check_rows(db, path, name, where)
            yield db, f"SELECT * FROM {name} WHERE {where} ORDER BY {order}"
    except Exception as error:
        # pandas has an error of its own for it.
        if isinstance(error, sqlite3.Error) or type(error).__name__ == "DatabaseError":
            raise UsageError(f"{path} cannot be read as a parabench store: {error}") from error
        raise


def _columns(path: Path, name: str, *conditions: str) -> Columns:
    with _selected(path, name, *conditions) as (db, query):
        found = db.execute(query)
        rows = _bounded(found, path, name) if name in WHOLE_TABLES else found
        return Columns.of([name for name, *_ in found.description], rows)


# What is read as a whole, of all sessions; and how many characters of text each may hold: 100,000 launches have half of
# that.
WHOLE_TABLES = ("session", "launch", "finding")
MOST_CHARACTERS = 512 << 20


def _bounded(rows: Iterable[Sequence[Any]], path: Path, name: str) -> Iterator[Sequence[Any]]:
    """The rows, as long as their texts fit into memory. Raises UsageError."""
    left = MOST_CHARACTERS
    for row in rows:
        left -= sum(len(each) for each in row if isinstance(each, (str, bytes)))
        if left < 0:
            raise UsageError(f"{path} cannot be read: {name} holds more text than fits into memory; {REMEDY}")
        yield row


def _check_file(path: Path) -> None:
    """Raise UsageError where no store can be, with what is there instead."""
    remedy = "give the results.db of a run"
    if os.path.isfile(path):
        return
    if os.path.isdir(path):
        raise UsageError(f"{path} is a folder; {remedy}")
    raise UsageError(f"{path} {'is not a file' if os.path.exists(path) else 'does not exist'}; {remedy}")
