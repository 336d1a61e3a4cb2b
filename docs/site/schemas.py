"""JSON Schemas of the JSON that commands write, generated from the tables of their answers.

    python -m docs.site.schemas docs/reference    # make schemas

keys.toml has the meaning of each column. The site contains the schemas (docs/site/hooks.py).
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from parabench.ab import series
from parabench.analysis import noise
from parabench.analysis.answer import VERSION, Columns
from parabench.analysis.answer import columns as columns_of
from parabench.analysis.collectives import crossover
from parabench.analysis.compare import gate, machines
from parabench.analysis.history import TABLES as HISTORY
from parabench.analysis.prediction import predict
from parabench.analysis.ranking import TABLES as BEST
from parabench.analysis.step.recorded import COMPARED
from parabench.commands.doctor import TABLES as DOCTOR
from parabench.commands.init import TABLES as CHECK
from parabench.commands.list import TABLES as LIST
from parabench.plan.case import Case
from parabench.store.record import Finding

KEYS = Path(__file__).with_name("keys.toml")

# {file: (commands, their tables)}.
SCHEMAS: dict[str, tuple[str, Mapping[str, Columns]]] = {
    "best": ("parabench best --json", BEST),
    "best-collectives": ("parabench best --json of collectives", crossover.TABLES),
    "check": ("parabench check --json", CHECK),
    "compare": ("parabench compare --json and parabench ab --json", gate.TABLES),
    "compare-machines": ("parabench compare --across-hardware --json", machines.TABLES),
    "compare-recorded": ("parabench compare --from --json", {"compared": COMPARED}),
    "doctor": ("parabench doctor --json", DOCTOR),
    "history": ("parabench history --json", HISTORY),
    "list": ("parabench list --json", LIST),
    "noise": ("parabench noise --json", noise.TABLES),
    "predict": ("parabench predict --json", predict.TABLES),
    "series": ("parabench ab --series --json", series.TABLES),
}


@cache
def meanings() -> dict[str, dict[str, Any]]:
    """Return the content of keys.toml, with the axes of configurations."""
    found = tomllib.loads(KEYS.read_text(encoding="utf-8"))
    axes = {name: f"Axis {name} (docs/reference/axes.md)." for name in columns_of(Case)}
    return found | {"common": axes | found["common"]}


def meaning(name: str, table: str, column: str) -> str:
    """Return the meaning of a column of a table of a schema. Raises KeyError if keys.toml has none."""
    columns, common = meanings().get(name, {}).get(table, {}), meanings()["common"]
    return str(columns[column] if column in columns else common[column])


@cache
def schema(name: str) -> dict[str, Any]:
    """Return one of SCHEMAS. Every key is required and has a description; other keys are not allowed."""
    title, declared = SCHEMAS[name]
    defs = {table: _object(name, table, columns) for table, columns in declared.items()}
    rows = {table: {"type": "array", "items": {"$ref": f"#/$defs/{table}"}} for table in defs}
    for table, each in rows.items():
        each["description"] = meaning(name, "tables", table)
    warnings = _object(name, "warnings", columns_of(Finding))
    parts = {
        "version": {"const": VERSION},
        "command": {"const": title.split()[1]} if name != "compare" else {"enum": ["compare", "ab"]},
        "sentences": {"type": "array", "items": {"type": "string"}},
        "tables": {"$ref": "#/$defs/tables"},
        "warnings": {"type": "array", "items": {"$ref": "#/$defs/warnings"}},
    }
    described = {key: each | {"description": meaning(name, "answer", key)} for key, each in parts.items()}
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return whole | _closed(described) | {"$defs": {"tables": _closed(rows), **defs, "warnings": warnings}}


def _closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with exactly these keys."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _object(name: str, table: str, columns: Columns) -> dict[str, Any]:
    """Return the schema of a row."""
    record = msgspec.defstruct("Row", list(columns.items()))
    _, parts = msgspec.json.schema_components([record], ref_template="#/$defs/{name}")
    enums = {f"#/$defs/{each}": {"enum": part["enum"]} for each, part in parts.items() if "enum" in part}
    properties = _inlined(parts["Row"]["properties"], enums)
    return _closed({key: each | {"description": meaning(name, table, key)} for key, each in properties.items()})


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
