"""Results databases: their tables, refused files, and readings of several nodes."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

import pytest

import fake_results as fake
from parabench import __version__
from parabench.errors import UsageError
from parabench.serve.server import read_progress
from parabench.store.record import DeviceSample, HostSample
from parabench.store.results import load
from parabench.store.schema import SCHEMA_VERSION, create_statements
from parabench.store.store import Store
from paths import DOCS


def test_page_about_the_database_has_all_columns(tmp_path):
    page = (DOCS / "reference/store.md").read_text()
    told = {name: columns.split() for name, columns in re.findall(r"^(\w+)\(([^)]*)\)", page, re.M)}
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(";".join(create_statements()))
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        made = {name: [row[1] for row in db.execute(f"PRAGMA table_info({name})")] for name in tables}
    assert {name: [each.rstrip(",") for each in columns] for name, columns in told.items()} == made
    assert f"`PRAGMA user_version` is {SCHEMA_VERSION}." in page


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1, 99])
def test_database_of_another_schema_is_refused_unchanged(version, tmp_path):
    path = tmp_path / "r.db"
    fake.write(path, [fake.launch(fake.case())])
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    told = rf"r\.db has schema {version}, and parabench {__version__} reads schema {SCHEMA_VERSION} only; use"

    def opened_to_read(path):
        with Store.open_to_read(path):
            pass

    for use in (load, Store.open_or_create, read_progress, opened_to_read):
        with pytest.raises(UsageError, match=told):
            use(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", ["no database " * 100, "SQLite format 3\0"])
def test_other_file_is_refused(content, tmp_path):
    path = tmp_path / "r.db"
    path.write_text(content)
    for use in (load, Store.open_or_create):
        with pytest.raises(UsageError, match=r"r\.db is (damaged or )?not a (usable )?results database"):
            use(path)


def test_reading_has_its_node(tmp_path):
    one = fake.launch(
        fake.case(),
        device_samples=[DeviceSample(3, 0.1, "power_w", 300.0), DeviceSample(3, 0.1, "power_w", 200.0, node=1)],
        host_samples=[HostSample(2, 0.1, "rss_bytes", 1e8, node=1), HostSample(None, 0.1, "other_cpu_share", 0.0)],
    )
    results = fake.write(tmp_path / "r.db", [one])
    assert list(results.device_sample["node"]) == [0, 1]
    assert list(results.host_sample["node"]) == [1, 0]
