"""The tables of a results database, derived from the types of their rows; digests of samples."""

from __future__ import annotations

import math
import sqlite3
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from parabench.metrics import STEP_PARTS
from parabench.store.record import (
    EXPLAIN_REPETITION,
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
    slowest,
)

SCHEMA_VERSION = 2
APPLICATION_ID = 0x70626E63  # "pbnc", to distinguish it from other SQLite files

# SQL conditions on rows of `launch`. DONE: it need not run again. NOT_WELL: it failed, except for NCCL's debug log.
DONE = f"status != '{Status.INTERRUPTED}'"
NOT_WELL = f"{DONE} AND status != '{Status.OK}' AND repetition != {EXPLAIN_REPETITION}"
# The kind of a session as an SQL expression with an index; NULL if its plan is unknown.
KIND_OF_SESSION = "CASE WHEN json_valid(plan) THEN json_extract(plan, '$.kind') END"
# The short columns of a session, for lists of all sessions.
LISTED = ("label", "suite", "started_utc", "finished_utc")


# The kinds of digests. SLOWEST: each measured step's time on its slowest rank. MEDIAN: each rank's median over measured
# steps. WHOLE: each rank's samples without a step.
SLOWEST, MEDIAN, WHOLE = "slowest", "median", "whole"


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
    """A launch without its measurements; `case_json` and `facts` are JSON."""

    case_id: str
    case_json: str
    strategy: str
    algorithm: str
    model: str
    world_size: int
    bucket_mib: float | None
    repetition: int
    position: int
    status: Status
    error: str | None
    started_utc: str
    wall_s: float | None
    failed_rank: int | None
    failed_signal: str | None
    traceback: str | None
    facts: str


class Digest(NamedTuple):
    """Numbers from the samples of a launch, packed into one row, so that answers read a hundredth of the rows.

    `place` has steps or ranks as little-endian int64. `value` has one float64 for each of them; NaN is unknown.
    """

    kind: str
    phase: str
    metric: str
    place: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Table:
    """The type of a table's rows, and the ids of the session or launch that they belong to."""

    row: type[Any]
    belongs_to: Mapping[str, Any] = field(default_factory=dict)

    @property
    def columns(self) -> dict[str, Any]:
        """{column: type} without a row's own id."""
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
    "digest": Table(Digest, _OF_LAUNCH),
    "link": Table(LinkSample, _OF_SESSION),
    "link_message": Table(LinkMessage, _OF_SESSION),
    "finding": Table(Finding, {"session_id": int, "launch_id": int | None}),
}
_INDEXES = (
    f"session_by_kind ON session({KIND_OF_SESSION})",
    f"session_list ON session({', '.join(LISTED)})",
    "launch_by_session ON launch(session_id, case_id)",
    "sample_by_launch ON sample(launch_id, metric)",
    # Few samples belong to instrumented steps.
    f"sample_instrumented ON sample(launch_id) WHERE phase = '{Phase.INSTRUMENT}'",
    *(f"{name}_by_launch ON {name}(launch_id)"
      for name in ("collective", "span", "device_sample", "host_sample", "digest")),
    *(f"{name}_by_session ON {name}(session_id)" for name in ("link", "link_message", "finding")),
)  # fmt: skip
# SQLite 3.37 and later check the types of values in STRICT tables.
STRICT = " STRICT" if sqlite3.sqlite_version_info >= (3, 37) else ""
_KINDS = {int: "INTEGER", float: "REAL", str: "TEXT", bytes: "BLOB"}


def create_statements() -> list[str]:
    """Return the SQL statements that create all tables and indexes, and mark the file."""
    statements = [f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {SCHEMA_VERSION}"]
    for name, table in TABLES.items():
        columns = ["id INTEGER PRIMARY KEY"] if name in ("session", "launch") else []
        for column, hint in table.columns.items():
            given = set(get_args(hint) or (hint,))
            (kind,) = given - {NoneType}
            sql = next(sql for base, sql in _KINDS.items() if issubclass(kind, base))
            refers = f" REFERENCES {column.removesuffix('_id')}(id)" if column in table.belongs_to else ""
            columns.append(f"{column} {sql}{'' if NoneType in given else ' NOT NULL'}{refers}")
        statements.append(f"CREATE TABLE {name}({', '.join(columns)}){STRICT}")
    return [*statements, *(f"CREATE INDEX {index}" for index in _INDEXES)]


@cache
def insert_statement(name: str) -> str:
    """Return the SQL statement that inserts a row into a table: the ids that it belongs to, then its fields."""
    columns = TABLES[name].columns
    return f"INSERT INTO {name}({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


def digests(samples: Sequence[Sample]) -> list[Digest]:
    """Return the digests of the samples of one launch."""
    import statistics  # takes 10 ms to import, which commands that only read save

    summarized = ("step_s", *STEP_PARTS, "device_lag_s")
    whole: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    by_rank: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for rank, step, phase, metric, observed in samples:
        value = math.nan if observed is None else float(observed)
        if step is None:
            whole[phase, metric].append((rank, value))
        elif phase == Phase.MEASURE and metric in summarized:
            by_rank[metric][rank].append(value)
    measured = (each for each in samples if each.phase == Phase.MEASURE and each.metric == "step_s")
    steps = slowest((each.step, each.value) for each in measured if each.step is not None)
    found = [_packed(SLOWEST, Phase.MEASURE, "step_s", steps.items())] if steps else []
    for metric, ranks in by_rank.items():
        known = {rank: [value for value in values if value == value] for rank, values in sorted(ranks.items())}
        medians = [(rank, statistics.median(values or [math.nan])) for rank, values in known.items()]
        found.append(_packed(MEDIAN, Phase.MEASURE, metric, medians))
    return found + [_packed(WHOLE, phase, metric, numbers) for (phase, metric), numbers in whole.items()]


def _packed(kind: str, phase: str, metric: str, numbers: Iterable[tuple[int, float]]) -> Digest:
    places, values = zip(*numbers, strict=True)
    count = len(places)
    return Digest(kind, phase, metric, struct.pack(f"<{count}q", *places), struct.pack(f"<{count}d", *values))
