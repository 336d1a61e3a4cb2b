"""The file of a store, as the database that one process writes to, and what may happen to it meanwhile.

After each transaction the write-ahead log is folded into the file, and is empty: a plain copy of it is whole, and a log
that is lost, or that lies beside another store, does no harm. Before each one it is looked at whether the path still
leads to that file, for what is written to one that was removed or replaced nobody would find.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from parabench import __version__
from parabench.errors import UsageError, near
from parabench.store import soundness
from parabench.store.locks import holders
from parabench.store.schema import APPLICATION_ID, SCHEMA_VERSION, create_statements

# How long a lock of somebody else's is waited for, in which a launch that has ended is only in memory. SQLite waits in
# parts of it, for no signal is heard meanwhile.
PATIENCE_S = 60.0
WAIT_S = 2.0

# NORMAL: what is folded into the file is on the disk. Tests have no power failure, and most of them wait for no disk.
SYNCHRONOUS = "NORMAL"

# Whether indexes and tables agree takes 9 s for a gigabyte, and all else 2 s; of a larger store only that is looked at.
WHOLLY_CHECKED_BYTES = 500_000_000

# What belongs to a store while it is open.
BESIDE = ("", "-wal", "-shm")


class StoreError(UsageError):
    """A store that cannot be written, or read, any more; the text is the cause. Where `lost`, what it held is not at
    its path any more, and was `saved` in that folder, if that was possible."""

    def __init__(self, cause: str, *, lost: bool = False, saved: Path | None = None) -> None:
        super().__init__(cause)
        self.lost, self.saved = lost, saved


class Database:
    """An open store's file. All that fails raises StoreError, but what is wrong with the rows themselves."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._db = connection
        # By its path, what each file is, as os.stat tells; and how large the store was, and when it was last changed.
        self._files: dict[Path, tuple[int, int]] = {}
        self._seen: tuple[int, int] | None = None
        # Of the sessions and the last launch that this process knows, when they began.
        self._known: dict[tuple[str, int], str] = {}
        self._gone = False

    @classmethod
    def open_or_create(cls, path: Path) -> Database:
        """The store at `path`, made if it is not there. Raises UsageError when it is no store, is damaged, which leaves
        it as it is, or cannot be written."""
        try:
            unfinished = _size(Path(f"{path}-journal")) > 0  # only who may write can undo what was begun
            if _size(path) and not unfinished:
                with open_to_read(path) as db:
                    check_sound(db, path)
            db = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
        except (sqlite3.Error, OSError) as error:
            raise UsageError(_not_usable(path, error)) from error
        try:
            db.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
            fresh = not db.execute("PRAGMA page_count").fetchone()[0]
            if fresh:
                _begin(db, path)
                db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                for statement in create_statements().split(";"):
                    db.execute(statement)
                db.execute("COMMIT")
            check_store(db, path)
            if unfinished:
                check_sound(db, path)
            # Readers (a live report) never block the run; one file is left when the store is closed.
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA foreign_keys = ON")
            opened = cls(path, db)
            opened._look()
        except BaseException as error:
            db.close()
            if isinstance(error, sqlite3.Error | OSError):
                raise UsageError(_not_usable(path, error)) from error
            raise
        return opened

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """What a query finds."""
        with self._failing("read"):
            return self._db.execute(query, values).fetchall()

    def check_rows(self, table: str, where: str = "TRUE", only: Sequence[str] | None = None) -> None:
        """Raise UsageError where rows that are to be read hold something else than their columns say."""
        with self._failing("read"):
            soundness.check_rows(self._db, self.path, table, where, only)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is done in the block, or nothing of it; then it is in the one file."""
        with self._failing("written"):
            self._check_there()
            _begin(self._db, self.path)
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                # A full disk has SQLite undo it by itself.
                with contextlib.suppress(sqlite3.Error):
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                raise
            self._fold()
            self._look()

    def close(self) -> None:
        """Leave the one file that people copy. Raises StoreError where that fails, which loses nothing."""
        try:
            with self._failing("closed"):
                if self._gone:
                    return
                self._check_there()
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # a reader of the moment is waited for
                with contextlib.suppress(sqlite3.OperationalError):  # one is still there: the log stays beside it
                    self._db.execute("PRAGMA journal_mode = DELETE")
        finally:
            self._db.close()

    def _fold(self) -> None:
        """Nobody is waited for: what a reader holds up now is folded after a later transaction."""
        self._db.execute("PRAGMA busy_timeout = 0")
        try:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            self._db.execute(f"PRAGMA busy_timeout = {WAIT_S * 1000:.0f}")

    def _look(self) -> None:
        """Remember what the files are, and what they hold."""
        for path in [Path(f"{self.path}{end}") for end in BESIDE]:
            with contextlib.suppress(FileNotFoundError):
                there = path.stat()
                self._files.setdefault(path, (there.st_dev, there.st_ino))
                if path == self.path:
                    self._seen = there.st_size, there.st_mtime_ns
        self._known = self._newest(self._db)

    def _check_there(self) -> None:
        """Raise StoreError where the path does not lead to what was opened any more."""
        for path, known in self._files.items():
            try:
                there = path.stat()
            except FileNotFoundError:
                self._lose(path, "was removed")
            if (there.st_dev, there.st_ino) != known:
                self._lose(path, "was replaced by another file")
            if path == self.path and (there.st_size, there.st_mtime_ns) != self._seen:
                self._check_content()

    def _check_content(self) -> None:
        """Somebody else wrote into the file: another side of an ab, or who does not know what it is. What SQLite has in
        memory of it tells nothing."""
        with self._failing("read"), contextlib.closing(_connect_to_read(self.path)) as db:
            try:
                check_store(db, self.path)
                size = db.execute("PRAGMA page_count").fetchone()[0] * db.execute("PRAGMA page_size").fetchone()[0]
                # While it is not folded, the log may have the rest.
                folded = not _size(Path(f"{self.path}-wal"))
                same = not (folded and size > _size(self.path)) and all(
                    db.execute(f"SELECT started_utc FROM {table} WHERE id = ?", (number,)).fetchone() == (began,)
                    for (table, number), began in self._known.items()
                )
            except sqlite3.OperationalError:
                raise  # locked, or the disk: nothing of what it holds
            except (sqlite3.DatabaseError, UnicodeDecodeError, UsageError):
                same = False
        if not same:
            self._gone = True
            raise StoreError(f"{self.path} was overwritten while this run wrote to it", lost=True)

    def _newest(self, db: sqlite3.Connection) -> dict[tuple[str, int], str]:
        """{(table, id): when it began} of the last session and the last launch."""
        newest = {}
        for table in ("session", "launch"):
            for number, began in db.execute(f"SELECT id, started_utc FROM {table} ORDER BY id DESC LIMIT 1"):
                newest[table, number] = began
        return newest

    def _lose(self, path: Path, how: str) -> None:
        """Raise StoreError for a file that is not at its path any more; what a store held that was moved away is still
        to be read here."""
        self._gone = True
        lost = path == self.path
        raise StoreError(f"{path} {how} while this run wrote to it", lost=lost, saved=self._save() if lost else None)

    def _save(self) -> Path | None:
        """A folder beside the one of the store with what it held; None where it could not be saved."""
        own = self.path.parent if self.path.parent.name else self.path.parent.resolve()
        try:
            for number in range(1, 1000):
                folder = own.with_name(f"{own.name}-saved{number if number > 1 else ''}")
                try:
                    folder.mkdir()
                except FileExistsError:
                    continue
                with contextlib.closing(sqlite3.connect(folder / self.path.name)) as copy:
                    self._db.backup(copy)
                    copy.execute("PRAGMA journal_mode = DELETE")
                return folder
        except (OSError, sqlite3.Error):
            with contextlib.suppress(OSError):
                folder.rmdir()
        return None

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Within, the database's own failures become StoreError: it cannot be `what` any more."""
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError, sqlite3.NotSupportedError):
            raise
        except sqlite3.DatabaseError as error:
            raise StoreError(f"{self.path} cannot be {what}: {_cause(self.path, error)}") from error
        except UnicodeDecodeError as error:
            raise StoreError(f"{self.path} cannot be {what}: {error}") from error


