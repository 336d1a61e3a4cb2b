"""The answer to a question, independent of its output format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd


@dataclass(frozen=True)
class Answer:
    """What a question about results found.

    Args:
        sentences: The conclusions, the most important one first.
        tables: Data frames by name, with the columns that the documentation of the command lists.
        figures: Plotly's JSON by name, {"data": traces, "layout": ...}.
        warnings: What a reader should know before trusting the answer, one sentence each.
    """

    sentences: tuple[str, ...]
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    figures: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
