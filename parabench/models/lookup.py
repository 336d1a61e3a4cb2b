"""What the planner knows of a model, ours or a user's own."""

from __future__ import annotations

from parabench.models import MODELS, ModelEntry
from parabench.plan.case import Case
from parabench.registry import find


def entry_of_model(case: Case) -> ModelEntry:
    """The entry of our own models; of a user's own what building it once shows, with the case where it takes one.

    Raises UsageError for an unknown name, and where a user's own cannot be built or is not what it must be.
    """
    entry = find(MODELS, "model", case.model)
    if isinstance(entry, ModelEntry):
        return entry
    from parabench.models.user import describe  # it needs torch, which our own models do not here

    return describe(case)
