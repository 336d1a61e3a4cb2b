"""`parabench predict`: predict step times for more ranks, other links or other buckets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parabench.commands.options import complete_stores
from parabench.commands.output import Command, file_option, files_in, give
from parabench.errors import UsageError, did_you_mean
from parabench.plan.fields import parse_field
from parabench.plan.suite import AXES, parse_axes

if TYPE_CHECKING:
    from parabench.store.results import Results


@click.command(
    cls=Command,
    examples={
        "Predict 8 and 16 ranks from the measurements of `parabench run calibration`:": (
            "parabench predict parabench-results --world-size 8,16"
        ),
        "Find the fastest configuration of 64 ranks, with links that you specify:": (
            "parabench predict parabench-results --world-size 64 --best --link node=25GB/s,20us"
        ),
        "Compare predictions with the measurements in another database:": (
            "parabench predict parabench-results --check other/results.db"
        ),
    },
)
@click.argument("stores", nargs=-1, required=True, metavar="STORE...", shell_complete=complete_stores)
@click.option("--world-size", metavar="N1,N2", help="Numbers of ranks.")
@click.option(
    "--ranks-per-node",
    type=click.IntRange(1),
    metavar="G",
    help="[default: limited by the cores or devices of the measured machine]",
)
@click.option(
    "--set", "axes", multiple=True, metavar="AXIS=V1,V2", help="strategy, algorithm, bucket_mib, batch_per_rank, ..."
)
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="TIER=RATE,LATENCY",
    help="Links that were not measured: node=25GB/s,20us between nodes, local=... within one.",
)
@click.option(
    "--links-from",
    "logs",
    metavar="LOGS",
    type=click.Path(path_type=Path),
    help="Logs of nccl-tests to fit the links to: a file or a folder.",
)
@click.option("--best", is_flag=True, help="Find the fastest strategy, algorithm and bucket cap.")
@click.option("--check", metavar="OTHER", help="Compare predictions with the training runs of OTHER, a database.")
@file_option("json", "Write JSON (docs/reference/json.md).")
def predict(
    stores: tuple[str, ...],
    world_size: str | None,
    ranks_per_node: int | None,
    axes: tuple[str, ...],
    links: tuple[str, ...],
    logs: Path | None,
    best: bool,
    check: str | None,
    **options: Any,
) -> None:
    """Predict step times with 90% intervals, from the measurements of `parabench run calibration` in STORE.

    Several databases of one kind of machine count as one. If something was neither measured nor given, the prediction
    is refused with the command that measures it; if all are refused, the exit code is 2.
    """
    from parabench.analysis.prediction import predict as text
    from parabench.analysis.prediction import question
    from parabench.analysis.prediction.base import base_of, training_step_times

    files = files_in(options)
    if check is not None and (world_size or axes or ranks_per_node or best):
        raise UsageError("--check predicts the configurations of that database; give it alone")
    measurements = [_load(store) for store in stores]
    if world_size is None and check is None:
        raise UsageError("how many ranks? give --world-size 8, or 8,16")
    ranks = AXES["world_size"]
    sizes = [ranks.checked(each) for each in parse_field(ranks, world_size)] if world_size is not None else []
    given = _links(links)
    base = base_of(measurements)
    if logs is not None:
        from parabench.imports.into_store import link_rows

        base = replace(base, rows=link_rows(logs, base.backend))
    predictor = text.Predictor(base, given)
    if check is not None:
        measured = training_step_times(_load(check))
        predictions = [predictor.predict(case) for case in measured if case.world_size > 1]
        table, sentences = [*text.check_table(predictions, measured)], [*text.errors(predictions, measured)]
    elif best:
        table, sentences, predictions = [], [], []
        for size in sizes:
            cases = question.candidates(base, size, parse_axes(axes), ranks_per_node)
            found = [predictor.predict(case) for case in cases]
            predictions += found
            sentences += text.best_lines(found)
    else:
        cases = question.cases(base, sizes, parse_axes(axes), ranks_per_node)
        predictions = [predictor.predict(each) for each in cases]
        table, sentences = [*text.table(predictions)], text.notes(predictions)
    give(files, lambda: text.answer(predictions, sentences), [*table, *sentences], "prediction")
    raise SystemExit(2 if not text.predicted(predictions) else 0)


def _load(name: str) -> Results:
    """Load a results database. Raises UsageError for STORE@SESSION, because predictions use all sessions."""
    from parabench.analysis.session import split
    from parabench.store.results import load

    path, session = split(name)
    if session is not None:
        raise UsageError(f"{name}: predictions use all sessions of a results database; give {path}")
    return load(path)


def _links(given: tuple[str, ...]) -> dict[str, Any]:
    """Return {tier: link} of the values of --link. Raises UsageError if one is wrong."""
    from parabench.analysis.prediction.links import NAMES, given_link

    tiers = {name: tier for tier, name in NAMES.items()}
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or name not in tiers:
            raise UsageError(
                f"--link {text!r}: the tier is {name!r}; {did_you_mean(name, tiers)}give node=25GB/s,20us for links "
                "between nodes, or local=300GB/s,5us for those within one"
            )
        if tiers[name] in found:
            raise UsageError(f"--link {name} is given twice; give it once")
        found[tiers[name]] = given_link(value)
    return found
