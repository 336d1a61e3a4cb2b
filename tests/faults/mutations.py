"""Mutations of a store, each by a seed: what a disk, a script or somebody hostile could make of it.

A mutation changes a copy of a real store, and says in a few words what it changed.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.naughty import HALVES, NO_TEXT, TEXTS

Mutation = Callable[[Path, Random], str]

NUMBERS = (
    0, 1, -1, 2, 3, 2**31 - 1, 2**31, -(2**31), 2**53, 2**63 - 1, -(2**63), 0.5, -0.5, 1e-320, 1e18, 1e300, -1e300,
    math.inf, -math.inf, None,
)  # fmt: skip
HUGE = 40 << 20  # bytes of a text that is huge
DEEP = 200_000  # brackets, one in the other
MANY = 300_000  # entries


def mutate(path: Path, random: Random, kind: str | None = None) -> str:
    """Change the store at `path` by a mutation by lot, or by that one of MUTATIONS; returns what was done."""
    kind = kind or random.choice(list(MUTATIONS))
    return f"{kind}: {MUTATIONS[kind](path, random)}"


# Bytes.


def flip_bytes(path: Path, random: Random) -> str:
    raw = bytearray(path.read_bytes())
    places = [random.randrange(len(raw)) for _ in range(random.choice((1, 1, 4, 64)))]
    for at in places:
        raw[at] = random.randrange(256)
    path.write_bytes(raw)
    return f"{len(places)} bytes, the first at {places[0]}"


def flip_in_head(path: Path, random: Random) -> str:
    raw = bytearray(path.read_bytes())
    at = random.randrange(100)
    raw[at] ^= 1 << random.randrange(8)
    path.write_bytes(raw)
    return f"a bit of byte {at}"


def truncate(path: Path, random: Random) -> str:
    size = random.randrange(path.stat().st_size)
    path.write_bytes(path.read_bytes()[:size])
    return f"to {size} bytes"


def wipe_page(path: Path, random: Random) -> str:
    raw = bytearray(path.read_bytes())
    page = random.randrange(len(raw) // 4096)
    filling = random.choice((b"\0", b"\xff", random.randbytes(1)))
    raw[page * 4096 : (page + 1) * 4096] = filling * 4096
    path.write_bytes(raw)
    return f"page {page} with {filling!r}"


def swap_pages(path: Path, random: Random) -> str:
    raw = bytearray(path.read_bytes())
    a, b = (slice(page * 4096, (page + 1) * 4096) for page in random.sample(range(len(raw) // 4096), 2))
    raw[a], raw[b] = raw[b], raw[a]
    path.write_bytes(raw)
    return f"pages at {a.start} and {b.start}"


def append_bytes(path: Path, random: Random) -> str:
    with path.open("ab") as file:
        file.write(random.randbytes(random.choice((1, 4096, 40_000))))
    return "at the end"


# Rows.


@contextlib.contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """The store, with no check switched on."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        yield db


def tables(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]


def columns(db: sqlite3.Connection, kind: str = "") -> list[tuple[str, str]]:
    """(table, column) of those that have rows, of one type or of any."""
    return [
        (table, column)
        for table in tables(db)
        if db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone()
        for _, column, of, *_ in db.execute(f"PRAGMA table_info({table})")
        if kind in ("", of)
    ]


def some_rows(db: sqlite3.Connection, table: str, random: Random) -> list[int]:
    """One row of the table, a few, or all."""
    rows = [row for (row,) in db.execute(f"SELECT rowid FROM {table}")]
    return random.sample(rows, min(len(rows), random.choice((1, 1, 3, len(rows)))))


def give(path: Path, random: Random, kind: str, value: Callable[[Any], Any]) -> str:
    """Give some rows of a column of that type another value, made of the one that is there."""
    with opened(path) as db:
        table, column = random.choice(columns(db, kind))
        done = 0
        for row in some_rows(db, table, random):
            (before,) = db.execute(f"SELECT {column} FROM {table} WHERE rowid = ?", (row,)).fetchone()
            with contextlib.suppress(sqlite3.IntegrityError):  # not every column may be null, and an id is no text
                db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value(before), row))
                done += 1
        (after,) = db.execute(f"SELECT {column} FROM {table} LIMIT 1").fetchone()
    return f"{table}.{column} of {done} rows, such as {str(after)[:40]!r}"


def swap_type(path: Path, random: Random) -> str:
    other = random.choice(("a text", b"bytes", 7, 0.25, "7", b"\0\0", "", b"", "[]", "{}", None))
    return give(path, random, "", lambda before: other)


