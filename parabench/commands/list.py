"""`parabench list`: what can be measured here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from parabench import json_text
from parabench.commands.output import Command, file_option, files_in, give
from parabench.machine import accelerator
from parabench.records import Record


class Listed(Record, frozen=True, kw_only=True):
    """A strategy, and the package that it needs if that is not installed."""

    summary: str
    missing: str | None


class Here(Record, frozen=True, kw_only=True):
    """The ranks and devices of this machine."""

    cores: int
    ranks: int
    gpus: tuple[str, ...]
    no_gpus: str | None


class Listing(Record, frozen=True, kw_only=True):
    """What can be measured here, by name."""

    suites: dict[str, str]
    strategies: dict[str, Listed]
    algorithms: dict[str, str]
    models: dict[str, str]
    data: dict[str, str]
    machine: Here


@click.command(
    cls=Command,
    examples={
        "What can be measured here?": "parabench list",
        "The same for a script:": "parabench list --json -",
    },
)
@file_option("json", "Write JSON (docs/reference/json.md).")
def list(**options: Any) -> None:
    """Show suites, strategies, algorithms and models, and what this machine can run."""
    files, there = files_in(options), contents()
    give(files, {"--json": lambda: json_text.written(there.to_dict())}, lines(there), "list")


def contents() -> Listing:
    """Return what can be measured here."""
    from parabench.collectives import ALGORITHMS
    from parabench.data import DATASETS
    from parabench.machine.machine import this_machine
    from parabench.models import MODELS
    from parabench.plan.suite import shipped
    from parabench.strategies import STRATEGIES

    machine = this_machine()
    return Listing(
        suites={name: _question(name) for name in shipped()},
        strategies={name: Listed(summary=each.summary, missing=each.missing) for name, each in STRATEGIES.items()},
        algorithms={name: entry.summary for name, entry in ALGORITHMS.items()},
        models={name: shape.summary for name, shape in MODELS.items()},
        data={name: entry.summary for name, entry in DATASETS.items()},
        machine=Here(
            cores=machine.cores,
            ranks=machine.ranks("cpu"),
            gpus=tuple(gpu.name for gpu in machine.gpus),
            no_gpus=None if machine.gpus else machine.gpus_reason,
        ),
    )


def lines(there: Listing) -> Iterator[str]:
    """Give the listing as lines for the terminal."""
    yield from _section("suites", there.suites)
    yield from _section("strategies", {name: _strategy(each) for name, each in there.strategies.items()})
    for title in ("algorithms", "models", "data"):
        yield from _section(title, getattr(there, title))
    here, gpus = there.machine, there.machine.gpus
    devices = {"cpu": f"{here.cores} core(s), gloo, up to {here.ranks} ranks"}
    devices[accelerator.TYPE] = (
        f"{len(gpus)} device(s), nccl or gloo: {', '.join(gpus)}" if gpus else f"none: {here.no_gpus}"
    )
    yield from _section("this machine", devices)


def _strategy(each: Listed) -> str:
    return each.summary if each.missing is None else f"{each.summary} (not installed: pip install {each.missing})"


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
