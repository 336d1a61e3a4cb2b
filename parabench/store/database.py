"""The file of a results database: its tables, digests of samples, and opening it with SQLite.

The tables follow from the types of their rows. One process writes, and any number may read.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from parabench import __version__
from parabench.errors import UsageError
from parabench.metrics import STEP_PARTS
from parabench.store.record import (
    EXPLAIN_REPETITION,
    CollectiveSample,
    DeviceSample,
    Finding,
    HostSample,
    LinkMessage,
    LinkSample,
    Phase,
    Sample,
    Span,
    Status,
    slowest,
)

SCHEMA_VERSION = 2
APPLICATION_ID = 0x70626E63  # "pbnc", to distinguish it from other SQLite files

# SQL conditions on rows of `launch`. DONE: it need not run again. NOT_WELL: it failed, except for NCCL's debug log.
DONE = f"status != '{Status.INTERRUPTED}'"
NOT_WELL = f"{DONE} AND status != '{Status.OK}' AND repetition != {EXPLAIN_REPETITION}"
# The kind of a session as an SQL expression with an index; NULL if its plan is unknown.
KIND_OF_SESSION = "CASE WHEN json_valid(plan) THEN json_extract(plan, '$.kind') END"
# The short columns of a session, for lists of all sessions.
LISTED = ("label", "suite", "started_utc", "finished_utc")


# The kinds of digests. SLOWEST: each measured step's time on its slowest rank. MEDIAN: each rank's median over measured
# steps. WHOLE: each rank's samples without a step.
SLOWEST, MEDIAN, WHOLE = "slowest", "median", "whole"


class SessionRow(NamedTuple):
    """A session; `argv`, `environment`, `plan` and `interleaved` are JSON."""

    label: str | None
    suite: str
    argv: str
    seed: int
    started_utc: str
    finished_utc: str | None
    parabench_version: str
    environment: str
    question: str
    plan: str
    interleaved: str | None


class LaunchRow(NamedTuple):
    """A launch without its measurements; `case_json` and `facts` are JSON."""

    case_id: str
    case_json: str
    strategy: str
    algorithm: str
    model: str
    world_size: int
    bucket_mib: float | None
    repetition: int
    position: int
    status: Status
    error: str | None
    started_utc: str
    wall_s: float | None
    failed_rank: int | None
    failed_signal: str | None
    traceback: str | None
    facts: str


class Digest(NamedTuple):
    """Numbers from the samples of a launch, packed into one row, so that answers read a hundredth of the rows.

    `place` has steps or ranks as little-endian int64. `value` has one float64 for each of them; NaN is unknown.
    """

    kind: str
    phase: str
    metric: str
    place: bytes
    value: bytes


_OF_LAUNCH, _OF_SESSION = {"launch_id": int}, {"session_id": int}
# {table: {column: type}}, without the ids of the rows themselves.
TABLES: dict[str, dict[str, Any]] = {
    "session": get_type_hints(SessionRow),
    "launch": _OF_SESSION | get_type_hints(LaunchRow),
    "sample": _OF_LAUNCH | get_type_hints(Sample),
    "collective": _OF_LAUNCH | get_type_hints(CollectiveSample),
    "span": _OF_LAUNCH | get_type_hints(Span),
    "device_sample": _OF_LAUNCH | get_type_hints(DeviceSample),
    "host_sample": _OF_LAUNCH | get_type_hints(HostSample),
    "digest": _OF_LAUNCH | get_type_hints(Digest),
    "link": _OF_SESSION | get_type_hints(LinkSample),
    "link_message": _OF_SESSION | get_type_hints(LinkMessage),
    "finding": _OF_SESSION | {"launch_id": int | None} | get_type_hints(Finding),
}
_INDEXES = (
    f"session_by_kind ON session({KIND_OF_SESSION})",
    f"session_list ON session({', '.join(LISTED)})",
    "launch_by_session ON launch(session_id, case_id)",
    "sample_by_launch ON sample(launch_id, metric)",
    # Few samples belong to instrumented steps.
    f"sample_instrumented ON sample(launch_id) WHERE phase = '{Phase.INSTRUMENT}'",
    *(f"{name}_by_launch ON {name}(launch_id)"
      for name in ("collective", "span", "device_sample", "host_sample", "digest")),
    *(f"{name}_by_session ON {name}(session_id)" for name in ("link", "link_message", "finding")),
)  # fmt: skip
# SQLite 3.37 and later check the types of values in STRICT tables.
STRICT = " STRICT" if sqlite3.sqlite_version_info >= (3, 37) else ""
_KINDS = {int: "INTEGER", float: "REAL", str: "TEXT", bytes: "BLOB"}


def create_statements() -> list[str]:
    """Return the SQL statements that create all tables and indexes, and mark the file."""
    statements = [f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {SCHEMA_VERSION}"]
    for name, types in TABLES.items():
        columns = ["id INTEGER PRIMARY KEY"] if name in ("session", "launch") else []
        for column, hint in types.items():
            given = set(get_args(hint) or (hint,))
            (kind,) = given - {NoneType}
            sql = next(sql for base, sql in _KINDS.items() if issubclass(kind, base))
            refers = f" REFERENCES {column.removesuffix('_id')}(id)" if column in ("session_id", "launch_id") else ""
            columns.append(f"{column} {sql}{'' if NoneType in given else ' NOT NULL'}{refers}")
        statements.append(f"CREATE TABLE {name}({', '.join(columns)}){STRICT}")
    return [*statements, *(f"CREATE INDEX {index}" for index in _INDEXES)]


@cache
def insert_statement(name: str) -> str:
    """Return the SQL statement that inserts a row into a table: the ids that it belongs to, then its fields."""
    columns = TABLES[name]
    return f"INSERT INTO {name}({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


def digests(samples: Sequence[Sample]) -> list[Digest]:
    """Return the digests of the samples of one launch."""
    import statistics  # takes 10 ms to import, which commands that only read save

    summarized = ("step_s", *STEP_PARTS, "device_lag_s")
    whole: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    by_rank: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for rank, step, phase, metric, observed in samples:
        value = math.nan if observed is None else float(observed)
        if step is None:
            whole[phase, metric].append((rank, value))
        elif phase == Phase.MEASURE and metric in summarized:
            by_rank[metric][rank].append(value)
    measured = (each for each in samples if each.phase == Phase.MEASURE and each.metric == "step_s")
    steps = slowest((each.step, each.value) for each in measured if each.step is not None)
    found = [_packed(SLOWEST, Phase.MEASURE, "step_s", steps.items())] if steps else []
    for metric, ranks in by_rank.items():
        known = {rank: [value for value in values if value == value] for rank, values in sorted(ranks.items())}
        medians = [(rank, statistics.median(values or [math.nan])) for rank, values in known.items()]
        found.append(_packed(MEDIAN, Phase.MEASURE, metric, medians))
    return found + [_packed(WHOLE, phase, metric, numbers) for (phase, metric), numbers in whole.items()]


def _packed(kind: str, phase: str, metric: str, numbers: Iterable[tuple[int, float]]) -> Digest:
    places, values = zip(*numbers, strict=True)
    count = len(places)
    return Digest(kind, phase, metric, struct.pack(f"<{count}q", *places), struct.pack(f"<{count}d", *values))


# -- opening the file --------------------------------------------------------------------------------------------------

# How long a write waits for the lock of another process.
LOCK_TIMEOUT_S = 60.0
# With this mode of SQLite, a power failure does not damage the file. Tests use a faster one.
SYNCHRONOUS = "NORMAL"

GIVE_RESULTS = "give the results.db of a run, or traces to `report --from`"


class StoreError(UsageError):
    """A results database cannot be read or written any more. The text has the cause."""


def open_to_write(path: Path) -> sqlite3.Connection:
    """Open the database at `path`, or create it if the file is missing or empty.

    Raises:
        UsageError: if the file is not a results database, is damaged or cannot be written. It is left as it was.
    """
    try:
        with contextlib.ExitStack() as stack:
            db = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
            stack.callback(db.close)
            if not db.execute("PRAGMA page_count").fetchone()[0]:
                db.execute("BEGIN IMMEDIATE")
                for statement in create_statements():
                    db.execute(statement)
                db.execute("COMMIT")
            _check(db, path)
            damage = " ".join(db.execute("PRAGMA integrity_check(1)").fetchone()[0].split())
            if damage != "ok":
                raise UsageError(f"{path} is damaged ({damage}); restore a copy, or give another --out")
            # Readers, such as a live report, never block the run. After each transaction SQLite copies the log into the
            # file, so that a copy of the file is complete.
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA wal_autocheckpoint = 1")
            db.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
            db.execute("PRAGMA foreign_keys = ON")
            stack.pop_all()
            return db
    except sqlite3.Error as error:
        raise UsageError(f"{path} is not a usable results database: {error}; give another --out") from error


@contextlib.contextmanager
def open_to_read(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database at `path` for reading. Raises UsageError if it is not a results database or cannot be read."""
    if not os.path.isfile(path):
        what = "is not a file" if os.path.exists(path) else "does not exist"
        raise UsageError(f"{path} {what}; {GIVE_RESULTS}")
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            _check(db, path)
            yield db
    except sqlite3.OperationalError as error:
        raise UsageError(f"{path} cannot be read: {error}; see which process holds it, and try again") from error
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is damaged or not a results database: {error}; {GIVE_RESULTS}") from error


def _check(db: sqlite3.Connection, path: Path) -> None:
    """Raise UsageError if the file is not a results database, or has another schema."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise UsageError(f"{path} is not a results database of parabench; {GIVE_RESULTS}")
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{path} has schema {version}, and parabench {__version__} reads schema {SCHEMA_VERSION} only; "
            "use the version that wrote it, or another database"
        )


@contextlib.contextmanager
def storing(path: Path, action: str) -> Iterator[None]:
    """Raise SQLite's errors in the `with` block as StoreError. `action` is, for example, "written"."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError, sqlite3.NotSupportedError):
        raise  # a row that is wrong, not the file
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be {action}: {error}") from error
