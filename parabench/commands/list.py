"""`parabench list`: what can be measured here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from parabench.commands.output import Command, file_option, files_in, give
from parabench.machine import accelerator
from parabench.store import json_text


@click.command(
    cls=Command,
    examples={
        "What can be measured here?": "parabench list",
        "The same for a script:": "parabench list --json -",
    },
)
@file_option("json", "Write JSON (docs/reference/list.schema.json).")
def list(**options: Any) -> None:
    """Show suites, strategies, algorithms and models, and what this machine can run."""
    files, there = files_in(options), contents()
    give(files, {"--json": lambda: json_text.written(there)}, lines(there), "list")


def contents() -> dict[str, Any]:
    """By section what there is by its name (docs/reference/list.schema.json)."""
    from parabench.collectives import ALGORITHMS
    from parabench.data import DATASETS
    from parabench.machine.machine import this_machine
    from parabench.models import MODELS
    from parabench.plan.suite import shipped
    from parabench.strategies import STRATEGIES

    machine = this_machine()
    return {
        "suites": {name: _question(name) for name in shipped()},
        "strategies": {
            name: {"summary": entry.summary, "missing": entry.missing} for name, entry in STRATEGIES.items()
        },
        "algorithms": {name: entry.summary for name, entry in ALGORITHMS.items()},
        "models": {name: shape.summary for name, shape in MODELS.items()},
        "data": {name: entry.summary for name, entry in DATASETS.items()},
        "machine": {
            "cores": machine.cores,
            "ranks": machine.ranks("cpu"),
            "gpus": [gpu.name for gpu in machine.gpus],
            "no_gpus": None if machine.gpus else machine.gpus_reason,
        },
    }


def lines(there: dict[str, Any]) -> Iterator[str]:
    """The same for people, a section after another."""
    for title in ("suites", "strategies", "algorithms", "models", "data"):
        rows = {name: text if isinstance(text, str) else _strategy(text) for name, text in there[title].items()}
        yield from _section(title, rows)
    here, gpus = there["machine"], there["machine"]["gpus"]
    devices = {"cpu": f"{here['cores']} core(s), gloo, up to {here['ranks']} ranks"}
    devices[accelerator.TYPE] = (
        f"{len(gpus)} device(s), nccl or gloo: {', '.join(gpus)}" if gpus else f"none: {here['no_gpus']}"
    )
    yield from _section("this machine", devices)


def _strategy(entry: dict[str, str | None]) -> str:
    summary, missing = entry["summary"] or "", entry["missing"]
    return summary if missing is None else f"{summary} (not installed: pip install {missing})"


def _section(title: str, rows: dict[str, str]) -> Iterator[str]:
    width = max(map(len, rows))
    yield f"{title}:"
    for name, text in rows.items():
        yield f"  {name:<{width}}  {text}"
    yield ""


def _question(name: str) -> str:
    from parabench.errors import UsageError
    from parabench.plan.suite import load_suite

    try:
        return load_suite(name).question.splitlines()[0]
    except UsageError as error:
        return f"({error})"
