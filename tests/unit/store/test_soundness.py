"""What is refused as a store, or as a row of one: in one line, before anything is made of it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest

import fake_results as fake
from command_line import parabench
from parabench.analysis.session import select_session
from parabench.errors import UsageError
from parabench.machine.machine import environment, this_machine
from parabench.plan.protocol import Protocol
from parabench.serve.progress import read_progress
from parabench.session.dry_run import known_seconds
from parabench.store import json_text, results, shapes, soundness
from parabench.store.digest import SLOWEST
from parabench.store.json_text import COUNT, FLAG, NUMBER, TEXT
from parabench.store.results import load
from parabench.store.store import Store


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "r.db"
    fake.write(path, fake.sweep([fake.case(bucket_mib=size) for size in (1.0, 25.0)], lambda one: 0.02, noise=0.01))
    return path


def change(path, *statements):
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)


def refused(path, *words):
    """`best` and `report` refuse the store, each in a line that has the words."""
    for command in (["best", path], ["report", path, "-o", path.parent / "page.html"]):
        done = parabench(*command)
        assert done.exit_code == 2, done.exception
        (line,) = done.stderr.splitlines()
        assert not done.stdout
        assert all(word in line for word in words), line
    assert not (path.parent / "page.html").exists()


@pytest.mark.parametrize(
    ("change_to", "said"),
    [
        ("wall_s = 'long'", "wall_s of row 1 of launch is text 'long'"),
        ("wall_s = 9e999", "wall_s of row 1 of launch is real"),
        ("block = 0.5", "block of row 1 of launch is real '0.5'"),
        ("block = -9", "block of row 1 of launch is integer '-9'"),
        ("world_size = 4611686018427387904", "world_size of row 1 of launch is integer"),
        ("status = x'00ff'", "status of row 1 of launch is blob"),
        ("facts = x'7b7d'", "facts of row 1 of launch is blob"),
        ("error = 7.5 || ''", None),
    ],
)
def test_a_row_that_holds_something_else_than_its_columns_say_is_refused(store, change_to, said):
    change(store, f"UPDATE launch SET {change_to} WHERE id = 1")
    if said is None:
        assert parabench("best", store).exit_code == 0
    else:
        refused(store, f"{store} cannot be read", said, "give another store")


def test_packed_numbers_have_as_many_places_as_values(store):
    change(store, "UPDATE digest SET value = substr(value, 9) WHERE rowid = 1")
    refused(store, "value of row 1 of digest is blob")


@pytest.mark.parametrize(
    "statements",
    [
        (
            "DROP TABLE span",
            "CREATE VIEW span AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x FROM n",
        ),
        ("ALTER TABLE launch ADD COLUMN launch_id INTEGER",),
        ("ALTER TABLE finding RENAME COLUMN code TO kind",),
    ],
)
def test_other_tables_than_the_schemas_are_refused(store, statements):
    change(store, *statements)
    refused(store, "than parabench makes")


def test_a_store_with_triggers_is_refused_by_whoever_would_write_to_it(store):
    change(store, "CREATE TRIGGER t AFTER INSERT ON session BEGIN DELETE FROM launch; END")
    refused(store, "has triggers")
    with pytest.raises(UsageError, match="has triggers"):
        Store.open_or_create(store)


def test_a_schema_that_is_no_text_is_refused(store):
    raw = store.read_bytes()
    at = raw.index(b"CREATE TABLE finding")
    store.write_bytes(raw[:at] + b"\xf0\xf0" + raw[at + 2 :])
    refused(store, "cannot be")


def test_a_text_of_a_size_that_no_text_has_is_not_read(store):
    size = soundness.LONGEST_BYTES + 1
    change(store, f"UPDATE session SET question = CAST(zeroblob({size}) AS TEXT)")
    refused(store, "too big")


def test_texts_that_do_not_fit_into_memory_together_are_not_read(store, monkeypatch):
    monkeypatch.setattr(results, "MOST_CHARACTERS", 1000)
    with pytest.raises(UsageError, match=r"launch holds more text than fits|session holds more text"):
        load(store).launch_columns  # noqa: B018


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("column", "text", "said"),
    [
        ("plan", "[", "plan of session 1 of"),
        ("plan", "null", "it is null, not an object"),
        ("plan", '{"cases": [{"world_size": 1e9}]}', "cases[0].world_size is"),
        ("plan", '{"cases": [{"strategy": 7}]}', "strategy is 7"),
        ("plan", '{"skipped": [{"reason": "none"}]}', "skipped[0].case is missing"),
        ("environment", DEEP, "it is nested too deeply"),
        ("environment", '{"gpus": 7}', "gpus is 7, not a list"),
        ("environment", '{"versions": {"torch": ["2"]}}', "versions.torch is a list, not a text"),
        ("environment", '{"cores": ' + "1" * 5000 + "}", "it is no JSON"),
        ("argv", '{"a": 1}', "it is an object, not a list"),
        ("interleaved", '{"run": "x"}', "side is missing"),
    ],
)
def test_json_of_another_shape_is_refused(store, column, text, said):
    change(store, f"UPDATE session SET {column} = '{text}'")
    refused(store, f"{column} of session 1 of {store} cannot be read", said)
    if column != "environment" and "strategy" not in text:  # neither is looked at before a plan is taken up
        with pytest.raises(UsageError), Store.open_to_read(store) as read:
            read.last_session()


@pytest.mark.parametrize(
    ("column", "text", "said"),
    [
        ("facts", '{"turns": {"cases": []}}', "turns.protocol is missing"),
        ("facts", '{"nodes": [{"node": 0, "first_rank": 0, "ranks": 1e12}]}', "nodes[0].ranks is"),
        ("case_json", '{"strategy": "ddp", "world_size": 3000000}', "world_size is 3000000"),
        ("case_json", "{}", "case_id of launch 2"),
    ],
)
def test_a_launch_that_tells_what_none_does_is_refused(store, column, text, said):
    change(store, f"UPDATE launch SET {column} = '{text}' WHERE id < 3")
    refused(store, f"of {store}", said)


def test_how_far_a_session_is_says_what_is_wrong_with_it(store):
    for statement, said in (
        ("UPDATE session SET plan = json_set(plan, '$.blocks', 'three')", "blocks is"),
        ("UPDATE session SET plan = json_set(json_set(plan, '$.blocks', 3), '$.extra', json('[7]'))", "not a list"),
        ("UPDATE launch SET wall_s = 'long'", "wall_s of row 1"),
    ):
        change(store, "UPDATE session SET plan = json_remove(plan, '$.blocks', '$.extra')", statement)
        with pytest.raises(UsageError, match=said):
            read_progress(store, None)


def test_a_session_without_launches_is_answered_beside_one_that_has_some(store):
    fake.write(store, [], plan={"cases": [fake.case().to_dict()], "skipped": [], "protocol": {}})
    done = parabench("best", store)
    assert done.exit_code == 0, done.exception
    assert "No launch was recorded" in done.stdout


def test_an_error_line_is_short_whatever_it_names(store):
    change(store, f"UPDATE session SET plan = '{json.dumps({'cases': [{'strategy': 'x ' * 100_000}]})}'")
    done = parabench("best", store)
    assert done.exit_code == 2
    assert len(done.stderr) < 2000
    assert done.stderr.endswith("give another store\n")


def test_what_json_holds_that_no_file_can_becomes_marks_and_nulls():
    assert json_text.parsed('["\\ud800a", NaN, -Infinity, 1e999, {"\\udfff": 1.5}]') == [
        "\ufffda", None, None, None, {"\ufffd": 1.5},
    ]  # fmt: skip
    assert json_text.parsed('"\\ud83d\\ude00"') == "\U0001f600"


def test_what_is_recorded_of_this_machine_is_read_again():
    recorded = json.dumps(environment(this_machine()))
    assert json_text.read(recorded, shapes.ENVIRONMENT, "") == json.loads(recorded)


def test_what_was_read_of_a_device_is_of_its_type(store):
    change(store, """UPDATE session SET environment = '{"gpus": [{"name": "H200", "memory_bytes": "much"}]}'""")
    refused(store, "gpus[0].memory_bytes is")


def test_shapes():
    shape = {"a!!": [COUNT], "b!": TEXT, "c": {"*": NUMBER}, "d": FLAG}
    fits = {"a": [1, 2], "b": None, "c": {"x": 1, "y": 2.5, "z": None}, "d": True, "other": [{}]}
    assert json_text.first_wrong(fits, shape) is None
    for wrong, name in (
        ({}, "a"), ({"a": None, "b": ""}, "a"), ({"a": [1]}, "b"), ({"a": [True], "b": ""}, "a[0]"),
        ({"a": [-1], "b": ""}, "a[0]"), ({"a": [], "b": "", "c": {"x": "1"}}, "c.x"), ({"a": [], "b": 1}, "b"),
        ({"a": {}, "b": ""}, "a"), ({"a": [], "b": "", "c": []}, "c"), ({"a": [], "b": "", "d": 1}, "d"),
        ({"a": [], "b": "", "c": {"x": 10**30}}, "c.x"),
    ):  # fmt: skip
        found = json_text.first_wrong(wrong, shape)
        assert found is not None
        assert found[0] == name, (wrong, found)


def test_a_store_whose_schema_is_damaged_is_refused_with_what_to_do(store):
    with closing(sqlite3.connect(store)) as db, db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_master SET sql = substr(sql, 1, 20) WHERE name = 'link'")
    refused(store, "cannot be read as a parabench store: malformed database schema (link)", "give another store")


def test_a_store_that_another_process_has_locked_is_said_to_be(store):
    error = results.not_readable(store, sqlite3.OperationalError("database is locked"))
    assert str(error).endswith("r.db cannot be read: database is locked; see which process holds it, and try again")


def test_a_launch_of_a_session_that_is_not_there_is_refused(store):
    change(store, "UPDATE launch SET session_id = 1099511627776 WHERE id = 2")
    refused(store, "launches are of session 1099511627776, which is gone")


def test_a_session_that_is_listed_and_not_there_is_refused(store):
    """A page of an index, or of a table, that is another's."""
    seen = load(store)
    change(store, "DELETE FROM session")
    with pytest.raises(UsageError, match="it lists session 1 and has none"):
        select_session(seen)


def test_what_launches_took_is_not_read_of_a_plan_that_is_damaged(store):
    assert known_seconds(store, Protocol()) == {}
    change(store, "UPDATE session SET plan = '{\"cases\": ['")
    with pytest.raises(UsageError, match=r"plan of session 1 of .* cannot be read: it is no JSON"):
        known_seconds(store, Protocol())
    change(store, "UPDATE session SET plan = '{\"protocol\": null}'")
    assert known_seconds(store, Protocol()) == {}


def test_a_step_that_took_no_time_is_unknown(store):
    change(store, f"UPDATE digest SET value = zeroblob(length(value)) WHERE kind = '{SLOWEST}'")
    assert np.isnan(load(store).steps_columns["step_s"]).all()
