"""A store as tidy tables, each read when it is first asked for: most of a large store nobody needs at once."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from parabench import __version__
from parabench.errors import UsageError
from parabench.store.digest import MEDIAN, SLOWEST, WHOLE
from parabench.store.record import Phase
from parabench.store.schema import APPLICATION_ID, SCHEMA_VERSION, TABLES

if TYPE_CHECKING:
    import pandas as pd


def _table(name: str) -> cached_property[pd.DataFrame]:
    """A table of `Results` with the columns of that name's."""
    return cached_property(lambda results: results._read(name))


@dataclass(frozen=True)
class Results:
    """A store's tables as DataFrames named like them. `environment`, `plan` and `facts` stay JSON text.

    `session`, `launch` and `finding` are few rows. `sample` may be millions: analysis takes `steps`, `medians`, `whole`
    and `instrumented`, which hold what it needs of them. `only` are SQL conditions, by table, for what is left out.
    Any that is read later raises UsageError where the file cannot be read any more.
    """

    path: Path
    session: pd.DataFrame
    launch: pd.DataFrame
    finding: pd.DataFrame
    only: Mapping[str, str] = field(default_factory=dict)

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

    @cached_property
    def steps(self) -> pd.DataFrame:
        """`launch_id, step, step_s` of every timed step, by launch and step. It takes as long as its slowest rank, so
        `step_s` is the maximum over ranks; NaN when a rank's is unknown."""
        table = self._digested(SLOWEST)
        return table[["launch_id", "place", "value"]].rename(columns={"place": "step", "value": "step_s"})

    @cached_property
    def medians(self) -> pd.DataFrame:
        """`launch_id, rank, phase, metric, value`: the median of `step_s` and of each part of it over a rank's timed
        steps."""
        return self._digested(MEDIAN).rename(columns={"place": "rank"})

    @cached_property
    def whole(self) -> pd.DataFrame:
        """`launch_id, rank, phase, metric, value` of the samples that belong to no step, such as peaks of memory."""
        return self._digested(WHOLE).rename(columns={"place": "rank"})

    def _read(self, name: str, where: str = "", order: str = "rowid") -> pd.DataFrame:
        known = f"+launch_id <= {self._newest}" if "launch_id" in TABLES[name].belongs_to else ""
        return _read_table(self.path, name, where, self.only.get(name, ""), known, order=order)

    @cached_property
    def _newest(self) -> int:
        """The last launch that `launch` has: a run may go on while its store is read, and what it adds is not ours.
        (The plus in `+launch_id` keeps SQLite from an index that it would have to sort by.)"""
        return int(self.launch["id"].max()) if len(self.launch) else 0

    def _digested(self, kind: str) -> pd.DataFrame:
        """One row a number: `launch_id, place, phase, metric, value`."""
        import numpy as np
        import pandas as pd

        packed = self._read("digest", f"kind = '{kind}'")
        counts = np.array([len(value) // 8 for value in packed["value"]], dtype=np.int64)
        names = {name: pd.Categorical(packed[name], packed[name].unique()) for name in ("phase", "metric")}
        return pd.DataFrame(
            {
                "launch_id": packed["launch_id"].to_numpy(np.int64).repeat(counts),
                "place": np.frombuffer(b"".join(packed["place"]), "<i8"),
                **{name: values.repeat(counts) for name, values in names.items()},
                "value": np.frombuffer(b"".join(packed["value"]), "<f8"),
            }
        )


def load(path: Path, only: Mapping[str, str] | None = None) -> Results:
    """A store to read. `only` are SQL conditions: of a table that it names no other rows are read.

    Raises UsageError when `path` is missing, no store, or of another schema.
    """
    _check_file(path)
    few = {name: _read_table(path, name) for name in ("session", "launch", "finding")}
    return Results(path, **few, only=only or {})


@contextlib.contextmanager
def open_to_read(path: Path) -> Iterator[sqlite3.Connection]:
    """The store at `path`, which nothing is written to. Raises UsageError when it is none."""
    with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
        check_store(db, path)
        yield db


def _read_table(path: Path, name: str, *conditions: str, order: str = "rowid") -> pd.DataFrame:
    import pandas as pd

    where = " AND ".join(f"({each})" for each in conditions if each) or "TRUE"
    try:
        with open_to_read(path) as db:
            return pd.read_sql_query(f"SELECT * FROM {name} WHERE {where} ORDER BY {order}", db)
    except (sqlite3.Error, pd.errors.DatabaseError) as error:
        raise UsageError(f"{path} cannot be read as a parabench store: {error}") from error


def check_store(db: sqlite3.Connection, path: Path) -> None:
    """Raise UsageError when the file is no store, or one of another schema."""
    try:
        application_id = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.OperationalError as error:
        # Not what it holds: another process has it locked, or the disk fails.
        raise UsageError(f"{path} cannot be read: {error}; see which process holds it, and try again") from error
    except sqlite3.DatabaseError as error:
        raise UsageError(f"{path} is not a parabench store: {error}; give the results.db of a run") from error
    if application_id != APPLICATION_ID:
        raise UsageError(f"{path} is not a parabench store; give the results.db of a run")
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{path} has schema {version}, and parabench {__version__} reads schema {SCHEMA_VERSION} only; "
            "use the version that wrote it, or another store"
        )
    if db.execute("SELECT count(*) FROM sqlite_master WHERE name IN ('session', 'launch', 'sample')").fetchone()[0] < 3:
        raise UsageError(f"{path} is an incomplete parabench store; remove it, or give the results.db of a run")


def _check_file(path: Path) -> None:
    """Raise UsageError where no store can be, with what is there instead."""
    remedy = "give the results.db of a run"
    if os.path.isfile(path):
        return
    if os.path.isdir(path):
        raise UsageError(f"{path} is a folder; {remedy}")
    raise UsageError(f"{path} {'is no file' if os.path.exists(path) else 'does not exist'}; {remedy}")
