"""The file of a store: what is stored is in it, and what happens to it meanwhile is noticed and loses nothing."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import fake_results as fake
from parabench.errors import UsageError
from parabench.store import database
from parabench.store.database import StoreError
from parabench.store.locks import holders
from parabench.store.record import HostSample
from parabench.store.results import load
from parabench.store.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with one launch."""
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "results.db"
    fake.write(path, [fake.launch(fake.case())])
    return path


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    """It, with another launch that this process has appended."""
    store = Store.open_or_create(path)
    add(store)
    yield store
    with closing(store._db._db):
        pass


def add(store: Store) -> None:
    store.append(1, fake.launch(fake.case(bucket_mib=9.0)))


def launches(path: Path) -> int:
    return len(load(path).launch)


def test_after_each_launch_the_one_file_has_all(store: Store, path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(path.read_bytes())
    assert launches(copy) == 2
    assert Path(f"{path}-wal").stat().st_size == 0


def test_a_reader_is_not_waited_for_and_what_it_holds_up_follows(store: Store, path: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        seen = reader.execute("SELECT count(*) FROM launch").fetchone()
        add(store)
        assert Path(f"{path}-wal").stat().st_size > 0
        assert reader.execute("SELECT count(*) FROM launch").fetchone() == seen
        assert launches(path) == 3
    add(store)
    assert Path(f"{path}-wal").stat().st_size == 0
    assert launches(path) == 4


def test_a_full_disk_is_an_error_with_its_cause_and_leaves_what_was_there(store: Store, path: Path) -> None:
    db = store._db._db
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages}")
    many = fake.launch(fake.case(), findings=[])
    many.samples *= 1000
    with pytest.raises(StoreError, match=r"results\.db cannot be written: database or disk is full$"):
        store.append(1, many)
    assert launches(path) == 2
    db.execute("PRAGMA max_page_count = 1000000")
    store.append(1, many)
    assert launches(path) == 3
    store.close()


def test_a_row_that_cannot_be_is_no_failure_of_the_store(store: Store, path: Path) -> None:
    wrong = fake.launch(fake.case())
    wrong.host_samples = [HostSample(None, 0.0, None, 1.0)]  # type: ignore[arg-type]
    with pytest.raises(sqlite3.IntegrityError):
        store.append(1, wrong)
    assert launches(path) == 2


def test_a_store_that_was_removed_is_saved_elsewhere(store: Store, path: Path, tmp_path: Path) -> None:
    path.unlink()
    with pytest.raises(StoreError, match=r"results\.db was removed while this run wrote to it$") as caught:
        add(store)
    store.close()
    assert caught.value.lost
    assert caught.value.saved == tmp_path / "out-saved"
    assert launches(tmp_path / "out-saved" / "results.db") == 2
    assert os.listdir(tmp_path / "out-saved") == ["results.db"]
    assert not path.exists()


def test_nothing_is_written_over_by_what_is_saved(store: Store, path: Path, tmp_path: Path) -> None:
    (tmp_path / "out-saved").mkdir()
    path.unlink()
    with pytest.raises(StoreError) as caught:
        add(store)
    assert caught.value.saved == tmp_path / "out-saved2"
    assert os.listdir(tmp_path / "out-saved") == []


def replace(path: Path, other: Path) -> None:
    other.replace(path)


def overwrite(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


def overwrite_by_text(path: Path, other: Path) -> None:
    path.write_text("something else " * 5000)


def truncate(path: Path, other: Path) -> None:
    os.truncate(path, path.stat().st_size - 4096)


def empty(path: Path, other: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize(
    ("change", "how"),
    [
        (replace, "was replaced by another file"),
        (overwrite, "was overwritten"),
        (overwrite_by_text, "was overwritten"),
        (truncate, "was overwritten"),
        (empty, "was overwritten"),
    ],
)
def test_what_takes_the_place_of_a_store_is_noticed_and_left_as_it_is(
    change: Callable[[Path, Path], None], how: str, store: Store, path: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.db"
    fake.write(other, [fake.launch(fake.case())] * 3)
    change(path, other)
    there = path.read_bytes()
    with pytest.raises(StoreError, match=f"{how} while this run wrote to it") as caught:
        add(store)
    store.close()
    assert path.read_bytes() == there
    assert (caught.value.saved is not None) == (change is replace)
    # Of a file that is elsewhere SQLite leaves the log; an empty one does no harm to another store.
    assert all(not each.stat().st_size for each in path.parent.glob("*-wal"))


def test_what_another_process_adds_to_the_store_is_no_damage(store: Store, path: Path) -> None:
    with Store.open_or_create(path) as other:
        add(other)
        add(store)
        add(other)
    add(store)
    store.close()
    assert launches(path) == 6


@pytest.mark.parametrize("end", ["-wal", "-shm"])
def test_a_log_that_was_removed_ends_it_and_loses_nothing(end: str, store: Store, path: Path) -> None:
    Path(f"{path}{end}").unlink()
    with pytest.raises(StoreError, match=rf"results\.db{end} was removed") as caught:
        add(store)
    assert not caught.value.lost
    store.close()
    with Store.open_or_create(path) as again:
        add(again)
    assert launches(path) == 3


@pytest.mark.parametrize("wholly", [0, 10**9])
def test_nothing_is_added_to_a_damaged_store(wholly: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "WHOLLY_CHECKED_BYTES", wholly)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 2048)
    there = path.read_bytes()
    with pytest.raises(UsageError, match=r"results\.db is damaged \(.*\), so nothing is added to it; put a copy"):
        Store.open_or_create(path)
    assert path.read_bytes() == there
    assert os.listdir(path.parent) == ["results.db"]


def test_what_was_begun_to_be_made_when_a_process_was_killed_is_made_anew(tmp_path: Path) -> None:
    """Killed amid its first transaction, SQLite leaves a file that is not empty, and a journal that undoes it."""
    path = tmp_path / "results.db"
    with closing(sqlite3.connect(tmp_path / "began.db", isolation_level=None)) as db:
        db.execute("PRAGMA cache_size = 1")
        db.execute("BEGIN IMMEDIATE")
        db.execute("CREATE TABLE session(x)")
        db.execute("INSERT INTO session VALUES (zeroblob(100000))")
        for end in ("", "-journal"):
            Path(f"{path}{end}").write_bytes(Path(f"{tmp_path / 'began.db'}{end}").read_bytes())
    assert path.stat().st_size > 0
    fake.write(path, [fake.launch(fake.case())])
    assert launches(path) == 1


HOLDER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


def test_who_has_a_store_locked_is_named(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "PATIENCE_S", 0.0)
    store._db._db.execute("PRAGMA busy_timeout = 0")
    with subprocess.Popen(
        [sys.executable, "-S", "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        told = rf"results\.db cannot be written: it is locked by process {holder.pid} \(python.*\)$"
        with pytest.raises(StoreError, match=told):
            add(store)
        holder.kill()
    add(store)
    assert launches(path) == 3


def test_a_lock_is_waited_for_until_it_is_gone(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store._db._db.execute("PRAGMA busy_timeout = 0")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        looks = []

        def looked() -> float:
            looks.append(0.0)
            if len(looks) == 4:
                other.execute("ROLLBACK")
            return 0.0

        monkeypatch.setattr(database.time, "monotonic", looked)
        add(store)
    assert len(looks) == 4
    assert launches(path) == 3


def test_holders_are_those_of_the_kernels_table(tmp_path: Path) -> None:
    file, table = tmp_path / "file", tmp_path / "locks"
    file.touch()
    there = file.stat()
    key = f"{os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}:{there.st_ino}"
    table.write_text(
        f"1: POSIX  ADVISORY  WRITE {os.getppid()} {key} 0 EOF\n"
        f"1: -> POSIX  ADVISORY  WRITE 5 {key} 0 EOF\n"
        f"2: POSIX  ADVISORY  READ {os.getpid()} {key} 0 EOF\n"
        f"3: FLOCK  ADVISORY  WRITE -1 {key} 0 EOF\n"
        "4: FLOCK  ADVISORY  WRITE 7 00:00:1 0 EOF\n"
    )
    assert [each.split(" (")[0] for each in holders([file, tmp_path / "none"], table)] == [f"process {os.getppid()}"]
    assert holders([file], tmp_path / "none") == []
