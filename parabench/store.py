"""The store: one SQLite file. A launch is appended in one transaction; reading gives tidy DataFrames."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parabench import __version__
from parabench.errors import UsageError
from parabench.record import REFERENCE_BLOCK, Finding, Launch, Status, utc_now

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 2
APPLICATION_ID = 0x70626E63  # "pbnc": tells a store from any other SQLite file

_SCHEMA = """
CREATE TABLE session(
    id INTEGER PRIMARY KEY, label TEXT, suite TEXT NOT NULL, argv TEXT NOT NULL, seed INTEGER NOT NULL,
    started_utc TEXT NOT NULL, finished_utc TEXT, parabench_version TEXT NOT NULL, environment TEXT NOT NULL,
    question TEXT NOT NULL, plan TEXT NOT NULL);
CREATE TABLE launch(
    id INTEGER PRIMARY KEY, session_id INTEGER NOT NULL REFERENCES session(id), case_id TEXT NOT NULL,
    case_json TEXT NOT NULL, strategy TEXT NOT NULL, algorithm TEXT NOT NULL, model TEXT NOT NULL,
    world_size INTEGER NOT NULL, bucket_mib REAL, block INTEGER NOT NULL, position INTEGER NOT NULL,
    status TEXT NOT NULL, error TEXT, started_utc TEXT NOT NULL, wall_s REAL NOT NULL,
    failed_rank INTEGER, failed_signal TEXT, traceback TEXT, facts TEXT NOT NULL);
CREATE INDEX launch_by_session ON launch(session_id, case_id);
CREATE TABLE sample(
    launch_id INTEGER NOT NULL REFERENCES launch(id), rank INTEGER NOT NULL, step INTEGER,
    phase TEXT NOT NULL, metric TEXT NOT NULL, value REAL);
CREATE INDEX sample_by_launch ON sample(launch_id, metric);
CREATE TABLE collective(
    launch_id INTEGER NOT NULL REFERENCES launch(id), rank INTEGER NOT NULL, step INTEGER, seq INTEGER,
    op TEXT NOT NULL, algorithm TEXT NOT NULL, group_size INTEGER NOT NULL, bytes INTEGER NOT NULL,
    start_s REAL, duration_s REAL, phase TEXT, in_place INTEGER, n_wrong INTEGER);
CREATE INDEX collective_by_launch ON collective(launch_id);
CREATE TABLE device_sample(
    launch_id INTEGER NOT NULL REFERENCES launch(id), device INTEGER NOT NULL, t_s REAL NOT NULL,
    metric TEXT NOT NULL, value REAL);
CREATE INDEX device_sample_by_launch ON device_sample(launch_id);
CREATE TABLE finding(
    session_id INTEGER NOT NULL REFERENCES session(id), launch_id INTEGER REFERENCES launch(id), case_id TEXT,
    code TEXT NOT NULL, message TEXT NOT NULL, advice TEXT NOT NULL);
