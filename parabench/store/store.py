"""Write a results database: one SQLite file, with one transaction for each launch."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec import structs

from parabench import __version__, json_text
from parabench.private import public_argv, public_text
from parabench.store.database import (
    DONE,
    NOT_WELL,
    LaunchRow,
    SessionRow,
    StoreError,
    digests,
    insert_statement,
    open_to_read,
    open_to_write,
    storing,
)
from parabench.store.record import REFERENCE_REPETITION, Finding, Launch, LinkMessage, LinkSample, Status, utc_now

# The name of the database in the folder of a run.
STORE_NAME = "results.db"


@dataclass(frozen=True)
class PlannedSession:
    """A stored session that can be resumed. `interleaved` is empty unless the session is a variant of an `ab`."""

    id: int
    plan: dict[str, Any]
    argv: list[str]
    interleaved: dict[str, str]
    label: str | None
    suite: str


class Store:
    """A results database to write to. Its methods raise StoreError if the file cannot be read or written."""

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
        """Close the database, so that it is a single file."""
        try:
            # If another process has the file open, the last one to close it removes the log.
            with storing(self.path, "closed"), contextlib.suppress(sqlite3.OperationalError):
                self._db.execute("PRAGMA journal_mode = DELETE")
        finally:
            self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # The error that ended the block is more useful.
        with contextlib.suppress(*([] if kind is None else [StoreError])):
            self.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Write all changes of the `with` block, or none if it raises."""
        with storing(self.path, "written"):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite itself rolls back if the disk is full
                    self._db.execute("ROLLBACK")
                raise

    def _rows(self, query: str, *values: Any) -> list[Any]:
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
        """Store a session before its first launch, and return its id.

        `argv` is stored without paths and secrets. For a variant of an `ab`, `interleaved` is {"run": ..., "side": "a"
        or "b"}, and both variants have the same run.
        """
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
        """Replace the plan of a session, and mark the session as incomplete."""
        with self._transaction() as db:
            db.execute("UPDATE session SET plan = ?, finished_utc = NULL WHERE id = ?", (json.dumps(plan), session_id))

    def finish_session(self, session_id: int) -> None:
        """Mark a session as complete."""
        finish = "UPDATE session SET finished_utc = ? WHERE id = ? AND finished_utc IS NULL"
        with self._transaction() as db:
            db.execute(finish, (utc_now(), session_id))

    def all_ok(self, session_id: int) -> bool:
        """Return whether no launch of a session failed. Interrupted launches and NCCL's debug log do not count."""
        return not self._rows(f"SELECT 1 FROM launch WHERE session_id = ? AND {NOT_WELL} LIMIT 1", session_id)

    def last_session(self, *label_and_suite: str) -> PlannedSession | None:
        """Return the newest session, or the newest one with this label and suite; None if there is none."""
        where = "label = ? AND suite = ?" if label_and_suite else "TRUE"
        return next(self._sessions(where, *label_and_suite), None)

    def sides(self, run: str) -> dict[str, PlannedSession]:
        """Return the sessions of one `parabench ab`: {"a": ..., "b": ...}."""
        return {row.interleaved["side"]: row for row in self._sessions("json_extract(interleaved, '$.run') = ?", run)}

    def labels(self) -> set[str]:
        """Return the labels of the sessions."""
        return {label for (label,) in self._rows("SELECT label FROM session WHERE label IS NOT NULL")}

    def _sessions(self, where: str, *values: str) -> Iterator[PlannedSession]:
        """Yield the sessions that meet an SQL condition, the newest first."""
        query = f"SELECT id, plan, argv, interleaved, label, suite FROM session WHERE {where} ORDER BY id DESC"
        for number, plan, argv, tied, label, suite in self._rows(query, *values):
            plan, argv, tied = map(json_text.parsed, (plan, argv, tied))
            yield PlannedSession(number, plan, argv, tied, label, suite)

    def launches_done(self, session_id: int) -> set[tuple[str, int]]:
        """Return (case id, repetition) of every launch of a session that need not run again."""
        return set(self._rows(f"SELECT case_id, repetition FROM launch WHERE session_id = ? AND {DONE}", session_id))

    def reference_values(self, session_id: int) -> dict[str, dict[str, dict[int, float | None]]]:
        """Return {case id: {"loss" or "grad_norm": {step: value}}} of the successful reference launches."""
        rows = self._rows(
            "SELECT case_id, metric, step, value FROM sample JOIN launch ON launch.id = launch_id"
            " WHERE session_id = ? AND repetition = ? AND status = ? AND metric IN ('loss', 'grad_norm')",
            session_id, REFERENCE_REPETITION, Status.OK,
        )  # fmt: skip
        found: dict[str, dict[str, dict[int, float | None]]] = {}
        for case_id, metric, step, value in rows:
            found.setdefault(case_id, {}).setdefault(metric, {})[step] = value
        return found

    def append(self, session_id: int, launch: Launch) -> int:
        """Append one launch with its measurements in one transaction, and return its id."""
        case, failure = launch.case, launch.failure
        row = LaunchRow(
            case_id=case.id,
            case_json=json.dumps(case.to_dict()),
            strategy=case.strategy,
            algorithm=case.algorithm,
            model=case.model,
            world_size=case.world_size,
            bucket_mib=case.bucket_cap,  # `case_json` has a list
            repetition=launch.repetition,
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
        of_launch: dict[str, Iterable[tuple[Any, ...]]] = {
            "sample": launch.samples,
            "digest": digests(launch.samples),
            "device_sample": launch.device_samples,
            "host_sample": launch.host_samples,
            "span": launch.spans,
            "collective": launch.collectives,
        }
        with self._transaction() as db:
            launch_id = _insert(db, "launch", (session_id,), row)
            for table, rows in of_launch.items():
                _insert_all(db, table, (launch_id,), rows)
            _insert_all(db, "finding", (session_id, launch_id), map(structs.astuple, launch.findings))
        return launch_id

    def add_links(self, session_id: int, rows: Iterable[LinkSample], messages: Iterable[LinkMessage] = ()) -> None:
        """Store the links between the ranks of a session and their timed messages, which replace earlier ones."""
        with self._transaction() as db:
            for table in ("link", "link_message"):
                db.execute(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))
            _insert_all(db, "link", (session_id,), rows)
            _insert_all(db, "link_message", (session_id,), messages)

    def add_finding(self, session_id: int, finding: Finding) -> None:
        """Store a warning about the session or a configuration, not about one launch."""
        with self._transaction() as db:
            _insert(db, "finding", (session_id, None), structs.astuple(finding))

    def has_finding(self, session_id: int, code: str) -> bool:
        """Return whether the session has a finding with that code."""
        return bool(self._rows("SELECT 1 FROM finding WHERE session_id = ? AND code = ?", session_id, code))


def _insert(db: sqlite3.Connection, table: str, belongs_to: tuple[int | None, ...], row: Sequence[Any]) -> int:
    cursor = db.execute(insert_statement(table), (*belongs_to, *row))
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _insert_all(db: sqlite3.Connection, table: str, belongs_to: tuple[int, ...], rows: Iterable[Sequence[Any]]) -> None:
    db.executemany(insert_statement(table), ((*belongs_to, *row) for row in rows))
