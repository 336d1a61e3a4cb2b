"""Stores as older versions of the schema left them."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path

from parabench.store.schema import new_columns, new_tables


def make_older(path: Path, version: int) -> None:
    """Take from a store of today what that version did not have yet."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for kind, name in reversed(re.findall(r"CREATE (TABLE|INDEX) (\w+)", new_tables(version))):
            db.execute(f"DROP {kind} {name}")
        for column in new_columns(version):
            db.execute(f"ALTER TABLE {column.table} DROP COLUMN {column.name}")
        db.execute(f"PRAGMA user_version = {version}")
