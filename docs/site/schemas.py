"""JSON Schemas of the JSON that commands write, generated from the records that they write.

    python -m docs.site.schemas docs/reference    # make schemas

keys.toml has the meaning of each key. The site contains the schemas (docs/site/hooks.py).
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec

from parabench.ab.series import Series as SeriesOfProposals
from parabench.analysis.collectives.crossover import BusAnswer
from parabench.analysis.compare.gate import Comparison, Verdict
from parabench.analysis.compare.machines import Machines
from parabench.analysis.history import Series, SessionEntry
from parabench.analysis.noise import Sensitivity
from parabench.analysis.prediction.predict import Prediction, Refused
from parabench.analysis.ranking.ranking import Answer
from parabench.commands.doctor import Examination
from parabench.commands.init import Trial
from parabench.commands.list import Listing

KEYS = Path(__file__).with_name("keys.toml")


def extended(record: type[Any], **more: Any) -> type[Any]:
    """Return the record with more fields, or with other types, as its `to_dict` writes them."""
    names = [each.name for each in fields(record)] if is_dataclass(record) else record.__struct_fields__
    hints = {name: get_type_hints(record, include_extras=True)[name] for name in names}
    return msgspec.defstruct(record.__name__, list((hints | more).items()))


def _history() -> type[Any]:
    text = {"case_id": str, "state": str, "whole": float | None, "away": float | None, "sentence": str}
    series = extended(Series, case=dict[str, Any], **text)
    return msgspec.defstruct("History", [("sentence", str), ("sessions", list[SessionEntry]), ("series", list[series])])  # type: ignore[valid-type]


def _gate() -> type[Any]:
    return extended(
        Comparison,
        schema=Literal[3],
        kind=Literal["gate"],
        verdict=Verdict,
        exit_code=Literal[0, 1, 3],
        upper=float | None,
        sentence=str,
    )


# {file: (title, whether it is an array, the records of which each is one)}.
SCHEMAS: dict[str, tuple[str, bool, Callable[[], Iterable[type[Any]]]]] = {
    "best": (
        "parabench best --json",
        True,
        lambda: (
            extended(Answer, winner=str | None, sentence=str, notes=list[str]),
            extended(BusAnswer, sentence=str),
        ),
    ),
    "check": ("parabench check --json", False, lambda: (Trial,)),
    "compare": (
        "parabench compare --json and parabench ab --json",
        False,
        lambda: (_gate(), extended(Machines, schema=Literal[3], kind=Literal["across hardware"], sentence=str)),
    ),
    "doctor": ("parabench doctor --json", False, lambda: (Examination,)),
    "history": ("parabench history --json", False, lambda: (_history(),)),
    "list": ("parabench list --json", False, lambda: (Listing,)),
    "noise": ("parabench noise --json", False, lambda: (extended(Sensitivity, schema=Literal[1], sentence=str),)),
    "predict": (
        "parabench predict --json",
        True,
        lambda: (extended(each, case=dict[str, Any], label=str) for each in (Prediction, Refused)),
    ),
    "series": ("parabench ab --series --json", False, lambda: (SeriesOfProposals,)),
}


@cache
def schema(name: str) -> dict[str, Any]:
    """Return one of SCHEMAS. Every key is there, has a description, and no other key is.

    Raises KeyError for a key without a description in keys.toml.
    """
    title, array, records = SCHEMAS[name]
    found, parts = msgspec.json.schema_components(records(), ref_template="#/$defs/{name}")
    enums = {f"#/$defs/{record}": {"enum": each["enum"]} for record, each in parts.items() if "enum" in each}
    defs = {record: _inlined(each, enums) for record, each in parts.items() if "enum" not in each}
    meanings = tomllib.loads(KEYS.read_text(encoding="utf-8"))[name]
    for record, each in defs.items():
        each.pop("title", None)
        each |= {"required": [*each["properties"]], "additionalProperties": False}
        for key, value in each["properties"].items():
            value.pop("default", None)
            value["description"] = meanings[record][key]
    one = found[0] if len(found) == 1 else {"anyOf": list(found)}
    whole: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return whole | ({"type": "array", "items": one} if array else one) | {"$defs": defs}


def _inlined(part: Any, enums: dict[str, dict[str, Any]]) -> Any:
    """Return a part of a schema with the values of enumerations instead of references to them."""
    if isinstance(part, list):
        return [_inlined(each, enums) for each in part]
    if not isinstance(part, dict):
        return part
    return dict(enums.get(part.get("$ref", ""), {})) or {key: _inlined(each, enums) for key, each in part.items()}


def write(folder: Path) -> None:
    """Write all schemas into a folder."""
    for name in SCHEMAS:
        (folder / f"{name}.schema.json").write_text(json.dumps(schema(name), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
