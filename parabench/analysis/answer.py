"""The answer to a question, independent of its output format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

import pandas as pd

from parabench.analysis import format

# Rows of a table that a notebook shows.
_MOST_ROWS = 20


@dataclass(frozen=True, repr=False)
class Answer:
    """What a question about results found. It prints as its sentences, and Jupyter also shows warnings and tables.

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

    def __str__(self) -> str:
        return "\n".join(map(format.printable, self.sentences))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the sentences, the warnings and the first rows of the tables as HTML without scripts."""
        parts = [f"<p>{escape(each)}</p>" for each in self.sentences]
        if self.warnings:
            parts.append(f"<p>Warnings</p><ul>{''.join(f'<li>{escape(each)}</li>' for each in self.warnings)}</ul>")
        for name, table in ((name, table) for name, table in self.tables.items() if len(table)):
            rows = table.to_html(index=False, border=0, max_rows=_MOST_ROWS, na_rep="–", float_format="{:.4g}".format)
            parts.append(f"<details><summary>{escape(name)}</summary>{rows}</details>")
        return "\n".join(parts)
