"""`parabench list`: what can be measured here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from parabench.commands.output import say
from parabench.machine import accelerator

if TYPE_CHECKING:
    from parabench.strategies import StrategyEntry


@click.command
def list() -> None:
    """Show suites, strategies, algorithms and models, and what this machine can run."""
    say(lines())


def lines() -> Iterator[str]:
    """Suites, strategies, algorithms, models, data, then what this machine can run."""
    from parabench.collectives import ALGORITHMS
    from parabench.data import DATASETS
    from parabench.machine.machine import this_machine
    from parabench.models import MODELS
    from parabench.plan.suite import shipped
    from parabench.strategies import STRATEGIES

    yield from _section("suites", {name: _question(name) for name in shipped()})
    yield from _section("strategies", {name: _strategy(entry) for name, entry in STRATEGIES.items()})
    yield from _section("algorithms", {name: entry.summary for name, entry in ALGORITHMS.items()})
    yield from _section("models", {name: shape.summary for name, shape in MODELS.items()})
    yield from _section("data", {name: entry.summary for name, entry in DATASETS.items()})
    machine = this_machine()
    gpus = ", ".join(gpu.name for gpu in machine.gpus)
    devices = {"cpu": f"{machine.cores} core(s), gloo, up to {machine.ranks('cpu')} ranks"}
    devices[accelerator.TYPE] = (
        f"{len(machine.gpus)} device(s), nccl or gloo: {gpus}" if gpus else f"none: {machine.gpus_reason}"
    )
    yield from _section("this machine", devices)


def _strategy(entry: StrategyEntry) -> str:
    return entry.summary if entry.missing is None else f"{entry.summary} (not installed: pip install {entry.missing})"


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
