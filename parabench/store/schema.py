"""The tables of a store, made of the types of their rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from parabench.store.digest import Digest
from parabench.store.record import (
    EXPLAIN_BLOCK,
    CollectiveSample,
    DeviceSample,
    Finding,
    HostSample,
    LinkMessage,
    LinkSample,
    Phase,
    Sample,
    Span,
    Status,
)

SCHEMA_VERSION = 1
APPLICATION_ID = 0x70626E63  # "pbnc": tells a store from any other SQLite file

# Conditions on rows of `launch`: what ended by itself and need not be run again, and what of it failed. A
# NCCL debug-log launch decides nothing.
DONE = f"status != '{Status.INTERRUPTED}'"
NOT_WELL = f"{DONE} AND status != '{Status.OK}' AND block != {EXPLAIN_BLOCK}"

# What a session measured, as an index has it; NULL where the plan tells nothing.
KIND_OF_SESSION = "CASE WHEN json_valid(plan) THEN json_extract(plan, '$.kind') END"

# What a list of all sessions tells; a store may hold thousands, of long texts each.
LISTED = ("label", "suite", "started_utc", "finished_utc")


class SessionRow(NamedTuple):
    """A session; `argv`, `environment`, `plan` and `interleaved` are JSON."""

    label: str | None
    suite: str
    argv: str
    seed: int
    started_utc: str
    finished_utc: str | None
    parabench_version: str
    environment: str
    question: str
    plan: str
    interleaved: str | None


class LaunchRow(NamedTuple):
    """A launch without what it measured; `case_json` and `facts` are JSON."""

    case_id: str
    case_json: str
    strategy: str
    algorithm: str
    model: str
    world_size: int
    bucket_mib: float | None
    block: int
    position: int
    status: Status
    error: str | None
    started_utc: str
    wall_s: float | None
    failed_rank: int | None
    failed_signal: str | None
    traceback: str | None
    facts: str


@dataclass(frozen=True, slots=True)
class Table:
    """The type of a table's rows, and before their columns the ids of the session and the launch they belong to."""

    row: type[Any]
    belongs_to: Mapping[str, Any] = field(default_factory=dict)

    @property
    def columns(self) -> dict[str, Any]:
        """{column: type} of all but a row's own id."""
        return {**self.belongs_to, **get_type_hints(self.row)}


_OF_LAUNCH, _OF_SESSION = {"launch_id": int}, {"session_id": int}
TABLES = {
    "session": Table(SessionRow),
    "launch": Table(LaunchRow, _OF_SESSION),
    "sample": Table(Sample, _OF_LAUNCH),
    "collective": Table(CollectiveSample, _OF_LAUNCH),
    "span": Table(Span, _OF_LAUNCH),
    "device_sample": Table(DeviceSample, _OF_LAUNCH),
    "host_sample": Table(HostSample, _OF_LAUNCH),
    "link": Table(LinkSample, _OF_SESSION),
    "link_message": Table(LinkMessage, _OF_SESSION),
    "finding": Table(Finding, {"session_id": int, "launch_id": int | None}),
    "digest": Table(Digest, _OF_LAUNCH),
}
# What others belong to has an id.
_NUMBERED = ("session", "launch")

_INDEXES = (
    f"session_by_kind ON session({KIND_OF_SESSION})",
    f"session_list ON session({', '.join(LISTED)})",
    "launch_by_session ON launch(session_id, case_id)",
    "sample_by_launch ON sample(launch_id, metric)",
    # The few samples of instrumented steps are found without a look at all others.
    f"sample_instrumented ON sample(launch_id) WHERE phase = '{Phase.INSTRUMENT}'",
    *(
        f"{name}_by_launch ON {name}(launch_id)"
        for name in ("collective", "span", "device_sample", "host_sample", "digest")
    ),
    *(f"{name}_by_session ON {name}(session_id)" for name in ("link", "link_message", "finding")),
)
# SQLite checks the types of values in STRICT tables, from 3.37 on.
STRICT = " STRICT" if sqlite3.sqlite_version_info >= (3, 37) else ""
_KINDS = {int: "INTEGER", float: "REAL", str: "TEXT", bytes: "BLOB"}


def create_statements() -> list[str]:
    """Return the SQL statements that create all tables and indexes."""
    return [*map(_create_table, TABLES), *(f"CREATE INDEX {index}" for index in _INDEXES)]


@cache
def insert_statement(name: str) -> str:
    """Inserts a row into that table: the ids of what it belongs to, then its own fields."""
    columns = TABLES[name].columns
    return f"INSERT INTO {name}({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


def _create_table(name: str) -> str:
    table = TABLES[name]
    own_id = ["id INTEGER PRIMARY KEY"] if name in _NUMBERED else []
    columns = (_column(column, hint, column in table.belongs_to) for column, hint in table.columns.items())
    return f"CREATE TABLE {name}({', '.join((*own_id, *columns))}){STRICT}"


def _column(name: str, hint: Any, refers: bool) -> str:
    given = set(get_args(hint) or (hint,))
    (kind,) = given - {NoneType}
    sql = next(sql for base, sql in _KINDS.items() if issubclass(kind, base))
    null = "" if NoneType in given else " NOT NULL"
    return f"{name} {sql}{null}" + (f" REFERENCES {name.removesuffix('_id')}(id)" if refers else "")
