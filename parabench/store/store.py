"""The store: one SQLite file. A launch is appended in one transaction; `results` reads it."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parabench import __version__
from parabench.errors import UsageError
from parabench.store.digest import Digest, digests, stored_digests
from parabench.store.record import (  # fmt: skip
    REFERENCE_BLOCK,
    CollectiveSample,
    DeviceSample,
    Finding,
    HostSample,
    Launch,
    LinkMessage,
    LinkSample,
    Sample,
    Span,
    Status,
    utc_now,
)
from parabench.store.results import Results, check_version, load
from parabench.store.schema import (
    APPLICATION_ID,
    DIGESTED,
    DONE,
    NOT_WELL,
    SCHEMA_VERSION,
    TABLES,
    new_columns,
    new_tables,
)

__all__ = ["STORE_NAME", "Results", "SessionRow", "Store", "load", "split"]

# What `parabench run` calls the store of its folder.
STORE_NAME = "results.db"


@dataclass(frozen=True)
class SessionRow:
    """A session as it was planned: enough to continue it."""

    id: int
    plan: dict[str, Any]
    interleaved: dict[str, str] | None = None
    label: str | None = None


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
                db.executescript(f"BEGIN; {marks} {TABLES} COMMIT;")
            _upgrade(db, check_version(db, path))
            # Readers (a live report) never block the run; one file is left when the store is closed.
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA foreign_keys = ON")
        except sqlite3.Error as error:
            raise UsageError(f"{path} cannot be used as a store: {error}; give another --out") from error
        return cls(path, db)

    def close(self) -> None:
        """Fold the write-ahead log into the one file that people copy."""
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # a reader of the moment is waited for, some seconds
        with contextlib.suppress(sqlite3.OperationalError):  # one is still there: the log stays beside it, empty
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
        interleaved: dict[str, str] | None = None,
    ) -> int:
        """Record a session before its first launch; returns its id. `interleaved` ties it to the one that took turns
        with it: {"run": both have the same, "side": "a" or "b"}."""
        cursor = self._db.execute(
            "INSERT INTO session VALUES (NULL, ?, ?, ?, ?, ?, NULL, ?, ?, ?, ?, ?)",
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
                None if interleaved is None else json.dumps(interleaved),
            ),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def replan(self, session_id: int, plan: dict[str, Any]) -> None:
        """Give a session a plan with more launches; it is then not complete any more."""
        self._db.execute(
            "UPDATE session SET plan = ?, finished_utc = NULL WHERE id = ?", (json.dumps(plan), session_id)
        )

    def finish_session(self, session_id: int) -> None:
        """Mark a session as complete: every planned launch is there."""
        self._db.execute(
            "UPDATE session SET finished_utc = ? WHERE id = ? AND finished_utc IS NULL", (utc_now(), session_id)
        )

    def all_ok(self, session_id: int) -> bool:
        """Whether every launch of a session that ended by itself ended well; one that only explains does not count."""
        bad = self._db.execute(
            f"SELECT count(*) FROM launch WHERE session_id = ? AND {NOT_WELL}", (session_id,)
        ).fetchone()[0]
        return bool(bad == 0)

    def last_session(self) -> SessionRow | None:
        """The newest session, or None in an empty store."""
        return next(self._sessions(), None)

    def sides(self, run: str) -> dict[str, SessionRow]:
        """The sessions that took turns in one `parabench ab`, by their side."""
        rows = [row for row in self._sessions() if row.interleaved and row.interleaved["run"] == run]
        return {row.interleaved["side"]: row for row in rows if row.interleaved}

    def labels(self) -> set[str]:
        """How the store's sessions are called."""
        return {label for (label,) in self._db.execute("SELECT label FROM session WHERE label IS NOT NULL")}

    def _sessions(self) -> Iterator[SessionRow]:
        """All sessions, the newest first."""
        rows = self._db.execute("SELECT id, plan, interleaved, label FROM session ORDER BY id DESC")
        for number, plan, tied, label in rows:
            yield SessionRow(number, json.loads(plan), None if tied is None else json.loads(tied), label)

    def launches_done(self, session_id: int) -> set[tuple[str, int]]:
        """(case id, block) of every launch of a session that need not be run again."""
        rows = self._db.execute(f"SELECT case_id, block FROM launch WHERE session_id = ? AND {DONE}", (session_id,))
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
            of = {"launch_id": launch_id}
            self._insert(of, "sample", Sample, launch.samples)
            self._insert(of, "digest", Digest, digests(launch.samples))
            self._insert(of, "device_sample", DeviceSample, launch.device_samples)
            self._insert(of, "host_sample", HostSample, launch.host_samples)
            self._insert(of, "span", Span, launch.spans)
            self._insert(of, "collective", CollectiveSample, launch.collectives)
            for finding in launch.findings:
                self._add_finding(session_id, launch_id, finding)
        return launch_id

    def add_links(self, session_id: int, rows: Iterable[LinkSample], messages: Iterable[LinkMessage] = ()) -> None:
        """Record what lies between the ranks of a session, and the messages from which that follows, in one
        transaction, instead of what it had there before."""
        with self._transaction():
            for table, kind, values in (("link", LinkSample, rows), ("link_message", LinkMessage, messages)):
                self._db.execute(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))
                self._insert({"session_id": session_id}, table, kind, values)

    def _insert(self, of: dict[str, int], table: str, kind: Any, rows: Iterable[tuple[Any, ...]]) -> None:
        """Insert named tuples of a kind into the table whose columns are named like its fields, and like `of`, whose
        rows they are."""
        columns = (*of, *kind._fields)
        places = ", ".join("?" * len(columns))
        self._db.executemany(
            f"INSERT INTO {table}({', '.join(columns)}) VALUES ({places})", ((*of.values(), *row) for row in rows)
        )

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
        added = (f"ALTER TABLE {column.table} ADD COLUMN {column.definition};" for column in new_columns(version))
        changes = "".join(added) + new_tables(version)
        db.executescript(f"BEGIN IMMEDIATE; {changes} PRAGMA user_version = {SCHEMA_VERSION};")
        if version < DIGESTED:
            rows = ((launch_id, *digest) for launch_id, digest in stored_digests(db))
            db.executemany("INSERT INTO digest VALUES (?, ?, ?, ?, ?, ?)", rows)
        db.execute("COMMIT")


def split(text: str) -> tuple[Path, str | None]:
    """(store, session) of what a user calls a store, `store` or `store@session`; the session, an id or a label, is None
    where none is named. A folder stands for its results.db. Raises UsageError where either is empty."""
    path, at, session = text, "", ""
    if not os.path.exists(text) and "@" in text:
        path, at, session = text.rpartition("@")
    if not path:
        raise UsageError(f"{text!r} names no store; give the results.db of a run")
    if at and not session:
        raise UsageError(f"{text} names no session after the @; give {path}, or {path}@ with an id or a label")
    store = Path(path)
    return store / STORE_NAME if os.path.isdir(store) else store, session or None
