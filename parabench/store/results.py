"""A store as tidy tables, each read when it is first asked for: most of a large store nobody needs at once."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from parabench.store.columns import Columns
from parabench.store.database import check_file, open_to_read
from parabench.store.digest import MEDIAN, SLOWEST, WHOLE
from parabench.store.record import Phase
from parabench.store.schema import KIND_OF_SESSION, LISTED, TABLES

if TYPE_CHECKING:
    import pandas as pd


def _table(name: str) -> cached_property[pd.DataFrame]:
    """A table of `Results` with the columns of that name's."""
    return cached_property(lambda results: results._read(name))


def _frame(columns: str) -> cached_property[pd.DataFrame]:
    """The columns of `Results` of that name as a DataFrame."""
    return cached_property(lambda results: getattr(results, columns).frame())


class Newest(NamedTuple):
    """The largest number of a row of each of these tables, 0 of none."""

    session: int
    launch: int
    finding: int


@dataclass(frozen=True)
class Results:
    """A store's tables as DataFrames named like them. `environment`, `plan` and `facts` stay JSON text.

    `listed` are all sessions that it had when it was loaded; of what came later nothing is read. The tables are of all
    of these, or of `sessions` alone (`of`), which costs what those hold, however much there is beside them.

    `session`, `launch` and `finding` are few rows. `sample` may be millions: analysis takes `steps`, `medians`, `whole`
    and `instrumented`, which hold what it needs of them. What a quick answer needs is there as `Columns` too. `only`
    are SQL conditions, by table, for what is left out. Any that is read later raises UsageError where the file cannot
    be read any more.
    """

    path: Path
    listed: Columns
    newest: Newest
    only: Mapping[str, str] = field(default_factory=dict)
    sessions: frozenset[int] | None = None
    _whole: Results | None = field(default=None, repr=False, compare=False)

    @property
    def whole_store(self) -> Results:
        """The same of all sessions."""
        return self._whole or self

    def of(self, sessions: Iterable[int]) -> Results:
        """The same of these sessions of the store alone, each table read once however often they are asked for."""
        if self._whole is not None:
            return self._whole.of(sessions)
        chosen = frozenset(sessions)
        if chosen.issuperset(self.listed["id"].tolist()):
            return self
        if chosen not in self._narrowed:
            self._narrowed[chosen] = replace(self, sessions=chosen, _whole=self)
        return self._narrowed[chosen]

    @cached_property
    def _narrowed(self) -> dict[frozenset[int], Results]:
        return {}

    def of_kind(self, kind: str) -> list[int]:
        """The ids of the sessions that measured that kind of thing, which their plan tells; training where it does
        not."""
        said = f"{KIND_OF_SESSION} = '{kind}'"
        said += f" OR {KIND_OF_SESSION} IS NULL" if kind == "training" else ""
        found: list[int] = self.columns("session", said, ("id",))["id"].tolist()
        return found

    @cached_property
    def session_columns(self) -> Columns:
        return self.columns("session")

    @cached_property
    def launch_columns(self) -> Columns:
        return self.columns("launch")

    @cached_property
    def finding_columns(self) -> Columns:
        return self.columns("finding")

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
        # No step takes no time; who wrote the store may have said so.
        seconds = np.where(found["value"] > 0, found["value"], np.nan)
        return Columns({"launch_id": found["launch_id"], "step": found["rank"], "step_s": seconds})

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

    def columns(self, name: str, where: str = "", names: Sequence[str] = ("*",)) -> Columns:
        """The rows of one of the store's tables that a condition of SQL holds of; of their columns those."""
        with self._selected(name, where, names=names) as (db, query):
            return _fetched(db, query)

    def _read(self, name: str, where: str = "", order: str = "") -> pd.DataFrame:
        import pandas as pd

        with self._selected(name, where, order) as (db, query):
            # Few texts in many rows: each is kept once, which for ten thousand cases is 200 MB.
            db.text_factory = _Once()
            return pd.read_sql_query(query, db)

    @contextlib.contextmanager
    def _selected(
        self, name: str, where: str = "", order: str = "", names: Sequence[str] = ("*",)
    ) -> Iterator[tuple[sqlite3.Connection, str]]:
        """The store and the query for the rows of a table; raises UsageError for one that cannot be read."""
        conditions = [each for each in (where, self.only.get(name, ""), *self._known(name)) if each]
        of_launch = name in TABLES and "launch_id" in TABLES[name].belongs_to and self._span is not None
        # Rows of launches are found by an index that has them in this order already.
        order = order or ("launch_id, rowid" if of_launch and name != "finding" else "rowid")
        with open_to_read(self.path) as db:
            yield db, _query(name, conditions, order, names)

    def _known(self, name: str) -> Iterator[str]:
        """The conditions on a table's rows that keep to the sessions, and to what there was when the store was loaded:
        a run may go on meanwhile. A plus keeps SQLite from finding rows by that, which nearly all fulfil."""
        belongs_to = TABLES[name].belongs_to
        own = "" if self.sessions is None else f"IN ({', '.join(map(str, sorted(self.sessions)))})"
        if name == "session":
            yield f"+id <= {self.newest.session}"
            yield f"id {own}" if own else ""
        elif "session_id" in belongs_to:
            yield f"session_id {own}" if own else ""
            if name in ("launch", "finding"):
                yield f"+rowid <= {getattr(self.newest, name)}"
        elif self._span is None:
            yield f"+launch_id <= {self.newest.launch}"
        else:
            first, last, count = self._span
            yield f"launch_id BETWEEN {first} AND {last}"
            if count != last - first + 1:  # there are launches of other sessions between
                yield f"launch_id IN (SELECT id FROM launch WHERE session_id {own})"

    @cached_property
    def _span(self) -> tuple[int, int, int] | None:
        """The first and the last launch of the sessions, and how many they have; None where all of the store are."""
        if self.sessions is None:
            return None
        ids = self.launch_columns["id"]
        return (int(ids.min()), int(ids.max()), len(ids)) if len(ids) else (0, -1, 0)

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