"""

# What each version lacks of the next. Reading takes an older store as it is; writing brings it up to date.
_MISSING = {
    1: (("collective", "phase", "TEXT"), ("collective", "in_place", "INTEGER"), ("collective", "n_wrong", "INTEGER"))
}


@dataclass(frozen=True)
class SessionRow:
    """A session as it was planned: enough to continue it."""

    id: int
    plan: dict[str, Any]


@dataclass(frozen=True)
class Results:
    """All of a store as DataFrames named like its tables. `environment`, `plan` and `facts` stay JSON text."""

    path: Path
    session: pd.DataFrame
    launch: pd.DataFrame
    sample: pd.DataFrame
    collective: pd.DataFrame
    device_sample: pd.DataFrame
    finding: pd.DataFrame


class Store:
    """An open store. Use `Store.open_or_create` to write, `load` to read."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._db = connection

    @classmethod
    def open_or_create(cls, path: Path) -> Store:
        """The store at `path`, made if it is not there. Raises UsageError when it is no store or cannot be written."""
        fresh = not path.exists() or path.stat().st_size == 0
        try:
            db = sqlite3.connect(path, isolation_level=None)
            if fresh:
                marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
                db.executescript(f"BEGIN; {marks} {_SCHEMA} COMMIT;")
            _upgrade(db, _check(db, path))
            # Readers (a live report) never block the run; one file is left when the store is closed.
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA foreign_keys = ON")
        except sqlite3.Error as error:
            raise UsageError(f"{path} cannot be used as a store: {error}; give another --out") from error
        return cls(path, db)

    def close(self) -> None:
        """Fold the write-ahead log into the one file that people copy."""
        with contextlib.suppress(sqlite3.OperationalError):  # a reader is still there: the log stays beside it
            self._db.execute("PRAGMA journal_mode = DELETE")
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def begin_session(
        self,
        *,
        label: str | None,
        suite: str,
        argv: list[str],
        seed: int,
        environment: dict[str, Any],
        question: str,
        plan: dict[str, Any],
    ) -> int:
        """Record a session before its first launch; returns its id."""
        cursor = self._db.execute(
            "INSERT INTO session VALUES (NULL, ?, ?, ?, ?, ?, NULL, ?, ?, ?, ?)",
            (
                label,
                suite,
                json.dumps(argv),
                seed,
                utc_now(),
                __version__,
                json.dumps(environment),
                question,
                json.dumps(plan),
            ),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def finish_session(self, session_id: int) -> None:
        """Mark a session as complete: every planned launch is there."""
        self._db.execute(
            "UPDATE session SET finished_utc = ? WHERE id = ? AND finished_utc IS NULL", (utc_now(), session_id)
        )

    def all_ok(self, session_id: int) -> bool:
        """Whether every launch of a session that ended by itself ended well."""
        bad = self._db.execute(
            "SELECT count(*) FROM launch WHERE session_id = ? AND status NOT IN (?, ?)",
            (session_id, Status.OK, Status.INTERRUPTED),
        ).fetchone()[0]
        return bool(bad == 0)

    def last_session(self) -> SessionRow | None:
        """The newest session, or None in an empty store."""
        row = self._db.execute("SELECT id, plan FROM session ORDER BY id DESC LIMIT 1").fetchone()
        if row is None:
            return None
        return SessionRow(row[0], json.loads(row[1]))

    def launches_done(self, session_id: int) -> set[tuple[str, int]]:
        """(case id, block) of every launch of a session that need not be run again."""
        rows = self._db.execute(
            "SELECT case_id, block FROM launch WHERE session_id = ? AND status != ?",
            (session_id, Status.INTERRUPTED),
        )
        return {(case_id, block) for case_id, block in rows}

    def reference_values(self, session_id: int) -> dict[str, dict[str, dict[int, float | None]]]:
        """{case id: {"loss" or "grad_norm": {step: value}}} of a session's ok reference launches."""
        rows = self._db.execute(
            "SELECT case_id, metric, step, value FROM sample JOIN launch ON launch.id = launch_id"
            " WHERE session_id = ? AND block = ? AND status = ? AND metric IN ('loss', 'grad_norm')",
            (session_id, REFERENCE_BLOCK, Status.OK),
        )
        found: dict[str, dict[str, dict[int, float | None]]] = {}
        for case_id, metric, step, value in rows:
            found.setdefault(case_id, {}).setdefault(metric, {})[step] = value
        return found

    def append(self, session_id: int, launch: Launch) -> int:
        """Append one launch with all its rows, in one transaction; returns its id."""
        case, failure = launch.case, launch.failure
        with self._transaction():
            cursor = self._db.execute(
                "INSERT INTO launch VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    session_id,
                    case.id,
                    json.dumps(case.to_dict()),
                    case.strategy,
                    case.algorithm,
                    case.model,
                    case.world_size,
                    case.bucket_mib,
                    launch.block,
                    launch.position,
                    launch.status,
                    str(failure) if failure else None,
                    launch.started_utc,
                    launch.wall_s,
                    failure.rank if failure else None,
                    failure.signal if failure else None,
                    failure.traceback if failure else None,
                    json.dumps(launch.facts),
                ),
            )
            launch_id = cursor.lastrowid
            assert launch_id is not None
            self._db.executemany(
                "INSERT INTO sample VALUES (?, ?, ?, ?, ?, ?)",
                ((launch_id, *sample) for sample in launch.samples),
            )
            self._db.executemany(
                "INSERT INTO device_sample VALUES (?, ?, ?, ?, ?)",
                ((launch_id, *sample) for sample in launch.device_samples),
            )
            self._db.executemany(
                "INSERT INTO collective(launch_id, rank, step, seq, op, algorithm, group_size, bytes, start_s,"
                " duration_s, phase, in_place, n_wrong) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                ((launch_id, *sample) for sample in launch.collectives),
            )
            for finding in launch.findings:
                self._add_finding(session_id, launch_id, finding)
        return launch_id

    def add_finding(self, session_id: int, finding: Finding) -> None:
        """Record a doubt that concerns the session or a case, not one launch."""
        self._add_finding(session_id, None, finding)

    def _add_finding(self, session_id: int, launch_id: int | None, finding: Finding) -> None:
        self._db.execute(
            "INSERT INTO finding VALUES (?, ?, ?, ?, ?, ?)",
            (session_id, launch_id, finding.case_id, finding.code, finding.message, finding.advice),
        )


