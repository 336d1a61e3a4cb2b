"""The answer to a question, independent of its output format, and its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from html import escape
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from parabench import json_text
from parabench.analysis import format
from parabench.store.record import Finding

if TYPE_CHECKING:
    import pandas as pd

# The version of the JSON. It increases if a table or column is removed or its meaning changes.
VERSION = 1
# The columns of a table and the types of their cells. docs/site/keys.toml has their meanings.
Columns = Mapping[str, Any]
# A row of a table by column. Unknown values are None.
Row = dict[str, Any]
# The rows of tables by name. A row is a record with the cells as attributes, a mapping, or a record and a mapping.
Rows = Mapping[str, Iterable[Any]]
# Rows of tables by name, if all rows are mappings.
Records = Mapping[str, Sequence[Mapping[str, Any]]]
# Rows of a table that a notebook shows.
_MOST_ROWS = 20


@dataclass(frozen=True, repr=False, eq=False)
class Answer:
    """The answer to a question about results. `print` shows its sentences; Jupyter also shows warnings and tables.

    Args:
        sentences: The conclusions, the most important one first.
        tables: Data frames by name.
        figures: Arguments of `plotly.graph_objects.Figure` by title, in notebooks.
        warnings: Problems that may affect the answer.
    """

    sentences: tuple[str, ...]
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    figures: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    warnings: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(format.printable, self.sentences))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the sentences, the warnings and the first rows of the tables as HTML without scripts."""
        parts = [f"<p>{escape(each)}</p>" for each in self.sentences]
        if self.warnings:
            messages = "".join(f"<li>{escape(each.message)} {escape(each.advice)}</li>" for each in self.warnings)
            parts.append(f"<p>Warnings</p><ul>{messages}</ul>")
        for name, table in ((name, table) for name, table in self.tables.items() if len(table)):
            rows = table.to_html(index=False, border=0, max_rows=_MOST_ROWS, na_rep="–", float_format="{:.4g}".format)
            parts.append(f"<details><summary>{escape(name)}</summary>{rows}</details>")
        return "\n".join(parts)

    def to_json(self, command: str) -> str:
        """Return the JSON of a command (docs/reference/json.md). Unknown values are null."""
        return json_text.written(
            {
                "version": VERSION,
                "command": command,
                "sentences": self.sentences,
                "tables": {name: rows(table) for name, table in self.tables.items()},
                "warnings": [each.to_dict() for each in self.warnings],
            }
        )


def columns(record: type[Any], **more: Any) -> dict[str, Any]:
    """Return the columns of a table: `more`, then the fields of a record that fit into a cell."""
    hints = get_type_hints(record, include_extras=True)
    return more | {name: hint for name, hint in hints.items() if name not in more and _fits(hint)}


def keyed(records: Iterable[object], **more: Any) -> list[tuple[object, dict[str, Any]]]:
    """Return a row for each record, with the cells `more` in common."""
    return [(each, more) for each in records]


def table(columns: Columns, rows: Iterable[Any]) -> pd.DataFrame:
    """Return a table with these columns. Numbers that may be unknown are NaN or `pd.NA`."""
    import pandas as pd  # takes 0.5 s, and `parabench list` does not need it

    pairs = (row if isinstance(row, tuple) else (None, row) if isinstance(row, Mapping) else (row, {}) for row in rows)
    cells = [[more[name] if name in more else getattr(of, name) for name in columns] for of, more in pairs]
    values = zip(*cells, strict=True) if cells else ((),) * len(columns)
    typed = zip(columns, columns.values(), values, strict=True)
    return pd.DataFrame({name: _column(own, _kinds(hint)) for name, hint, own in typed})


def tables(declared: Mapping[str, Columns], rows: Rows) -> dict[str, pd.DataFrame]:
    """Return a table for each declaration; tables without rows are empty."""
    assert rows.keys() <= declared.keys()
    return {name: table(columns, rows.get(name, ())) for name, columns in declared.items()}


def rows(of: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows with built-in Python types. Unknown values are None."""
    from parabench.store.results import known_records  # imports pandas, which `parabench list` does not need

    return known_records(of)


def _kinds(hint: Any) -> set[Any]:
    """Return the types of the values of a cell, without None."""
    if get_origin(hint) is Annotated:
        return _kinds(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return {kind for each in get_args(hint) for kind in _kinds(each)} - {NoneType}
    return {hint}


def _fits(hint: Any) -> bool:
    """Return whether a cell can have a value of this type: a number, a string, a boolean, or a tuple of these."""
    scalars = (str, int, float, bool)
    return all(
        (isinstance(each, type) and issubclass(each, (*scalars, Enum)))
        or get_origin(each) is Literal
        or (get_origin(each) is tuple and all(part is Ellipsis or _fits(part) for part in get_args(each)))
        for each in _kinds(hint)
    )


def _column(values: Sequence[Any], kinds: set[Any]) -> Any:
    """Return a column of values of these types as an array, which pandas takes faster than a list."""
    import numpy as np
    import pandas as pd

    if kinds == {int}:
        return pd.array(list(values), dtype="Int64")
    if kinds <= {int, float}:
        return np.array(values, dtype=float)
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found