class _Once(dict[bytes, str]):
    """The text of bytes, the same object for the same bytes. Raises UnicodeDecodeError."""

    def __call__(self, raw: bytes) -> str:
        return self[raw]

    def __missing__(self, raw: bytes) -> str:
        return self.setdefault(raw, raw.decode())


def _categorical(digested: Columns) -> pd.DataFrame:
    import pandas as pd

    words = {name: digested[name] for name in ("phase", "metric")}
    return digested.assign(**{name: pd.Categorical(each, pd.unique(each)) for name, each in words.items()}).frame()


def load(path: Path, only: Mapping[str, str] | None = None) -> Results:
    """A store to read. `only` are SQL conditions: of a table that it names no other rows are read.

    Raises UsageError when `path` is missing, no store, or of another schema.
    """
    check_file(path)
    with open_to_read(path) as db:
        db.execute("BEGIN")  # one snapshot of the store
        listed = _fetched(db, _query("session", (), "+rowid", ("id", *LISTED)))
        tables = ("session", "launch", "finding")
        newest = Newest(*(db.execute(f"SELECT coalesce(max(rowid), 0) FROM {name}").fetchone()[0] for name in tables))
    return Results(path, listed, newest, only or {})


def _query(name: str, conditions: Sequence[str], order: str, names: Sequence[str] = ("*",)) -> str:
    return f"SELECT {', '.join(names)} FROM {name} WHERE {_where(conditions)} ORDER BY {order}"


def _where(conditions: Sequence[str]) -> str:
    return " AND ".join(f"({each})" for each in conditions) or "TRUE"


def _fetched(db: sqlite3.Connection, query: str) -> Columns:
    found = db.execute(query)
    return Columns.of([name for name, *_ in found.description], found)
