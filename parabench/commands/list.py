"""`parabench list`: show suites, strategies, algorithms, models, and the resources of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from parabench.analysis.answer import Answer, Columns, Records, tables
from parabench.collectives import ALGORITHMS
from parabench.commands.output import Command, file_option, files_in, give
from parabench.data import DATASETS
from parabench.machine import accelerator
from parabench.machine.machine import this_machine
from parabench.models import MODELS
from parabench.plan.suite import load_suite, shipped
from parabench.strategies import STRATEGIES

# The tables of the answer.
_SUMMARY = {"name": str, "summary": str}
TABLES: Mapping[str, Columns] = {
    "suites": {"name": str, "question": str},
    "strategies": _SUMMARY | {"missing": str | None},
    "algorithms": _SUMMARY,
    "models": _SUMMARY,
    "data": _SUMMARY,
    "machine": {"cores": int, "ranks": int, "gpus": tuple[str, ...], "no_gpus": str | None},
}


@click.command(
    cls=Command,
    examples={"What can be measured here?": "parabench list", "The same for a script:": "parabench list --json -"},
)
@file_option("json", "Write JSON (docs/reference/json.md).")
def list(**options: Any) -> None:
    """Show suites, strategies, algorithms and models, and what this machine can run."""
    files, there = files_in(options), contents()
    give(files, lambda: Answer((), tables(TABLES, there)), lines(there), "list")


def contents() -> Records:
    """Return the rows of TABLES: the entries that can be measured, and the resources of this machine."""
    machine = this_machine()
    gpus, no_gpus = tuple(gpu.name for gpu in machine.gpus), None if machine.gpus else machine.gpus_reason
    here = {"cores": machine.cores, "ranks": machine.ranks("cpu"), "gpus": gpus, "no_gpus": no_gpus}

    def listed(entries: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
        return [{"name": name, "summary": each.summary} for name, each in entries.items()]

    return {
        "suites": [{"name": name, "question": load_suite(name).question.splitlines()[0]} for name in shipped()],
        "strategies": [row | {"missing": STRATEGIES[row["name"]].missing} for row in listed(STRATEGIES)],
        "algorithms": listed(ALGORITHMS),
        "models": listed(MODELS),
        "data": listed(DATASETS),
        "machine": [here],
    }


def lines(there: Records) -> Iterator[str]:
    """Yield the listing as lines for the terminal."""
    (here,) = there["machine"]
    gpus = here["gpus"]
    on_gpus = f"{len(gpus)} device(s), nccl or gloo: {', '.join(gpus)}" if gpus else f"none: {here['no_gpus']}"
    for title in (title for title in TABLES if title != "machine"):
        yield f"{title}:"
        width = max(len(row["name"]) for row in there[title])
        for row in there[title]:
            missing = f" (not installed: pip install {row['missing']})" if row.get("missing") else ""
            yield f"  {row['name']:<{width}}  {row.get('question') or row['summary']}{missing}"
        yield ""
    yield "this machine:"
    width = len(accelerator.TYPE)
    yield f"  {'cpu':<{width}}  {here['cores']} core(s), gloo, up to {here['ranks']} ranks"
    yield f"  {accelerator.TYPE}  {on_gpus}"
    yield ""
