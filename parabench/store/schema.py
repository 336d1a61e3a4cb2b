"""The tables of a store, and what each version of them lacks of the next."""

from __future__ import annotations

from typing import NamedTuple

from parabench.store.record import EXPLAIN_BLOCK, Status

SCHEMA_VERSION = 7
# Conditions on rows of `launch`: what ended by itself and need not be run again, and what of it did not end well. A
# launch in which NCCL explains itself decides nothing.
DONE = f"status != '{Status.INTERRUPTED}'"
NOT_WELL = f"{DONE} AND status != '{Status.OK}' AND block != {EXPLAIN_BLOCK}"
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
    ranks TEXT, dtype TEXT, made_s REAL, bucket INTEGER, ready_s REAL, calls INTEGER NOT NULL DEFAULT 1);
CREATE INDEX collective_by_launch ON collective(launch_id);
CREATE TABLE device_sample(
    launch_id INTEGER NOT NULL REFERENCES launch(id), device INTEGER NOT NULL, t_s REAL NOT NULL,
    metric TEXT NOT NULL, value REAL, rank INTEGER, reason TEXT, node INTEGER NOT NULL DEFAULT 0);
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
    metric TEXT NOT NULL, value REAL, reason TEXT, node INTEGER NOT NULL DEFAULT 0);
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

# Since schema 6: what lies between each two ranks, measured once in a session.
LINKS = """
CREATE TABLE link(
    session_id INTEGER NOT NULL REFERENCES session(id), from_rank INTEGER NOT NULL, to_rank INTEGER NOT NULL,
    from_node INTEGER NOT NULL, to_node INTEGER NOT NULL, from_device TEXT NOT NULL, to_device TEXT NOT NULL,
    latency_s REAL, bytes_per_s REAL, reason TEXT);
CREATE INDEX link_by_session ON link(session_id);
"""

# Since schema 7: every timed message from which a link's numbers follow.
LINK_MESSAGES = """
CREATE TABLE link_message(
    session_id INTEGER NOT NULL REFERENCES session(id), from_rank INTEGER NOT NULL, to_rank INTEGER NOT NULL,
    bytes INTEGER NOT NULL, phase TEXT NOT NULL, duration_s REAL NOT NULL);
CREATE INDEX link_message_by_session ON link_message(session_id);
"""

# All of a new store.
TABLES = SCHEMA + INSTRUMENTS + DIGEST + LINKS + LINK_MESSAGES


class Column(NamedTuple):
    """A column that a table got later. `default` is what rows from before have there, as SQL."""

    table: str
    name: str
    kind: str
    default: str = "NULL"

    @property
    def definition(self) -> str:
        """The column as `ALTER TABLE ... ADD COLUMN` takes it."""
        return f"{self.name} {self.kind}" + ("" if self.default == "NULL" else f" NOT NULL DEFAULT {self.default}")


# What each version lacks of the next. Reading takes an older store as it is; writing brings it up to date.
MISSING: dict[int, tuple[Column, ...]] = {
    1: (
        Column("collective", "phase", "TEXT"), Column("collective", "in_place", "INTEGER"),
        Column("collective", "n_wrong", "INTEGER"),
    ),
    2: (
        Column("collective", "ranks", "TEXT"), Column("collective", "dtype", "TEXT"),
        Column("collective", "made_s", "REAL"), Column("collective", "bucket", "INTEGER"),
        Column("collective", "ready_s", "REAL"),
        Column("device_sample", "rank", "INTEGER"), Column("device_sample", "reason", "TEXT"),
    ),
    3: (Column("session", "interleaved", "TEXT"),),
    5: (Column("device_sample", "node", "INTEGER", "0"), Column("host_sample", "node", "INTEGER", "0")),
    6: (Column("collective", "calls", "INTEGER", "1"),),
}  # fmt: skip
NEW_TABLES = {2: INSTRUMENTS, 4: DIGEST, 5: LINKS, 6: LINK_MESSAGES}


def new_tables(version: int) -> str:
    """The tables that a store of this version lacks, as SQL."""
    return "".join(NEW_TABLES.get(old, "") for old in range(version, SCHEMA_VERSION))


def new_columns(version: int) -> list[Column]:
    """What tables of a store of this version lack; those that it lacks as a whole come with all their columns."""
    whole = new_tables(version)
    lacking = (column for old in range(version, SCHEMA_VERSION) for column in MISSING.get(old, ()))
    return [column for column in lacking if f"TABLE {column.table}(" not in whole]
