"""What rows of a store say in JSON, looked at before anything is made of it: anyone may have written it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parabench.errors import UsageError
from parabench.plan.case import Case, RecordedCase
from parabench.plan.collective_case import CollectiveCase
from parabench.store import json_text, shapes, soundness
from parabench.store.columns import records
from parabench.store.results import Results


def environment_of(results: Results, row: Mapping[str, Any]) -> dict[str, Any]:
    """What a row of `session` records of its machine. Raises UsageError for what no session records."""
    place = f"environment of session {row['id']} of {results.path}"
    environment: dict[str, Any] = json_text.read(row["environment"], shapes.ENVIRONMENT, place)
    for node in (environment, *(environment.get("nodes") or [])):
        node["gpus"] = [_whole_gpu(each) for each in node.get("gpus") or []]
    return environment


def _whole_gpu(gpu: dict[str, Any]) -> dict[str, Any]:
    """With None for what the machine's record does not tell of a device."""
    return dict.fromkeys(each.rstrip("!") for each in shapes.GPU_READ) | gpu if "reasons" in gpu else gpu


def interleaved_of(results: Results, row: Mapping[str, Any]) -> dict[str, str]:
    """With whom a row of `session` took turns, as `Session.interleaved` has it. Raises UsageError."""
    place = f"interleaved of session {row['id']} of {results.path}"
    tied: dict[str, str] = json_text.read(row["interleaved"], shapes.INTERLEAVED, place)
    return tied


def argv_of(results: Results, row: Mapping[str, Any]) -> list[str]:
    """The command of a row of `session`. Raises UsageError."""
    words: list[str] = json_text.read(row["argv"], shapes.ARGV, f"argv of session {row['id']} of {results.path}")
    return words


def plan_of(results: Results, row: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of a row of `session`, whose cases are some. Raises UsageError."""
    place = f"plan of session {row['id']} of {results.path}"
    plan: dict[str, Any] = json_text.read(row["plan"], shapes.PLAN, place)
    kind = case_type(plan.get("kind"))
    for each in [*(plan.get("cases") or []), *(entry["case"] for entry in plan.get("skipped") or [])]:
        _check_case(kind, each, place)
    return plan


# What the launches of each kind of session are of; those of no other kind are trainings.
_KINDS: dict[object, type[Case | CollectiveCase | RecordedCase]] = {
    CollectiveCase.kind: CollectiveCase,
    RecordedCase.kind: RecordedCase,
}


def case_of(text: str) -> Case:
    """The case of a launch's `case_json`, of a session that `check_launches` has looked at. Raises UsageError for a
    training that parabench did not configure: nobody knows its axes."""
    case = trained_case_of(text)
    if isinstance(case, RecordedCase):
        raise UsageError(f"{case.label} was recorded, not configured by parabench, so its configuration is unknown")
    return case


def trained_case_of(text: str) -> Case | RecordedCase:
    """The case of a launch that trained, whoever configured it."""
    values = json_text.parsed(text)
    return RecordedCase.from_dict(values) if values.get("kind") == RecordedCase.kind else Case.from_dict(values)


def case_type(kind: object) -> type[Case | CollectiveCase | RecordedCase]:
    """Of what the launches of a session are that measured such a kind of thing."""
    return _KINDS.get(kind, Case)


def check_launches(results: Results, session: int, plan: Mapping[str, Any]) -> None:
    """Raise UsageError where a launch of the session tells what no launch does, by its case or its facts."""
    if session in results.checked:
        return
    kind, table = case_type(plan.get("kind")), results.launch_columns
    rows = records(table[table["session_id"] == session], ("id", "case_id", "case_json", "facts"))
    told = shapes.FACTS_OF_COLLECTIVES if kind is CollectiveCase else shapes.FACTS
    known: dict[str, str] = {}
    for row in rows:
        place = f"of launch {row['id']} of {results.path}"
        json_text.read(row["facts"], told, f"facts {place}")
        text = row["case_json"]
        if text not in known:
            known[text] = row["case_id"]
            _check_case(kind, json_text.read(text, shapes.CASE, f"case_json {place}"), f"case_json {place}")
        if known[text] != row["case_id"]:
            raise UsageError(
                f"case_id {place} cannot be read: its case has another in another launch; {soundness.REMEDY}"
            )
    results.checked.add(session)


def _check_case(kind: type[Case | CollectiveCase | RecordedCase], values: dict[str, Any], place: str) -> None:
    try:
        kind.from_dict(values)
    except UsageError as error:
        raise UsageError(f"{place} cannot be read: {error}; {soundness.REMEDY}") from error
