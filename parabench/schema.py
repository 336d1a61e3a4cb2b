"""The tables of a store, and what each version of them lacks of the next."""

from __future__ import annotations

SCHEMA_VERSION = 5
DIGESTED = 5  # the version since which there are digests
APPLICATION_ID = 0x70626E63  # "pbnc": tells a store from any other SQLite file

SCHEMA = """
CREATE TABLE session(
    id INTEGER PRIMARY KEY, label TEXT, suite TEXT NOT NULL, argv TEXT NOT NULL, seed INTEGER NOT NULL,
    started_utc TEXT NOT NULL, finished_utc TEXT, parabench_version TEXT NOT NULL, environment TEXT NOT NULL,
    question TEXT NOT NULL, plan TEXT NOT NULL, interleaved TEXT);
CREATE TABLE launch(
    id INTEGER PRIMARY KEY, session_id INTEGER NOT NULL REFERENCES session(id), case_id TEXT NOT NULL,
    case_json TEXT NOT NULL, strategy TEXT NOT NULL, algorithm TEXT NOT NULL, model TEXT NOT NULL,
    world_size INTEGER NOT NULL, bucket_mib REAL, block INTEGER NOT NULL, position INTEGER NOT NULL,
    status TEXT NOT NULL, error TEXT, started_utc TEXT NOT NULL, wall_s REAL NOT NULL,
    failed_rank INTEGER, failed_signal TEXT, traceback TEXT, facts TEXT NOT NULL);
CREATE INDEX launch_by_session ON launch(session_id, case_id);
CREATE TABLE sample(
    launch_id INTEGER NOT NULL REFERENCES launch(id), rank INTEGER NOT NULL, step INTEGER,
    phase TEXT NOT NULL, metric TEXT NOT NULL, value REAL);
CREATE INDEX sample_by_launch ON sample(launch_id, metric);
CREATE TABLE collective(
    launch_id INTEGER NOT NULL REFERENCES launch(id), rank INTEGER NOT NULL, step INTEGER, seq INTEGER,
    op TEXT NOT NULL, algorithm TEXT NOT NULL, group_size INTEGER NOT NULL, bytes INTEGER NOT NULL,
    start_s REAL, duration_s REAL, phase TEXT, in_place INTEGER, n_wrong INTEGER,
    ranks TEXT, dtype TEXT, made_s REAL, bucket INTEGER, ready_s REAL);
CREATE INDEX collective_by_launch ON collective(launch_id);
CREATE TABLE device_sample(
    launch_id INTEGER NOT NULL REFERENCES launch(id), device INTEGER NOT NULL, t_s REAL NOT NULL,
    metric TEXT NOT NULL, value REAL, rank INTEGER, reason TEXT);
CREATE INDEX device_sample_by_launch ON device_sample(launch_id);
CREATE TABLE finding(
    session_id INTEGER NOT NULL REFERENCES session(id), launch_id INTEGER REFERENCES launch(id), case_id TEXT,
    code TEXT NOT NULL, message TEXT NOT NULL, advice TEXT NOT NULL);
"""

# Since schema 3.
INSTRUMENTS = """
CREATE TABLE span(
    launch_id INTEGER NOT NULL REFERENCES launch(id), rank INTEGER NOT NULL, step INTEGER NOT NULL,
    name TEXT NOT NULL, start_s REAL NOT NULL, end_s REAL NOT NULL);
CREATE INDEX span_by_launch ON span(launch_id);
CREATE TABLE host_sample(
    launch_id INTEGER NOT NULL REFERENCES launch(id), rank INTEGER, t_s REAL NOT NULL,
    metric TEXT NOT NULL, value REAL, reason TEXT);
CREATE INDEX host_sample_by_launch ON host_sample(launch_id);
"""

# Since schema 5: `digest` says in brief what `sample` holds (digest.py), and the few samples of instrumented steps are
# found without a look at all others.
DIGEST = """
CREATE TABLE digest(
    launch_id INTEGER NOT NULL REFERENCES launch(id), kind TEXT NOT NULL, phase TEXT NOT NULL, metric TEXT NOT NULL,
    place BLOB NOT NULL, value BLOB NOT NULL);
CREATE INDEX digest_by_launch ON digest(launch_id);
CREATE INDEX sample_instrumented ON sample(launch_id) WHERE phase = 'instrument';
"""

# What each version lacks of the next. Reading takes an older store as it is; writing brings it up to date.
MISSING: dict[int, tuple[tuple[str, str, str], ...]] = {
    1: (("collective", "phase", "TEXT"), ("collective", "in_place", "INTEGER"), ("collective", "n_wrong", "INTEGER")),
    2: (
        ("collective", "ranks", "TEXT"), ("collective", "dtype", "TEXT"), ("collective", "made_s", "REAL"),
        ("collective", "bucket", "INTEGER"), ("collective", "ready_s", "REAL"),
        ("device_sample", "rank", "INTEGER"), ("device_sample", "reason", "TEXT"),
    ),
    3: (("session", "interleaved", "TEXT"),),
}  # fmt: skip
NEW_TABLES = {2: INSTRUMENTS, 4: DIGEST}
