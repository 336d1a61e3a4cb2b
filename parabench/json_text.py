"""Read and write JSON. Unknown values are null."""

from __future__ import annotations

import json
import math
from typing import Any

from parabench.errors import UsageError


def parsed(text: str | None, place: str = "JSON of a store") -> Any:
    """Return the value of a JSON text, with None instead of NaN and infinity. If `text` is None, return {}.

    Raises UsageError, which names `place`, if the text is not JSON.
    """
    if text is None:
        return {}
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place} cannot be read: {error}") from error


def written(data: Any) -> str:
    """Return a value as indented JSON. Raises ValueError for NaN and infinity."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=lambda name: None)
