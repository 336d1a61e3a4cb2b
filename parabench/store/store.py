"""The store: one SQLite file. A launch is appended in one transaction; `parabench.store.results` reads it."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec import structs

from parabench import __version__
from parabench.errors import UsageError
from parabench.store import json_text
from parabench.store.database import StoreError, open_to_read, open_to_write, storing
from parabench.store.digest import digests
from parabench.store.private import public_argv, public_text
from parabench.store.record import REFERENCE_BLOCK, Finding, Launch, LinkMessage, LinkSample, Status, utc_now
from parabench.store.schema import DONE, NOT_WELL, LaunchRow, SessionRow, insert_statement

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
    """A results database that a run writes to. A failure raises StoreError."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path = path
        self._db = db

    @classmethod
    def open_or_create(cls, path: Path) -> Store:
        """Open the database at `path`, or create it. Raises UsageError if that is impossible, with the reason."""
        return cls(path, open_to_write(path))

    @classmethod
    @contextlib.contextmanager
    def open_to_read(cls, path: Path) -> Iterator[Store]:
        """Open the database at `path` for reading. Raises UsageError if it is not a results database."""
        with open_to_read(path) as db:
            yield cls(path, db)

    def close(self) -> None:
        """Close the database, which leaves one file that people can copy."""
        try:
            # Another reader or writer has the file open: the one that closes it last removes the log.
            with storing(self.path, "closed"), contextlib.suppress(sqlite3.OperationalError):
                self._db.execute("PRAGMA journal_mode = DELETE")
        finally:
            self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # The error that ended the block says more.
        with contextlib.suppress(*([] if kind is None else [StoreError])):
            self.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Write everything in the block, or nothing."""
        with storing(self.path, "written"):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite itself rolls back if the disk is full
                    self._db.execute("ROLLBACK")
                raise

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with storing(self.path, "read"):
            return self._db.execute(query, values).fetchall()

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
        """Record a session before its first launch; returns its id. Of `argv` is kept what others may see.
        `interleaved` ties it to the one that took turns
        with it: {"run": both have the same, "side": "a" or "b"}."""
        row = SessionRow(
            label=label,
            suite=suite,
            argv=json.dumps(public_argv(argv)),
            seed=seed,
            started_utc=utc_now(),
            finished_utc=None,
            parabench_version=__version__,
            environment=json.dumps(environment),
            question=question,
            plan=json.dumps(plan),
            interleaved=None if interleaved is None else json.dumps(interleaved),
        )
        with self._transaction() as db:
            return _insert(db, "session", (), row)

    def replan(self, session_id: int, plan: dict[str, Any]) -> None:
        """Give a session a plan with more launches; it is then not complete any more."""
        with self._transaction() as db:
            db.execute("UPDATE session SET plan = ?, finished_utc = NULL WHERE id = ?", (json.dumps(plan), session_id))

    def finish_session(self, session_id: int) -> None:
        """Mark a session as complete: every planned launch is there."""
        finish = "UPDATE session SET finished_utc = ? WHERE id = ? AND finished_utc IS NULL"
        with self._transaction() as db:
            db.execute(finish, (utc_now(), session_id))

    def all_ok(self, session_id: int) -> bool:
        """Whether every launch of a session that ended by itself succeeded; one that only explains does not count."""
        bad = self._rows(f"SELECT 1 FROM launch WHERE session_id = ? AND {NOT_WELL} LIMIT 1", (session_id,))
        return not bad

    def last_session(self) -> PlannedSession | None:
        """The newest session, or None in an empty store."""
        return next(self._sessions(), None)

    def last_labelled(self, label: str, suite: str) -> PlannedSession | None:
        """The newest session of that label and suite, None where there is none."""
        return next(self._sessions("label = ? AND suite = ?", label, suite), None)

    def sides(self, run: str) -> dict[str, PlannedSession]:
        """The sessions that took turns in one `parabench ab`, by their side."""
        return {row.interleaved["side"]: row for row in self._sessions("json_extract(interleaved, '$.run') = ?", run)}

    def labels(self) -> set[str]:
        """How the store's sessions are called."""
        return {label for (label,) in self._rows("SELECT label FROM session WHERE label IS NOT NULL")}

    def _sessions(self, where: str = "TRUE", *values: str) -> Iterator[PlannedSession]:
        """The sessions that a condition of SQL holds of, the newest first."""
        query = f"SELECT id, plan, argv, interleaved, label, suite FROM session WHERE {where} ORDER BY id DESC"
        for number, plan, argv, tied, label, suite in self._rows(query, values):
            plan, argv, tied = map(json_text.parsed, (plan, argv, tied))
            yield PlannedSession(number, plan, argv, tied, label, suite)

    def launches_done(self, session_id: int) -> set[tuple[str, int]]:
        """(case id, block) of every launch of a session that need not be run again."""
        rows = self._rows(f"SELECT case_id, block FROM launch WHERE session_id = ? AND {DONE}", (session_id,))
        return {(case_id, block) for case_id, block in rows}

    def reference_values(self, session_id: int) -> dict[str, dict[str, dict[int, float | None]]]:
        """{case id: {"loss" or "grad_norm": {step: value}}} of a session's ok reference launches."""
        rows = self._rows(
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
            error=public_text(str(failure)) if failure else None,
            started_utc=launch.started_utc,
            wall_s=launch.wall_s,
            failed_rank=failure.rank if failure else None,
            failed_signal=failure.signal if failure else None,
            traceback=public_text(failure.traceback) if failure and failure.traceback else None,
            facts=json.dumps(launch.facts),
        )
        with self._transaction() as db:
            launch_id = _insert(db, "launch", (session_id,), row)
            of_launch: dict[str, Iterable[tuple[Any, ...]]] = {
                "sample": launch.samples,
                "digest": digests(launch.samples),
                "device_sample": launch.device_samples,
                "host_sample": launch.host_samples,
                "span": launch.spans,
                "collective": launch.collectives,
            }
            for table, rows in of_launch.items():
                _insert_all(db, table, (launch_id,), rows)
            _insert_all(db, "finding", (session_id, launch_id), map(structs.astuple, launch.findings))
        return launch_id

    def add_links(self, session_id: int, rows: Iterable[LinkSample], messages: Iterable[LinkMessage] = ()) -> None:
        """Record what lies between the ranks of a session, and the messages from which that follows, in one
        transaction, instead of what it had there before."""
        with self._transaction() as db:
            of_session: dict[str, Iterable[tuple[Any, ...]]] = {"link": rows, "link_message": messages}
            for table, values in of_session.items():
                db.execute(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))
                _insert_all(db, table, (session_id,), values)

    def add_finding(self, session_id: int, finding: Finding) -> None:
        """Record a warning that concerns the session or a case, not one launch."""
        with self._transaction() as db:
            _insert(db, "finding", (session_id, None), structs.astuple(finding))

    def has_finding(self, session_id: int, code: str) -> bool:
        """Whether the session has a finding of that code."""
        query = "SELECT 1 FROM finding WHERE session_id = ? AND code = ?"
        return bool(self._rows(query, (session_id, code)))


def _insert(db: sqlite3.Connection, table: str, belongs_to: tuple[int | None, ...], row: tuple[Any, ...]) -> int:
    """Insert a row of what has those ids; returns the row's own."""
    cursor = db.execute(insert_statement(table), (*belongs_to, *row))
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _insert_all(
    db: sqlite3.Connection, table: str, belongs_to: tuple[int, ...], rows: Iterable[tuple[Any, ...]]
) -> None:
    db.executemany(insert_statement(table), ((*belongs_to, *row) for row in rows))


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
