"""A store: read as an older version left it, brought up to date by writing, and what several nodes add to it."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import fake_results as fake
import pytest
from fake_old_store import make_older

from parabench.errors import UsageError
from parabench.store.record import DeviceSample, HostSample, LinkMessage, LinkSample, Phase
from parabench.store.results import check_version
from parabench.store.schema import SCHEMA_VERSION, new_columns
from parabench.store.store import Store, load


def contents(path):
    """Every table with its columns in the order that SELECT * has them in, whatever the statement that made it."""
    with sqlite3.connect(path) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master ORDER BY name")]
        found = {name: db.execute(f"PRAGMA table_info({name})").fetchall() for name in tables}
    db.close()
    return {name: [row[1:5] for row in rows] for name, rows in found.items()}


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_an_older_store_is_read_as_it_is_and_brought_up_to_date_by_writing(version, tmp_path):
    path, new = tmp_path / "old.db", tmp_path / "new.db"
    for store in (path, new):
        one = fake.launch(fake.case(), 0.04, device_samples=[DeviceSample(0, 0.1, "power_w", 300.0)])
        fake.write(store, [one])
    make_older(path, version)
    before = path.read_bytes()
    lacking = new_columns(version)
    for column in lacking:
        assert column.name in getattr(load(path), column.table).columns
    assert list(load(path).device_sample["node"]) == [0]
    assert list(load(path).span.columns) == ["launch_id", "rank", "step", "name", "start_s", "end_s"]
    assert list(load(path).host_sample.columns) == list(load(new).host_sample.columns)
    assert list(load(path).links.columns) == ["session_id", *LinkSample._fields]
    assert path.read_bytes() == before
    with Store.open_or_create(path):
        pass
    assert list(load(path).device_sample["node"]) == [0]
    fake.write(path, [fake.launch(fake.case(), 0.04)])
    assert len(load(path).launch) == 2
    columns = {name: sorted(map(repr, rows)) for name, rows in contents(path).items()}
    assert columns == {name: sorted(map(repr, rows)) for name, rows in contents(new).items()}
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION


def test_a_reading_says_on_which_node_it_was_made(tmp_path):
    one = fake.launch(
        fake.case(),
        device_samples=[DeviceSample(3, 0.1, "power_w", 300.0), DeviceSample(3, 0.1, "power_w", 200.0, node=1)],
        host_samples=[HostSample(2, 0.1, "rss_bytes", 1e8, node=1), HostSample(None, 0.1, "other_cpu_share", 0.0)],
    )
    results = fake.write(tmp_path / "r.db", [one])
    assert list(results.device_sample["node"]) == [0, 1]
    assert list(results.host_sample["node"]) == [1, 0]


def test_links_are_kept_by_session_and_measured_anew_as_a_whole(tmp_path):
    path = tmp_path / "r.db"
    for label in ("a", "b"):
        fake.write(path, [fake.launch(fake.case())], label=label)
    there = LinkSample(0, 1, 0, 1, "cuda:0", "cuda:0", 12e-6, 24e9)
    back = LinkSample(1, 0, 1, 0, "cuda:0", "cuda:0", None, None, "rank 1 ended")
    message, other = (LinkMessage(0, 1, 8, Phase.MEASURE, seconds) for seconds in (25e-6, 30e-6))
    with Store.open_or_create(path) as store:
        store.add_links(1, [there], [other, other])
        store.add_links(2, [back], [other])
        store.add_links(1, [there, back], [message])
    links = load(path).links.astype(object).where(lambda table: table.notna(), None)
    assert [tuple(row) for row in links.to_numpy()] == [(2, *back), (1, *there), (1, *back)]
    messages = load(path).link_messages
    assert list(messages.columns) == ["session_id", *LinkMessage._fields]
    assert [tuple(row) for row in messages.to_numpy()] == [(2, *other), (1, *message)]


def test_links_that_cannot_be_written_leave_those_of_before(tmp_path):
    path = tmp_path / "r.db"
    fake.write(path, [fake.launch(fake.case())])
    one = LinkSample(0, 1, 0, 1, "cpu", "cpu", 1e-5, 1e9)
    with Store.open_or_create(path) as store:
        store.add_links(1, [one])
        with pytest.raises(sqlite3.IntegrityError):
            store.add_links(1, [one, one._replace(from_device=None)])
    assert len(load(path).links) == 1


def test_a_store_that_another_process_has_locked_is_not_called_none(tmp_path):
    path = tmp_path / "r.db"
    fake.write(path, [fake.launch(fake.case())])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with (
            closing(sqlite3.connect(path, timeout=0)) as db,
            pytest.raises(UsageError, match=r"r\.db cannot be read: database is locked; see which process holds it"),
        ):
            check_version(db, path)
