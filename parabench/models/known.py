"""What the planner knows of a model, ours or a user's own."""

from __future__ import annotations

from functools import cache

from parabench.models import MODELS, ModelEntry
from parabench.registry import find


@cache
def entry_of_model(name: str) -> ModelEntry:
    """The entry of our own models; of a user's own what building it once shows.

    Raises UsageError for an unknown name, and where a user's own cannot be built or is not what it must be.
    """
    entry = find(MODELS, "model", name)
    if isinstance(entry, ModelEntry):
        return entry
    from parabench.models.own import describe  # it needs torch, which our own models do not here

    return describe(name)
