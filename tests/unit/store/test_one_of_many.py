"""What is asked about one session costs what it holds, however much there is beside it in the store."""

from __future__ import annotations

import contextlib
import re
import sqlite3

import pytest
from click.testing import CliRunner

import fake_results as fake
from parabench.analysis.compare.between import MOST_SESSIONS, alike
from parabench.analysis.session import session_data
from parabench.cli import main
from parabench.store import results as reading
from parabench.store.record import DeviceSample, Finding, HostSample, LinkMessage, LinkSample, Phase
from parabench.store.results import load
from parabench.store.store import Store

# Tables of a row for each session: a list of a thousand of them is nothing.
FEW = {"session"}
SCAN = re.compile(r"SCAN (\w+)")


@pytest.fixture
def store(tmp_path):
    """Three sessions of the same cases, the last of another suite, with rows in every table."""
    path = tmp_path / "r.db"
    for label in ("first", "second", "third"):
        launches = fake.sweep([fake.case(bucket_mib=mib) for mib in (1.0, 4.0)], lambda one: 0.04, noise=0.01)
        for launch in launches:
            fake.instrumented(launch, 25)
            launch.device_samples += [DeviceSample(0, 0.1, "used_bytes", 1e9), DeviceSample(0, 0.2, "power_w", 90.0)]
            launch.host_samples += [HostSample(0, 0.1, "rss_bytes", 1e8)]
            launch.findings += [Finding("drift", "It drifts.", "Wait.", case_id=launch.case.id)]
        fake.write(path, launches, label=label, suite="another" if label == "third" else "quick")
        with Store.open_or_create(path) as open_store:
            message = LinkMessage(0, 1, 8, Phase.MEASURE, 25e-6)
            open_store.add_links(
                open_store.last_session().id, [LinkSample(0, 1, 0, 1, "cpu", "cpu", 1e-5, 1e9)], [message]
            )
    return path


@contextlib.contextmanager
def asked(path, monkeypatch):
    """The queries that are asked of a store, each with how SQLite answers it."""
    found: dict[str, list[str]] = {}

    def traced(made):
        said: list[str] = []

        @contextlib.contextmanager
        def opened(path):
            with made(path) as db:
                db.set_trace_callback(said.append)
                yield db

        return opened, said

    opened, said = traced(reading.open_to_read)
    monkeypatch.setattr(reading, "open_to_read", opened)
    yield found
    with contextlib.closing(sqlite3.connect(path)) as db:
        for query in dict.fromkeys(said):
            if query.startswith("SELECT") and "sqlite_master" not in query:
                found[query] = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {query}")]


def scans(found):
    """The queries that go through all of a table that has rows of every launch."""
    return [
        (query, step)
        for query, plan in found.items()
        for step in plan
        if (scan := SCAN.match(step)) and scan[1] not in FEW
    ]


@pytest.mark.parametrize("words", [
    ["best", "{store}@second", "--json", "-"],
    ["compare", "{store}@first", "{store}@second"],
    ["report", "{store}@second", "-o", "{folder}/page.html"],
    ["report", "{store}@first", "{store}@second", "-o", "{folder}/page.html"],
    ["export", "--trace", "ddp native 4 MiB, 2 ranks", "{store}@second", "-o", "{folder}/trace.json"],
])  # fmt: skip
def test_no_question_about_a_session_goes_through_the_launches_of_others(words, store, tmp_path, monkeypatch):
    with asked(store, monkeypatch) as found:
        given = [word.format(store=store, folder=tmp_path) for word in words]
        answer = CliRunner().invoke(main, given, catch_exceptions=False)
        assert answer.exit_code in (0, 3), answer.output
    assert found
    assert not scans(found)


def test_what_a_run_asks_of_its_store_goes_through_no_other_session(store):
    with Store.open_or_create(store) as opened:
        said: list[str] = []
        opened._db.set_trace_callback(said.append)
        row = opened.last_session()
        opened.launches_done(row.id), opened.all_ok(row.id), opened.reference_values(row.id), opened.labels()
        opened.has_finding(row.id, "drift")
        opened._db.set_trace_callback(None)
        queries = {q: [each[3] for each in opened._db.execute(f"EXPLAIN QUERY PLAN {q}")] for q in said}
    assert len(queries) == 6
    assert not scans(queries)


def test_of_a_long_store_the_newest_sessions_of_the_suite_tell_what_sessions_differ_by(tmp_path):
    path = tmp_path / "r.db"
    case = fake.case()
    for at in range(MOST_SESSIONS + 3):
        fake.write(path, [fake.launch(case, 0.04)], label=f"s{at}")
    fake.write(path, [fake.launch(case, 0.04)], label="other", suite="another")
    results = fake.write(path, [fake.launch(case, 0.04)], label="base")
    base = session_data(results, "base")
    other = fake.write(tmp_path / "other.db", [fake.launch(case, 0.04)], label="candidate")
    found = [side.session.label for side in alike(base, session_data(other))]
    assert found == [f"s{at}" for at in range(MOST_SESSIONS + 2, 3, -1)]
    assert len(found) == MOST_SESSIONS - 1


def test_a_session_among_others_has_the_tables_that_it_has_alone(tmp_path):
    """Launches of two sessions in turns, as those of an ab: no range of launches is one session's."""
    path = tmp_path / "r.db"
    with Store.open_or_create(path) as opened:
        plan = {"cases": [], "skipped": [], "protocol": {}}
        about = {"suite": "s", "argv": [], "seed": 0, "environment": {}, "question": "", "plan": plan}
        sessions = [opened.begin_session(label=label, **about) for label in ("one", "two", "none")]
        for block in range(3):
            for at, session in enumerate(sessions[:2]):
                launch = fake.launch(fake.case(), 0.04 + 0.01 * at, block=block)
                launch.device_samples += [DeviceSample(at, 0.1, "used_bytes", 1e9)]
                launch.findings += [Finding("drift", f"It drifts in {session}.", "Wait.")]
                opened.append(session, launch)
    results = load(path)
    one, two, none, both = (results.of(sessions[at] for at in chosen) for chosen in ([0], [1], [2], [0, 1]))
    assert one.launch["id"].tolist() == [1, 3, 5]
    assert set(two.steps["step_s"]) == {0.05}
    assert two.device_sample["device"].tolist() == [1, 1, 1]
    assert one.finding["launch_id"].tolist() == [1, 3, 5]
    assert both.launch["id"].tolist() == [1, 2, 3, 4, 5, 6]
    assert both.device_sample["launch_id"].tolist() == [1, 2, 3, 4, 5, 6]
    assert len(none.launch) == len(none.steps) == len(none.finding) == 0
    assert results.of(sessions) is results
    assert one.of([sessions[1]]) is two
    assert one.whole_store is results
