"""The store: one SQLite file. A launch is appended in one transaction; `parabench.store.results` reads it."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from parabench import __version__
from parabench.errors import UsageError
from parabench.store import json_text, shapes, soundness
from parabench.store.digest import digests
from parabench.store.record import REFERENCE_BLOCK, Finding, Launch, LinkMessage, LinkSample, Status, utc_now
from parabench.store.schema import (
    APPLICATION_ID,
    DONE,
    NOT_WELL,
    SCHEMA_VERSION,
    LaunchRow,
    SessionRow,
    create_statements,
    insert_statement,
)

# What `parabench run` calls the store of its folder.
STORE_NAME = "results.db"


@dataclass(frozen=True)
class PlannedSession:
    """A session as it was planned: enough to continue it. `interleaved` is empty where it is no side of an ab."""

    id: int
    plan: dict[str, Any]
    argv: list[str]
    interleaved: dict[str, str]
    label: str | None
    suite: str


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
                db.executescript(f"BEGIN; {marks} {create_statements()} COMMIT;")
            check_store(db, path)
            # Readers (a live report) never block the run; one file is left when the store is closed.
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA foreign_keys = ON")
        except sqlite3.Error as error:
            raise UsageError(f"{path} cannot be used as a store: {error}; give another --out") from error
        return cls(path, db)

    @classmethod
    @contextlib.contextmanager
    def open_to_read(cls, path: Path) -> Iterator[Store]:
        """The store at `path`, which nothing is written to. Raises UsageError when it is none."""
        with open_to_read(path) as db:
            yield cls(path, db)

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
        row = SessionRow(
            label=label,
            suite=suite,
            argv=json.dumps(argv),
            seed=seed,
            started_utc=utc_now(),
            finished_utc=None,
            parabench_version=__version__,
            environment=json.dumps(environment),
            question=question,
            plan=json.dumps(plan),
            interleaved=None if interleaved is None else json.dumps(interleaved),
        )
        return self._insert("session", (), row)

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
        """Whether every launch of a session that ended by itself succeeded; one that only explains does not count."""
        bad = self._db.execute(
            f"SELECT count(*) FROM launch WHERE session_id = ? AND {NOT_WELL}", (session_id,)
        ).fetchone()[0]
        return bool(bad == 0)

    def last_session(self) -> PlannedSession | None:
        """The newest session, or None in an empty store."""
        return next(self._sessions(), None)

    def sides(self, run: str) -> dict[str, PlannedSession]:
        """The sessions that took turns in one `parabench ab`, by their side."""
        return {row.interleaved["side"]: row for row in self._sessions() if row.interleaved.get("run") == run}

    def labels(self) -> set[str]:
        """How the store's sessions are called."""
        return {label for (label,) in self._db.execute("SELECT label FROM session WHERE label IS NOT NULL")}

    def _sessions(self) -> Iterator[PlannedSession]:
        """All sessions, the newest first."""
        rows = self._db.execute("SELECT id, plan, argv, interleaved, label, suite FROM session ORDER BY id DESC")
        soundness.check_rows(self._db, self.path, "session")
        for number, plan, argv, tied, label, suite in rows.fetchall():
            place = f"of session {number} of {self.path}"
            yield PlannedSession(
                number,
                json_text.read(plan, shapes.PLAN, f"plan {place}"),
                json_text.read(argv, shapes.ARGV, f"argv {place}"),
                json_text.read(tied, shapes.INTERLEAVED, f"interleaved {place}"),
                label,
                suite,
            )

    def launches_done(self, session_id: int) -> set[tuple[str, int]]:
        """(case id, block) of every launch of a session that need not be run again."""
        soundness.check_rows(self._db, self.path, "launch", f"session_id = {session_id}")
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
        row = LaunchRow(
            case_id=case.id,
            case_json=json.dumps(case.to_dict()),
            strategy=case.strategy,
            algorithm=case.algorithm,
            model=case.model,
            world_size=case.world_size,
            bucket_mib=case.bucket_cap,  # `case_json` has a list
            block=launch.block,
            position=launch.position,
            status=launch.status,
            error=str(failure) if failure else None,
            started_utc=launch.started_utc,
            wall_s=launch.wall_s,
            failed_rank=failure.rank if failure else None,
            failed_signal=failure.signal if failure else None,
            traceback=failure.traceback if failure else None,
            facts=json.dumps(launch.facts),
        )
        with self._transaction():
            launch_id = self._insert("launch", (session_id,), row)
            of_launch: dict[str, Iterable[tuple[Any, ...]]] = {
                "sample": launch.samples,
                "digest": digests(launch.samples),
                "device_sample": launch.device_samples,
                "host_sample": launch.host_samples,
                "span": launch.spans,
                "collective": launch.collectives,
            }
            for table, rows in of_launch.items():
                self._insert_all(table, (launch_id,), rows)
            self._insert_all("finding", (session_id, launch_id), map(astuple, launch.findings))
        return launch_id

    def add_links(self, session_id: int, rows: Iterable[LinkSample], messages: Iterable[LinkMessage] = ()) -> None:
        """Record what lies between the ranks of a session, and the messages from which that follows, in one
        transaction, instead of what it had there before."""
        with self._transaction():
            of_session: dict[str, Iterable[tuple[Any, ...]]] = {"link": rows, "link_message": messages}
            for table, values in of_session.items():
                self._db.execute(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))
                self._insert_all(table, (session_id,), values)

    def add_finding(self, session_id: int, finding: Finding) -> None:
        """Record a warning that concerns the session or a case, not one launch."""
        self._insert("finding", (session_id, None), astuple(finding))

    def has_finding(self, session_id: int, code: str) -> bool:
        """Whether the session has a finding of that code."""
        query = "SELECT 1 FROM finding WHERE session_id = ? AND code = ?"
        return self._db.execute(query, (session_id, code)).fetchone() is not None

    def _insert(self, table: str, belongs_to: tuple[int | None, ...], row: tuple[Any, ...]) -> int:
        """Insert a row of what has those ids; returns the row's own."""
        cursor = self._db.execute(insert_statement(table), (*belongs_to, *row))
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def _insert_all(self, table: str, belongs_to: tuple[int, ...], rows: Iterable[tuple[Any, ...]]) -> None:
        self._db.executemany(insert_statement(table), ((*belongs_to, *row) for row in rows))


@contextlib.contextmanager
def open_to_read(path: Path) -> Iterator[sqlite3.Connection]:
    """The store at `path`, which nothing is written to. Raises UsageError when it is none."""
    with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
        check_store(db, path)
        with _words_of_sqlite(path):
            yield db


@contextlib.contextmanager
def _words_of_sqlite(path: Path) -> Iterator[None]:
    """Raise UsageError where what SQLite says of an error quotes bytes of the file that are no text: Python then raises
    UnicodeDecodeError in the place of sqlite3.Error."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} cannot be read as a parabench store: a name in it is no text; {soundness.REMEDY}"
        ) from error


def check_store(db: sqlite3.Connection, path: Path) -> None:
    """Raise UsageError when the file is no store, or one of another schema."""
    try:
        soundness.limit(db)
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
    with _words_of_sqlite(path):
        soundness.check_tables(db, path)


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
