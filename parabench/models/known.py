"""What the planner knows of a model, ours or a user's own."""

from __future__ import annotations

from functools import cache

from parabench.models import MODELS, ModelEntry
from parabench.registry import find

# Until it is built, a user's own model is taken to bring everything.
ANYTHING = ModelEntry(target="", summary="a user's own", brings=frozenset({"blocks", "tensor_parallel"}))


@cache
def entry_of_model(name: str) -> ModelEntry:
    """The entry of our own models; of a user's own what building it shows. Raises UsageError for an unknown name."""
    entry = find(MODELS, "model", name)
    return entry if isinstance(entry, ModelEntry) else ANYTHING
