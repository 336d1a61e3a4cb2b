"""What a file must be before any of it is read as a store: anyone may have made it, and SQLite keeps a text where a
number is declared, a view where a table was, and a gigabyte where a name is."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from parabench.errors import UsageError
from parabench.store.schema import TABLES, create_indexes, create_table

# No text or packed numbers of one value are longer than that. A plan of 10,000 cases has 7 MB.
LONGEST_BYTES = 16 << 20

# What whole numbers may be where nothing else is said, and a few that count what a machine or a launch has.
_WHOLE = (0, 1 << 53)
_RANKS, _STEPS = (0, (1 << 20) - 1), (0, (1 << 31) - 1)
_BETWEEN: dict[str, tuple[int, int]] = {
    "world_size": (1, 1 << 20), "group_size": (1, 1 << 20), "rank": _RANKS, "from_rank": _RANKS, "to_rank": _RANKS,
    "failed_rank": _RANKS, "node": _RANKS, "from_node": _RANKS, "to_node": _RANKS, "device": _RANKS,
    "step": _STEPS, "seq": _STEPS, "calls": (1, (1 << 31) - 1), "bucket": _STEPS, "position": _STEPS,
    "block": (-3, (1 << 31) - 1), "in_place": (0, 1),
}  # fmt: skip
# Seconds, bytes, rates: what is beyond is no measurement, and squares of it are no numbers.
LARGEST = 1e18
# A loss may have no end.
_ENDLESS = ("value",)
# Bytes of a value that is wrong.
_SHOWN = 40
REMEDY = "it is damaged, or no parabench wrote it; give another store"


def limit(db: sqlite3.Connection) -> None:
    """Let no value be read that would fill the memory."""
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_BYTES)
    db.execute("PRAGMA cell_size_check = ON")


def check_tables(db: sqlite3.Connection, path: Path) -> None:
    """Raise UsageError unless tables and indexes are the schema's own: nothing else would be read in their place, or
    run when they are read or written to. (PRAGMA trusted_schema would refuse our own index, of json_extract.)"""
    found = {name: (kind, sql) for kind, name, sql in db.execute("SELECT type, name, sql FROM sqlite_master")}
    if not found.keys() >= TABLES.keys():
        raise UsageError(f"{path} is an incomplete parabench store; remove it, or give the results.db of a run")
    for name in TABLES:
        if found[name] != ("table", create_table(name)):
            raise UsageError(f"{path} has another table {name} than parabench makes; {REMEDY}")
    if any(kind == "trigger" for kind, _ in found.values()):
        raise UsageError(f"{path} has triggers, which no store has; {REMEDY}")
    own = set(create_indexes())
    for name, (kind, sql) in found.items():
        if kind == "index" and sql not in own:
            raise UsageError(f"{path} has an index {name} that parabench does not make; {REMEDY}")


def check_rows(
    db: sqlite3.Connection, path: Path, table: str, where: str = "TRUE", only: Sequence[str] | None = None
) -> None:
    """Raise UsageError where a row that is to be read holds something else than its columns say; `only` those, where
    others are not read."""
    conditions = {name: each for name, each in _conditions(table).items() if only is None or name in only}
    if not conditions:
        return
    wrong = f"SELECT rowid FROM {table} WHERE ({where}) AND NOT ({' AND '.join(conditions.values())}) LIMIT 1"
    for (row,) in db.execute(wrong).fetchall():
        for column, condition in conditions.items():
            # As bytes, for it may be no text.
            query = f"SELECT typeof({column}), substr(CAST({column} AS BLOB), 1, {_SHOWN}) FROM {table}"
            for kind, value in db.execute(f"{query} WHERE rowid = ? AND NOT ({condition})", (row,)):
                said = "null" if kind == "null" else f"{kind} {(value or b'').decode(errors='replace')!r}"
                raise UsageError(f"{path} cannot be read: {column} of row {row} of {table} is {said}; {REMEDY}")


@cache
def _conditions(table: str) -> Mapping[str, str]:
    """{column: what must hold of it, in SQL}; never unknown, also of null."""
    found = {}
    for column, hint in TABLES[table].columns.items():
        given = set(get_args(hint) or (hint,))
        (kind,) = given - {NoneType}
        holds = f"coalesce({_holds(column, kind)}, 0)"
        found[column] = f"({column} IS NULL OR {holds})" if NoneType in given else holds
    if "place" in found:  # packed numbers: as many places as values
        found["value"] += " AND length(place) = length(value) AND length(value) % 8 = 0"
    return found


def _holds(column: str, kind: type[Any]) -> str:
    if issubclass(kind, int):
        least, most = _BETWEEN.get(column, _WHOLE)
        return f"typeof({column}) = 'integer' AND {column} BETWEEN {least} AND {most}"
    if issubclass(kind, float):
        # Every text and all bytes are above every number.
        within = f"{column} BETWEEN {-LARGEST} AND {LARGEST}"
        return f"({within} OR {column} IN (9e999, -9e999))" if column in _ENDLESS else within
    return f"typeof({column}) = '{'text' if issubclass(kind, str) else 'blob'}'"
