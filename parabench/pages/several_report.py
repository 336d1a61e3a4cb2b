"""Two or more stores or sessions beside each other: one HTML page."""

from __future__ import annotations

from pathlib import Path

from parabench.errors import UsageError


def write_comparison(stores: list[tuple[Path, str | None]], out: Path, template_folder: Path | None = None) -> Path:
    """Write the comparison of the sessions (default of each store: its newest) to the file `out`, whole or not at all."""
    raise UsageError("not yet")
