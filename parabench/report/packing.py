"""Tables as the page embeds them: by column, rounded to what a reader can see, repeated words once.

`reports/script/core/data.js` reads this back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from parabench.report import spec

# Significant digits of an embedded number: one more than the most that any figure or table shows.
DIGITS = 5

# {"all": value}, where every row has the same; {"from": first}, where each is one more than the last; {"values": [...],
# "of": [index, ...]}, where few differ; {"times": unit, "of": [...]}, where all are whole multiples; or a list.
Column = dict[str, Any] | list[Any]


def packed(table: pd.DataFrame) -> dict[str, Any]:
    """{"n": rows, column: its packed values, ...}."""
    return {"n": len(table)} | {str(name): column(table[name]) for name in table}


def declared(
    columns: Iterable[spec.Column], csv: Iterable[str], heads: Callable[[str], str] = str, initial: str = ""
) -> dict[str, Any]:
    """A table that the page's script fills: its columns, those of its file, each [head, column], and the column by
    which its rows come sorted, if any. `heads` gives a file's head for the name of a column."""
    return {
        "columns": [
            {"name": one.value, "head": one.title, "format": one.format, "beside": one.beside} for one in columns
        ],
        "csv": [(heads(name), name) for name in csv],
        "initial": initial,
    }


def column(values: Iterable[Any]) -> Column:
    """One packed column; what is NaN or None is None."""
    series = values if isinstance(values, pd.Series) else pd.Series(list(values), dtype=object)
    if pd.api.types.is_bool_dtype(series):
        series = series.astype(object)
    items = numbers(series) if pd.api.types.is_numeric_dtype(series) else _objects(series)
    known = list(dict.fromkeys(items))
    if len(known) == 1:
        return {"all": known[0]}
    if len(known) <= len(items) // 4:
        place = {value: i for i, value in enumerate(known)}
        return {"values": known, "of": [place[value] for value in items]}
    if pd.api.types.is_numeric_dtype(series) and not series.hasnans and series.diff()[1:].eq(1).all():
        return {"from": items[0]}
    unit = _unit(items)
    return items if unit == 1 else {"times": unit, "of": [None if item is None else item // unit for item in items]}


def _unit(items: list[Any]) -> int:
    """The largest whole number of which all are multiples, such as the pages of memory in bytes; 1 of what is not
    whole."""
    unit = 0
    for item in items:
        if item is not None:
            if not isinstance(item, int) or unit == 1:
                return 1
            unit = math.gcd(unit, item)
    return unit or 1


def numbers(values: pd.Series[Any]) -> list[int | float | None]:
    """The numbers with DIGITS significant digits, whole ones without a point, None where unknown."""
    exact = values.to_numpy(dtype=float, na_value=np.nan)
    known = np.isfinite(exact)
    size = np.zeros_like(exact)
    np.log10(np.abs(exact), out=size, where=known & (exact != 0))
    decimals = (DIGITS - 1 - np.floor(size)).astype(int).tolist()
    return [
        None if not there else _short(value, places)
        for value, places, there in zip(exact.tolist(), decimals, known.tolist(), strict=True)
    ]


def rounded(figure: Any) -> Any:
    """A figure's JSON with its numbers so rounded, None where one is not finite."""
    if isinstance(figure, float):
        if not math.isfinite(figure):
            return None  # JSON has no such number, and plotly draws nothing there
        short = float(f"{figure:.{DIGITS}g}")
        return int(short) if short.is_integer() else short
    if isinstance(figure, list):
        return [rounded(each) for each in figure]
    if isinstance(figure, dict):
        return {name: rounded(each) for name, each in figure.items()}
    return figure


def _short(value: float, decimals: int) -> int | float:
    rounded = round(value, decimals) if decimals > 0 else round(value)  # what is left of the point stays whole
    return int(rounded) if rounded == int(rounded) else rounded


def _objects(values: pd.Series[Any]) -> list[Any]:
    """As JSON can hold it: unknown is None, and numpy's scalars are Python's."""
    return [
        None
        if value is None or (isinstance(value, float) and value != value)
        else getattr(value, "item", lambda v=value: v)()
        for value in values.tolist()
    ]
