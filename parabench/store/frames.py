"""Helpers for pandas tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

Array = np.ndarray[Any, np.dtype[Any]]


def records(table: pd.DataFrame, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows as dictionaries of these columns, with Python's own types. Unknown numbers are NaN."""
    return cast("list[dict[str, Any]]", table[list(names)].to_dict("records"))
