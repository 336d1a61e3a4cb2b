"""Rows by their columns: what an answer needs of a DataFrame, whose library takes a third of a second to import.

A column is a numpy array: of int64, bool or float64 (where unknown is NaN), else of objects (where unknown is None).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, np.dtype[Any]]


class Rows(Protocol):
    """What `Columns` and a DataFrame have in common: a column by its name, and the rows of a mask."""

    def __len__(self) -> int: ...
    def __contains__(self, name: Any, /) -> bool: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def assign(self, **columns: Any) -> Any: ...


R = TypeVar("R", bound=Rows)


class Columns:
    """Columns of equal length, by name; `columns[mask]`, also of places, are those rows. Nobody may change them."""

    def __init__(self, columns: Mapping[str, Array]) -> None:
        self._columns = columns

    @classmethod
    def of(cls, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Columns:
        """Of rows whose values are in the order of `names`."""
        columns: Iterable[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(names)
        return cls({name: _array(column) for name, column in zip(names, columns, strict=True)})

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._columns[key]
        return Columns({name: column[key] for name, column in self._columns.items()})

    def __contains__(self, name: Any) -> bool:
        return name in self._columns

    def __len__(self) -> int:
        """How many rows there are."""
        return len(next(iter(self._columns.values())))

    def assign(self, **columns: Any) -> Columns:
        """With these columns beside, or instead."""
        return Columns({**self._columns, **columns})

    def frame(self) -> pd.DataFrame:
        """The same as a DataFrame."""
        import pandas as pd

        return pd.DataFrame(self._columns)


def _array(values: Sequence[Any]) -> Array:
    kinds = set(map(type, values))
    if kinds in ({int}, {bool}):
        return np.array(values)
    number = kinds & {int, float} and kinds <= {int, float, NoneType}
    return np.array(values, dtype=float if number else object)


def records(rows: Rows, names: Sequence[str]) -> list[dict[str, Any]]:
    """The rows, each as a dict of these columns, in Python's own types."""
    columns = [np.asarray(rows[name]).tolist() for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def coded(values: Any) -> tuple[Array, list[Any]]:
    """(for each value the place of the first that is like it, the different values in the order of their places)."""
    places: dict[Any, int] = {}
    codes = [places.setdefault(value, len(places)) for value in np.asarray(values).tolist()]
    return np.array(codes, dtype=np.int64), list(places)


def places(values: Array, among: Array) -> Array:
    """Where each of `values` lies in `among`, which rises; -1 where it does not."""
    at = np.searchsorted(among, values)
    inside = at < len(among)
    inside[inside] = among[at[inside]] == values[inside]
    return np.where(inside, at, -1)


def reduced(ufunc: np.ufunc, values: Array, place: Array, n: int) -> Array:
    """`ufunc` (fmax, say) over the values of each place 0 .. n - 1; NaN where there are none."""
    found = np.full(n, np.nan)
    inside = place >= 0
    # The first of each place stands for itself: NaN is no start for maximum and add.
    values, place = values[inside], place[inside]
    places_there, first = np.unique(place, return_index=True)
    found[places_there] = values[first]
    rest = np.ones(len(place), dtype=bool)
    rest[first] = False
    with np.errstate(invalid="ignore"):  # some processors warn of NaN
        ufunc.at(found, place[rest], values[rest])
    return found


def medians(values: Array, place: Array, n: int) -> Array:
    """The median of the known values of each place 0 .. n - 1; NaN where there are none."""
    known = ~np.isnan(values)
    values, place = values[known], place[known]
    ordered = values[np.lexsort((values, place))]
    counts = np.bincount(place, minlength=n)
    first = np.cumsum(counts) - counts
    there = counts > 0
    found = np.full(n, np.nan)
    found[there] = (ordered[(first + (counts - 1) // 2)[there]] + ordered[(first + counts // 2)[there]]) / 2
    return found
