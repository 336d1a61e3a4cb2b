"""Open a results database for reading or writing: one SQLite file, which only one run at a time writes to."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from parabench import __version__
from parabench.errors import UsageError, near
from parabench.store.schema import APPLICATION_ID, SCHEMA_VERSION, TABLES, create_statements

# How long a write waits for another process's lock. The launch to be written is only in memory meanwhile.
LOCK_TIMEOUT_S = 60.0

# NORMAL survives a power failure with the file intact. Tests switch it off to save time.
SYNCHRONOUS = "NORMAL"

GIVE_RESULTS = "give the results.db of a run"
DAMAGED = "it is damaged, or parabench did not write it; give another database"


class StoreError(UsageError):
    """A results database that cannot be read or written any more; the text is the cause."""


def open_to_write(path: Path) -> sqlite3.Connection:
    """Open the database at `path`, or create it if the file is missing or empty.

    Raises:
        UsageError: if the file is not a results database, is damaged or cannot be written. It is left as it was.
    """
    try:
        db = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
    except sqlite3.Error as error:
        raise _not_usable(path, error) from error
    try:
        if not db.execute("PRAGMA page_count").fetchone()[0]:
            _create(db)
        check_store(db, path)
        damage = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if damage != "ok":
            raise UsageError(f"{path} is damaged ({' '.join(damage.split())}); restore a copy, or give another --out")
        # Readers, such as a live report, never block the run. After each transaction SQLite copies the log into the
        # file, so that a copy of the file is complete.
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA wal_autocheckpoint = 1")
        db.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
        db.execute("PRAGMA foreign_keys = ON")
    except BaseException as error:
        db.close()
        if isinstance(error, sqlite3.Error):
            raise _not_usable(path, error) from error
        raise
    return db


def _create(db: sqlite3.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    for statement in create_statements():
        db.execute(statement)
    db.execute("COMMIT")


@contextlib.contextmanager
def open_to_read(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database at `path` for reading. Raises UsageError if it is not a results database or cannot be read."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            check_store(db, path)
            yield db
    except Exception as error:
        # pandas has its own class for errors of the database. The names in a damaged one may not be text.
        if isinstance(error, sqlite3.Error | UnicodeDecodeError) or type(error).__name__ == "DatabaseError":
            raise not_readable(path, error) from error
        raise


def check_store(db: sqlite3.Connection, path: Path) -> None:
    """Raise UsageError if the file is not a results database, or has another schema."""
    try:
        application_id = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.OperationalError as error:
        raise not_readable(path, error) from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a parabench store: {error}; {GIVE_RESULTS}") from error
    if application_id != APPLICATION_ID:
        raise UsageError(f"{path} is not a parabench store; {GIVE_RESULTS}")
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{path} has schema {version}, and parabench {__version__} reads schema {SCHEMA_VERSION} only; "
            "use the version that wrote it, or another store"
        )
    if not tables >= TABLES.keys():
        raise UsageError(f"{path} is an incomplete parabench store; remove it, or {GIVE_RESULTS}")


def check_file(path: Path) -> None:
    """Raise UsageError if `path` is not a file, with what it is instead."""
    if os.path.isfile(path):
        return
    if os.path.isdir(path):
        raise UsageError(f"{path} is a folder; {GIVE_RESULTS}")
    if os.path.exists(path):
        raise UsageError(f"{path} is not a file; {GIVE_RESULTS}")
    raise UsageError(f"{path} does not exist; {near(Path(path))}{GIVE_RESULTS}")


def not_readable(path: Path, error: Exception) -> UsageError:
    """Return the error to raise if reading failed, with the remedy."""
    if isinstance(error, sqlite3.OperationalError):
        # A lock of another process, or a failing disk.
        return UsageError(f"{path} cannot be read: {error}; see which process holds it, and try again")
    return UsageError(f"{path} cannot be read as a parabench store: {error}; {DAMAGED}")


def _not_usable(path: Path, error: sqlite3.Error) -> UsageError:
    if isinstance(error, sqlite3.OperationalError):
        return UsageError(f"{path} cannot be used as a store: {error}; give another --out")
    return UsageError(f"{path} is not a parabench store: {error}; give another --out")


@contextlib.contextmanager
def storing(path: Path, action: str) -> Iterator[None]:
    """Within the block, raise failures of SQLite as StoreError: the database cannot be `action` (written, say)."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError, sqlite3.NotSupportedError):
        raise  # a row that is wrong, not the file
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be {action}: {error}") from error
