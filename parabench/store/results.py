"""A store as tidy tables, each read when it is first asked for: most of a large store nobody needs at once."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parabench import __version__
from parabench.errors import UsageError
from parabench.store.digest import MEDIAN, SLOWEST, WHOLE, Digest
from parabench.store.record import Phase
from parabench.store.schema import APPLICATION_ID, SCHEMA_VERSION

if TYPE_CHECKING:
    import pandas as pd


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

    @cached_property
    def sample(self) -> pd.DataFrame:
        """All samples: of ten thousand cases more than fit into memory."""
        return self._table("sample")

    @cached_property
    def collective(self) -> pd.DataFrame:
        """Every call that was timed or seen."""
        return self._table("collective")

    @cached_property
    def device_sample(self) -> pd.DataFrame:
        """Readings of devices."""
        return self._table("device_sample")

    @cached_property
    def host_sample(self) -> pd.DataFrame:
        """Readings of the host."""
        return self._table("host_sample")

    @cached_property
    def span(self) -> pd.DataFrame:
        """What ranks did in instrumented steps."""
        return self._table("span")

    @cached_property
    def links(self) -> pd.DataFrame:
        """What lies between each two ranks of a session, with the columns of `link`; no row where nobody measured."""
        return _read_table(self.path, "link", self.only.get("link", ""))

    @cached_property
    def link_messages(self) -> pd.DataFrame:
        """Every message from which `links` follows, with the columns of `link_message`."""
        return _read_table(self.path, "link_message", self.only.get("link_message", ""))

    @cached_property
    def instrumented(self) -> pd.DataFrame:
        """The samples of instrumented steps, with the columns of `sample`."""
        # In the order of their index, so that no other sample is looked at.
        return self._table("sample", f"phase = '{Phase.INSTRUMENT}'", "launch_id, rowid")

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

    def _table(self, name: str, where: str = "", order: str = "rowid") -> pd.DataFrame:
        return _read_table(
            self.path, name, where, self.only.get(name, ""), f"+launch_id <= {self._newest}", order=order
        )

    @cached_property
    def _newest(self) -> int:
        """The last launch that `launch` has: a run may go on while its store is read, and what it adds is not ours.
        (The plus in `+launch_id` keeps SQLite from an index that it would have to sort by.)"""
        return int(self.launch["id"].max()) if len(self.launch) else 0

    def _digested(self, kind: str) -> pd.DataFrame:
        with _reading(self.path) as db:
            rows = db.execute(
                "SELECT launch_id, kind, phase, metric, place, value FROM digest WHERE kind = ? AND +launch_id <= ?"
                " ORDER BY rowid",
                (kind, self._newest),
            )
            return _unpacked((launch_id, Digest(*rest)) for launch_id, *rest in rows)


def load(path: Path, only: Mapping[str, str] | None = None) -> Results:
    """A store to read. `only` are SQL conditions: of a table that it names no other rows are read.

    Raises UsageError when `path` is missing, no store, or of another schema.
    """
    _check_file(path)
    few = {name: _read_table(path, name) for name in ("session", "launch", "finding")}
    return Results(path, **few, only=only or {})


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """An open store. Raises UsageError for what cannot be read."""
    import pandas as pd

    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            check_store(db, path)
            yield db
    except (sqlite3.Error, pd.errors.DatabaseError) as error:
        raise UsageError(f"{path} cannot be read as a parabench store: {error}") from error


def _read_table(path: Path, name: str, *conditions: str, order: str = "rowid") -> pd.DataFrame:
    import pandas as pd

    where = " AND ".join(f"({each})" for each in conditions if each) or "TRUE"
    with _reading(path) as db:
        return pd.read_sql_query(f"SELECT * FROM {name} WHERE {where} ORDER BY {order}", db)


def _unpacked(rows: Iterable[tuple[int, Digest]]) -> pd.DataFrame:
    """One row a number: `launch_id, place, phase, metric, value`."""
    import numpy as np
    import pandas as pd

    ids, codes, counts, places, values = [], [], [], [], []
    known: dict[tuple[str, str], int] = {}
    for launch_id, digest in rows:
        ids.append(launch_id)
        codes.append(known.setdefault((digest.phase, digest.metric), len(known)))
        counts.append(len(digest.value) // 8)
        places.append(digest.place)
        values.append(digest.value)
    of_row = np.repeat(np.array(codes, dtype=np.int64), counts)
    told: dict[str, Any] = {}
    for at, name in enumerate(("phase", "metric")):
        names = list(dict.fromkeys(each[at] for each in known))
        lookup = np.array([names.index(each[at]) for each in known], dtype=np.int64)
        told[name] = pd.Categorical.from_codes(lookup[of_row], pd.Index(names))
    return pd.DataFrame(
        {
            "launch_id": np.repeat(np.array(ids, dtype=np.int64), counts),
            "place": np.frombuffer(b"".join(places), "<i8"),
            **told,
            "value": np.frombuffer(b"".join(values), "<f8"),
        }
    )


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
