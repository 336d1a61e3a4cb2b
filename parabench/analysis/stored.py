"""What rows of a store say in JSON, looked at before anything is made of it: anyone may have written it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parabench.errors import UsageError
from parabench.plan.case import Case
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
    kind = _kind_of(plan)
    for each in [*(plan.get("cases") or []), *(entry["case"] for entry in plan.get("skipped") or [])]:
        _check_case(kind, each, place)
    return plan


def case_of(text: str) -> Case:
    """The case of a launch's `case_json`, of a session that `check_launches` has looked at."""
    return Case.from_dict(json_text.parsed(text))


def _kind_of(plan: Mapping[str, Any]) -> type[Case | CollectiveCase]:
    return CollectiveCase if plan.get("kind") == CollectiveCase.kind else Case


def check_launches(results: Results, session: int, plan: Mapping[str, Any]) -> None:
    """Raise UsageError where a launch of the session tells what no launch does, by its case or its facts."""
    if session in results.checked:
        return
    kind, table = _kind_of(plan), results.launch_columns
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


def _check_case(kind: type[Case | CollectiveCase], values: dict[str, Any], place: str) -> None:
    try:
        kind.from_dict(values)
    except UsageError as error:
        raise UsageError(f"{place} cannot be read: {error}; {soundness.REMEDY}") from error
