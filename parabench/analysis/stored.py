"""Cases from the JSON of a results database."""

from __future__ import annotations

from parabench.errors import UsageError
from parabench.plan.case import Case, RecordedCase
from parabench.plan.collective_case import CollectiveCase
from parabench.store import json_text

# What the launches of each kind of session are of; those of no other kind are trainings.
_KINDS: dict[object, type[Case | CollectiveCase | RecordedCase]] = {
    CollectiveCase.kind: CollectiveCase,
    RecordedCase.kind: RecordedCase,
}


def case_of(text: str) -> Case:
    """Return the case of a launch's `case_json`.

    Raises UsageError if another tool recorded the training run: its axes are unknown.
    """
    case = trained_case_of(text)
    if isinstance(case, RecordedCase):
        raise UsageError(f"{case.label} was recorded, not configured by parabench, so its configuration is unknown")
    return case


def trained_case_of(text: str) -> Case | RecordedCase:
    """Return the case of a launch that trained, whether parabench or another tool recorded it."""
    values = json_text.parsed(text)
    return RecordedCase.from_dict(values) if values.get("kind") == RecordedCase.kind else Case.from_dict(values)


def case_type(kind: object) -> type[Case | CollectiveCase | RecordedCase]:
    """Return the class of the cases in sessions of this kind."""
    return _KINDS.get(kind, Case)
