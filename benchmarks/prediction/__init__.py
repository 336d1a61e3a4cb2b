"""The accuracy of predicted step times, compared with measurements on emulated machines."""

from __future__ import annotations

from collections.abc import Iterable


def markdown(rows: Iterable[tuple[str, ...]]) -> str:
    """Return rows of cells, the head first, as a Markdown table."""
    head, *others = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, tuple("---" for _ in head), *others))
