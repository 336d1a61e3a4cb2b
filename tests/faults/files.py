"""Files that are not ours beside stores."""

from __future__ import annotations

from typing import Any

FAMILIES: dict[str, Any] = {}
