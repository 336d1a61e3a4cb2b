"""The file of a results database: its content, and damaged files."""

import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import fake_results as fake
from command_line import parabench
from parabench import __version__
from parabench.errors import UsageError
from parabench.serve import read_progress
from parabench.store.database import SCHEMA_VERSION, create_statements
from parabench.store.results import load
from parabench.store.store import Store
from paths import DOCS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with one launch."""
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "results.db"
    fake.write(path, [fake.launch(fake.case())])
    return path


def test_copy_of_the_file_has_every_launch(path: Path, tmp_path: Path) -> None:
    store = Store.open_or_create(path)
    store.append(1, fake.launch(fake.case(bucket_mib=9.0)))
    (tmp_path / "copy.db").write_bytes(path.read_bytes())
    assert len(load(tmp_path / "copy.db").launch) == 2
    store.close()


def test_damaged_database_is_not_extended(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 2048)
    there = path.read_bytes()
    with pytest.raises(UsageError, match=r"results\.db is damaged \(.*\); restore a copy, or give another --out"):
        Store.open_or_create(path)
    assert path.read_bytes() == there
    assert os.listdir(path.parent) == ["results.db"]


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute(statement)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE sqlite_master SET sql = substr(sql, 1, 20) WHERE name = 'link'", "malformed database schema (link)"),
        ("UPDATE session SET plan = '{\"cases\": ['", "plan of session 1"),
        ("PRAGMA application_id = 7", "is not a results database of parabench; give the results.db of a run"),
    ],
)
def test_best_refuses_a_damaged_database_in_one_line(path: Path, statement: str, message: str) -> None:
    change(path, statement)
    done = parabench("best", path)
    assert done.exit_code == 2, done.exception
    (line,) = done.stderr.splitlines()
    assert message in line
    assert not done.stdout


def test_page_about_the_database_has_all_columns() -> None:
    page = (DOCS / "reference/store.md").read_text()
    told = {name: columns.split() for name, columns in re.findall(r"^(\w+)\(([^)]*)\)", page, re.M)}
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(";".join(create_statements()))
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        made = {name: [row[1] for row in db.execute(f"PRAGMA table_info({name})")] for name in tables}
    assert {name: [each.rstrip(",") for each in columns] for name, columns in told.items()} == made
    assert f"`PRAGMA user_version` is {SCHEMA_VERSION}." in page


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1, 99])
def test_database_of_another_schema_is_refused_unchanged(version: int, path: Path) -> None:
    change(path, f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    told = rf"results\.db has schema {version}, and parabench {__version__} reads schema {SCHEMA_VERSION} only; use"

    def open_to_read(path: Path) -> None:
        with Store.open_to_read(path):
            pass

    uses: tuple[Callable[[Path], Any], ...] = (load, Store.open_or_create, read_progress, open_to_read)
    for use in uses:
        with pytest.raises(UsageError, match=told):
            use(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", ["no database " * 100, "SQLite format 3\0"])
def test_other_file_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    path.write_text(content)
    uses: tuple[Callable[[Path], Any], ...] = (load, Store.open_or_create)
    for use in uses:
        with pytest.raises(UsageError, match=r"r\.db is (damaged or )?not a (usable )?results database"):
            use(path)
