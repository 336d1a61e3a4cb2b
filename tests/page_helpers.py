"""What a page embeds, as its script reads it."""

from __future__ import annotations

from typing import Any


def unpacked(column: Any, n: int) -> list[Any]:
    """One packed column of `n` rows as a list; the reverse of `parabench.report.data.columns`."""
    if isinstance(column, list):
        return column
    if "all" in column:
        return [column["all"]] * n
    if "from" in column:
        return [column["from"] + i for i in range(n)]
    if "times" in column:
        return [None if each is None else each * column["times"] for each in column["of"]]
    return [column["values"][at] for at in column["of"]]
