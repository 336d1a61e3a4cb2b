"""Open a results database: one SQLite file with one writer at a time."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from parabench import __version__
from parabench.errors import UsageError
from parabench.store.schema import APPLICATION_ID, SCHEMA_VERSION, create_statements

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
            damage = " ".join(db.execute("PRAGMA quick_check(1)").fetchone()[0].split())
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