@contextlib.contextmanager
def open_to_read(path: Path) -> Iterator[sqlite3.Connection]:
    """The store at `path`, which nothing is written to. Raises UsageError when it is none."""
    with contextlib.closing(_connect_to_read(path)) as db:
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
        why = f"a name in it is no text; {soundness.REMEDY}"
        raise UsageError(f"{path} cannot be read as a parabench store: {why}") from error


def check_store(db: sqlite3.Connection, path: Path) -> None:
    """Raise UsageError when the file is no store, or one of another schema."""
    try:
        soundness.limit(db)
        application_id = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.OperationalError as error:
        raise not_readable(path, error) from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
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


def check_file(path: Path) -> None:
    """Raise UsageError where no store can be, with what is there instead."""
    remedy = "give the results.db of a run"
    if os.path.isfile(path):
        return
    if os.path.isdir(path):
        raise UsageError(f"{path} is a folder; {remedy}")
    if os.path.exists(path):
        raise UsageError(f"{path} is not a file; {remedy}")
    raise UsageError(f"{path} does not exist; {near(Path(path))}{remedy}")


def not_readable(path: Path, error: Exception) -> UsageError:
    """What SQLite said as it read the store, and what to do about it."""
    if isinstance(error, sqlite3.OperationalError):
        # Not what it holds: another process has it locked, or the disk fails.
        return UsageError(f"{path} cannot be read: {error}; see which process holds it, and try again")
    return UsageError(f"{path} cannot be read as a parabench store: {error}; {soundness.REMEDY}")


def check_sound(db: sqlite3.Connection, path: Path) -> None:
    """Raise UsageError when the store is damaged: nothing is to be added to it. That reads all of it."""
    check = "integrity_check" if _size(path) <= WHOLLY_CHECKED_BYTES else "quick_check"
    try:
        found = db.execute(f"PRAGMA {check}(1)").fetchone()[0]
    except sqlite3.OperationalError:
        raise
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # it may tell of it in bytes of the damaged page
        found = str(error)
    if found != "ok":
        why = " ".join(found.removeprefix("*** in database main ***").split())
        raise UsageError(
            f"{path} is damaged ({why}), so nothing is added to it; put a copy of before in its place, or give another "
            "--out"
        )


def _connect_to_read(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def _begin(db: sqlite3.Connection, path: Path) -> None:
    """Begin to write, once nobody else does."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            db.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if not _is_locked(error) or time.monotonic() > until:
                raise


def _is_locked(error: sqlite3.Error) -> bool:
    # What Python itself raises, of text that is none, has no such name.
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _cause(path: Path, error: sqlite3.Error | OSError) -> str:
    """Why, and who, where it is another process that is in the way."""
    if not isinstance(error, sqlite3.Error):
        return error.strerror or str(error)
    if not _is_locked(error):
        return str(error)
    who = holders([Path(f"{path}{end}") for end in BESIDE])
    by = ", ".join(who) or "another process"
    return f"it is locked by {by}"


def _not_usable(path: Path, error: sqlite3.Error | OSError) -> str:
    return f"{path} cannot be used as a store: {_cause(path, error)}; give another --out"


def _size(path: Path) -> int:
    """In bytes; 0 where it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