def _upgrade(db: sqlite3.Connection, version: int) -> None:
    if version < SCHEMA_VERSION:
        added = [column for old in range(version, SCHEMA_VERSION) for column in _MISSING[old]]
        changes = "".join(f"ALTER TABLE {table} ADD COLUMN {name} {kind};" for table, name, kind in added)
        db.executescript(f"BEGIN IMMEDIATE; {changes} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")


def _check(db: sqlite3.Connection, path: Path) -> int:
    """The schema version of the store. Raises UsageError when it is none, or not one that is known here."""
    try:
        application_id = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise UsageError(f"{path} is not a parabench store: {error}; give the results.db of a run") from error
    if application_id != APPLICATION_ID:
        raise UsageError(f"{path} is not a parabench store; give the results.db of a run")
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{path} has schema {version}, newer than this parabench {__version__} knows ({SCHEMA_VERSION}); "
            "upgrade parabench"
        )
    if db.execute("SELECT count(*) FROM sqlite_master WHERE name IN ('session', 'launch', 'sample')").fetchone()[0] < 3:
        raise UsageError(f"{path} is an incomplete parabench store; remove it, or give the results.db of a run")
    return int(version)


def load(path: Path) -> Results:
    """Read a whole store. Raises UsageError when `path` is missing, no store, or of a newer schema."""
    import pandas as pd

    if not os.path.isfile(path):
        raise UsageError(f"{path} does not exist; give the results.db of a run")
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            version = _check(db, path)
            missing = [column for old in range(version, SCHEMA_VERSION) for column in _MISSING[old]]

            def table(name: str) -> pd.DataFrame:
                order = " ORDER BY id" if name in ("session", "launch") else " ORDER BY rowid"
                later = "".join(f", NULL AS {column}" for of, column, _ in missing if of == name)
                return pd.read_sql_query(f"SELECT *{later} FROM {name}{order}", db)

            return Results(
                path=path,
                session=table("session"),
                launch=table("launch"),
                sample=table("sample"),
                collective=table("collective"),
                device_sample=table("device_sample"),
                finding=table("finding"),
            )
    except (sqlite3.Error, pd.errors.DatabaseError) as error:
        raise UsageError(f"{path} cannot be read as a parabench store: {error}") from error