def odd_number(path: Path, random: Random) -> str:
    number = random.choice(NUMBERS)
    return give(path, random, random.choice(("INTEGER", "REAL")), lambda before: number)


def naughty_text(path: Path, random: Random) -> str:
    text, beside = random.choice(TEXTS), random.random() < 0.5
    return give(path, random, "TEXT", lambda before: f"{before} {text}" if beside else text)


def no_text(path: Path, random: Random) -> str:
    """Bytes that are no UTF-8, stored as a text."""
    with opened(path) as db:
        table, column = random.choice(columns(db, "TEXT"))
        for row in some_rows(db, table, random):
            raw = random.choice(NO_TEXT).hex()
            db.execute(f"UPDATE {table} SET {column} = CAST(x'{raw}' AS TEXT) WHERE rowid = ?", (row,))
    return f"{table}.{column}"


def huge_text(path: Path, random: Random) -> str:
    with opened(path) as db:
        table, column = random.choice(columns(db, "TEXT"))
        (row,) = db.execute(f"SELECT rowid FROM {table} ORDER BY random() LIMIT 1").fetchone()
        text = random.choice(("W", "[", '{"a":', "0", "ж")) * (random.choice((HUGE, HUGE // 40)) // 2)
        db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (text, row))
    return f"{table}.{column} of {len(text)} characters"


def odd_bytes(path: Path, random: Random) -> str:
    """What the packed numbers of a digest are, and how many."""

    def other(before: Any) -> bytes:
        raw = bytes(before)
        return random.choice(
            (b"", raw[:-1], raw[:8], raw * 2, random.randbytes(len(raw)), b"\xff" * len(raw), b"\0" * len(raw))
        )

    return give(path, random, "BLOB", other)


def delete_rows(path: Path, random: Random) -> str:
    with opened(path) as db:
        table = random.choice(columns(db))[0]
        rows = some_rows(db, table, random)
        db.executemany(f"DELETE FROM {table} WHERE rowid = ?", [(row,) for row in rows])
    return f"{len(rows)} of {table}"


def duplicate_rows(path: Path, random: Random) -> str:
    with opened(path) as db:
        table = random.choice(columns(db))[0]
        names = [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})") if name != "id"]
        rows, listed = some_rows(db, table, random), ", ".join(names)
        copy = f"INSERT INTO {table}({listed}) SELECT {listed} FROM {table} WHERE rowid = ?"
        db.executemany(copy, [(row,) for row in rows])
    return f"{len(rows)} of {table}"


def wrong_reference(path: Path, random: Random) -> str:
    """Rows that belong to a session or a launch that is none, or another's."""
    with opened(path) as db:
        table, column = random.choice([each for each in columns(db, "INTEGER") if each[1].endswith("_id")])
        (most,) = db.execute(f"SELECT max({column}) FROM {table}").fetchone()
        other = random.choice((0, -1, 1, most or 1, (most or 1) + 1, 2**40))
        rows = some_rows(db, table, random)
        db.executemany(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", [(other, row) for row in rows])
    return f"{table}.{column} of {len(rows)} rows is {other}"


def swap_values(path: Path, random: Random) -> str:
    """A column's values, each of another row: two cases have each other's, say."""
    with opened(path) as db:
        table, column = random.choice([each for each in columns(db) if each[1] != "id"])
        rows = db.execute(f"SELECT rowid, {column} FROM {table}").fetchall()
        values = [value for _, value in rows]
        random.shuffle(values)
        changed = [(value, row) for value, (row, _) in zip(values, rows, strict=True)]
        db.executemany(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", changed)
    return f"{table}.{column}"


# JSON.


def json_text(path: Path, random: Random, change: Callable[[str], str]) -> str:
    """Change the JSON of a column in some rows."""
    with opened(path) as db:
        found = []
        for table, column in columns(db, "TEXT"):
            first = db.execute(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL LIMIT 1").fetchone()
            if first and str(first[0])[:1] in ("{", "["):
                found.append((table, column))
        table, column = random.choice(found)
        for row in some_rows(db, table, random):
            (text,) = db.execute(f"SELECT {column} FROM {table} WHERE rowid = ?", (row,)).fetchone()
            if text is not None:
                db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (change(text), row))
    return f"{table}.{column}"


def break_json(path: Path, random: Random) -> str:
    def broken(text: str) -> str:
        at = random.randrange(len(text))
        return random.choice((text[:at], text[:at] + text[at + 1 :], text[:at] + random.choice('{}[]",:0') + text[at:]))

    return json_text(path, random, broken)


def other_json(path: Path, random: Random) -> str:
    """Another value in the place of all of it."""
    whole = random.choice(("null", "0", "[]", "{}", '""', "NaN", "[[]]", '{"": null}', "1e999", "true", '"cases"'))
    return json_text(path, random, lambda text: whole)


def deep_json(path: Path, random: Random) -> str:
    opens, closes = random.choice((("[", "]"), ('{"a":', "}")))
    deep = f"{opens * DEEP}0{closes * DEEP}"
    return json_text(path, random, lambda text: random.choice((deep, f'{text[:-1]}, "deep": {deep}}}')))


def many_in_json(path: Path, random: Random) -> str:
    """A list or an object of very many entries in the place of a value."""
    many = random.choice(("[" + "0," * MANY + "0]", "[" + "[]," * MANY + "0]", "[" + "{}," * MANY + "0]"))
    return within_json(path, random, lambda value: _Raw(many))


class _Raw(str):
    """JSON as it is to be written."""


def value_in_json(path: Path, random: Random) -> str:
    """Another value in the place of one: of another type, odd, hostile."""
    others: tuple[Any, ...] = (
        None, True, 0, -1, 7, 2**31, 10**30, 10**400, 0.5, 1e300, math.nan, math.inf, "", "a text", [], {}, [None],
        [[]],
        [1, "a"], {"a": 1}, {"": []}, _Raw("1" * 5000), *HALVES, *TEXTS,
    )  # fmt: skip
    other = random.choice(others)
    return within_json(path, random, lambda value: other)


def key_in_json(path: Path, random: Random) -> str:
    """A value gone, or by another name, or one more."""

    def change(value: Any) -> Any:
        if not isinstance(value, dict) or not value:
            return {} if isinstance(value, dict) else [] if isinstance(value, list) else value
        name = random.choice(list(value))
        kept = {key: each for key, each in value.items() if key != name}
        return random.choice((kept, kept | {random.choice((*TEXTS, *HALVES)): value[name]}, {}))

    return within_json(path, random, change, inner=True)


def within_json(path: Path, random: Random, change: Callable[[Any], Any], inner: bool = False) -> str:
    said = ""

    def changed(text: str) -> str:
        nonlocal said
        value = json.loads(text)
        places = list(_places(value, inner))
        if not places:
            return text
        *way, last = random.choice(places)
        if last is None:
            made = change(value)
        else:
            of = value
            for key in way:
                of = of[key]
            of[last] = change(of[last])
            made, said = value, "/".join(map(str, [*way, last]))
        if isinstance(made, _Raw):
            return made
        raws: list[_Raw] = []
        written = json.dumps(_marked(made, raws))
        for at, raw in enumerate(raws):
            written = written.replace(f'"raw {at} raw"', raw)
        return written

    where = json_text(path, random, changed)
    return f"{where} {said}"


def _marked(value: Any, raws: list[_Raw]) -> Any:
    if isinstance(value, _Raw):
        raws.append(value)
        return f"raw {len(raws) - 1} raw"
    if isinstance(value, dict):
        return {key: _marked(each, raws) for key, each in value.items()}
    return [_marked(each, raws) for each in value] if isinstance(value, list) else value


def _places(value: Any, inner: bool, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to every value; `inner`: to objects and lists only. The whole is (None,)."""
    pairs = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    if not way:
        yield (None,)
    for key, each in pairs[:40]:
        if not inner or isinstance(each, (dict, list)):
            yield (*way, key)
        if isinstance(each, (dict, list)):
            yield from _places(each, inner, (*way, key))


# The schema.


def drop_column(path: Path, random: Random) -> str:
    with opened(path) as db:
        for (index,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'index'").fetchall():
            db.execute(f"DROP INDEX {index}")
        table, column = random.choice([each for each in columns(db) if each[1] != "id"])
        db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    return f"{table}.{column}"


def rename_column(path: Path, random: Random) -> str:
    with opened(path) as db:
        table, column = random.choice(columns(db))
        db.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO other")
    return f"{table}.{column}"


def add_column(path: Path, random: Random) -> str:
    with opened(path) as db:
        table = random.choice(tables(db))
        name = random.choice(("label", "launch_id", "id2", "value", "step_s", '"; DROP TABLE launch; --"', "rowid"))
        with contextlib.suppress(sqlite3.OperationalError):  # it has one of that name
            db.execute(f"ALTER TABLE {table} ADD COLUMN {name} {random.choice(('', 'TEXT', 'INTEGER DEFAULT 3'))}")
    return f"{table}.{name}"


def drop_table(path: Path, random: Random) -> str:
    with opened(path) as db:
        table = random.choice(tables(db))
        db.execute(f"DROP TABLE {table}")
    return table


def table_for_view(path: Path, random: Random) -> str:
    """A view in the place of a table: it computes without end, nests without end, or makes what is huge."""
    queries = (
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id FROM n",
        "SELECT *, zeroblob(900000000) AS more FROM kept",
        "SELECT * FROM kept",
        "SELECT * FROM kept a, kept b, kept c",
    )
    with opened(path) as db:
        table, query = random.choice(tables(db)), random.choice(queries)
        of_table = db.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = ?", (table,))
        for (index,) in of_table.fetchall():
            db.execute(f"DROP INDEX {index}")
        db.execute("PRAGMA legacy_alter_table = ON")
        db.execute(f"ALTER TABLE {table} RENAME TO kept")
        db.execute(f"CREATE VIEW {table} AS {query}")
    return f"{table} as {query}"


def add_trigger(path: Path, random: Random) -> str:
    with opened(path) as db:
        event = random.choice(("INSERT", "UPDATE", "DELETE"))
        for table in ("session", "launch", "finding"):
            db.execute(f"CREATE TRIGGER t_{table} AFTER {event} ON {table} BEGIN DELETE FROM launch; END")
    return event


def cycle(path: Path, random: Random) -> str:
    """Tables that refer to each other, or to themselves, and rows that do."""
    with opened(path) as db:
        db.execute("PRAGMA writable_schema = ON")
        one, other = random.choice((("session", "launch"), ("launch", "launch"), ("session", "session")))
        column = "seed" if one == "session" else "block"
        old, new = f" {column} INTEGER", f" {column} INTEGER REFERENCES {other}(id)"
        db.execute("UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = ?", (old, new, one))
        db.execute("PRAGMA writable_schema = RESET")
        db.execute(f"UPDATE {one} SET {column} = 1")
    return f"{one}.{column} refers to {other}"


def other_sql(path: Path, random: Random) -> str:
    """The statement that made a table, changed behind its back."""
    with opened(path) as db:
        db.execute("PRAGMA writable_schema = ON")
        table = random.choice(tables(db))
        old, new = random.choice(
            ((" INTEGER", " TEXT"), (" TEXT", " BLOB"), (" NOT NULL", ""), ("CREATE TABLE", "CREATE TABEL"),
             (" REAL", " REAL GENERATED ALWAYS AS (1)"), (");", ") STRICT;"))
        )  # fmt: skip
        db.execute("UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = ?", (old, new, table))
    return f"{table}: {old} is {new}"


def other_pragma(path: Path, random: Random) -> str:
    name = random.choice(("user_version", "application_id", "schema_version", "encoding"))
    value = random.choice(("0", "2", "-1", "2147483647"))
    with contextlib.closing(sqlite3.connect(path)) as db:
        if name == "encoding":  # all of it, in two bytes a character
            with contextlib.closing(sqlite3.connect(f"{path}.other")) as other:
                other.execute("PRAGMA encoding = 'UTF-16le'")
                for line in db.iterdump():
                    if not line.startswith(("BEGIN", "COMMIT")):
                        other.execute(line)
                for mark in ("application_id", "user_version"):
                    other.execute(f"PRAGMA {mark} = {db.execute(f'PRAGMA {mark}').fetchone()[0]}")
                other.commit()
        else:
            db.execute(f"PRAGMA {name} = {value}")
    if name == "encoding":
        Path(f"{path}.other").replace(path)
    return name if name == "encoding" else f"{name} is {value}"


def no_store(path: Path, random: Random) -> str:
    """Another file in its place."""
    content = random.choice(
        (b"", b"\0" * 5000, b"SQLite format 3\0", b"%PDF-1.4", b"PK\x03\x04", b"<html>", b"\x1b[2J")
    )
    path.write_bytes(content)
    return repr(content[:10])


MUTATIONS: dict[str, Mutation] = {
    each.__name__.replace("_", " "): each
    for each in (
        flip_bytes, flip_in_head, truncate, wipe_page, swap_pages, append_bytes,
        swap_type, odd_number, naughty_text, no_text, huge_text, odd_bytes, delete_rows, duplicate_rows,
        wrong_reference, swap_values,
        break_json, other_json, deep_json, many_in_json, value_in_json, key_in_json,
        drop_column, rename_column, add_column, drop_table, table_for_view, add_trigger, cycle, other_sql, other_pragma,
        no_store,
    )
}  # fmt: skip
# Those of bytes, of values and of the schema.
OF_BYTES, OF_VALUES, OF_SCHEMA = (tuple(MUTATIONS)[part] for part in (slice(6), slice(6, 22), slice(22, None)))
