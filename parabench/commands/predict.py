"""`parabench predict`: what more ranks, other links or other buckets would give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from parabench.commands.options import complete_stores
from parabench.commands.output import Command, file_option, files_in, give
from parabench.errors import UsageError, did_you_mean
from parabench.store import json_text

MOST_RANKS = 10**9


@click.command(
    cls=Command,
    examples={
        "What would 8 and 16 ranks give? Of what `parabench run foresight` measured:": (
            "parabench predict parabench-results --world-size 8,16"
        ),
        "What would be fastest on 64 ranks, over links that are not here?": (
            "parabench predict parabench-results --world-size 64 --best --link node=25GB/s,20us"
        ),
        "Which list of DDP's buckets is best?": "parabench predict parabench-results --buckets",
    },
)
@click.argument("stores", nargs=-1, required=True, metavar="STORE...", shell_complete=complete_stores)
@click.option("--world-size", metavar="N1,N2", help="Numbers of ranks.")
@click.option("--ranks-per-node", type=click.IntRange(1), metavar="G", help="[default: as many as were measured]")
@click.option(
    "--set", "axes", multiple=True, metavar="AXIS=V1,V2", help="strategy, algorithm, bucket_mib, batch_per_rank, ..."
)
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="TIER=RATE,LATENCY",
    help="What links carry that were not measured: node=25GB/s,20us between nodes, local=... within one.",
)
@click.option("--best", is_flag=True, help="What would be the fastest, of all that can be predicted.")
@click.option("--buckets", is_flag=True, help="The best list of DDP's buckets, and what it would give.")
@click.option("--check", metavar="OTHER", help="How well this would have predicted what OTHER, a store, has measured.")
@file_option("json", "Write JSON (docs/reference/predict.schema.json).")
def predict(
    stores: tuple[str, ...],
    world_size: str | None,
    ranks_per_node: int | None,
    axes: tuple[str, ...],
    links: tuple[str, ...],
    best: bool,
    buckets: bool,
    check: str | None,
    **options: Any,
) -> None:
    """Predict step times from what `parabench run foresight` has measured into STORE, with 90 % intervals.

    Several stores of one kind of machine count as one, as of one node and of two. What was neither measured nor given
    is refused, with the command that measures it; where all is refused, the exit code is 2.
    """
    from parabench.analysis.prediction import choose, question
    from parabench.analysis.prediction.base import base_of, trainings
    from parabench.analysis.prediction.predict import Prediction, Predictor, ranked
    from parabench.analysis.text import prediction as text
    from parabench.plan.suite import parse_axes
    from parabench.store.results import load

    files = files_in(options)
    sizes = _world_sizes(world_size) if world_size is not None else []
    if sum((best, buckets, check is not None)) > 1:
        raise UsageError("--best, --buckets and --check are different questions; give one of them")
    if check is not None and (sizes or axes or ranks_per_node):
        raise UsageError("--check predicts the cases of that store; leave --world-size, --ranks-per-node and --set out")
    if not (sizes or buckets or check is not None):
        raise UsageError("of how many ranks? give --world-size 8, or 8,16")
    given = _links(links)
    loaded = [load(_store(store)) for store in stores]
    base = base_of(loaded)
    predictor = Predictor(base, given)
    if check is not None:
        checked = choose.check(predictor, trainings(load(_store(check))))
        told, lines = [text.to_dict(each) for each in checked.predictions], list(text.check_lines(checked))
        refused = not checked.told
    elif best:
        choices = [choose.choice(predictor, n, ranks_per_node, parse_axes(axes)) for n in sizes]
        lines = [line for each in choices for line in text.choice_lines(each)]
        told, refused = [text.to_dict(one) for each in choices for one in (each.best, *each.rest)], False
    elif buckets:
        of_ddp = {"strategy": ("ddp",)} | parse_axes(axes)
        cases = question.cases(base, sizes or [2], of_ddp, ranks_per_node)
        lists = [choose.bucket_list(predictor, case) for case in cases]
        lines = [line for each in lists for line in text.bucket_lines(each)]
        told, refused = [text.to_dict(one) for each in lists for one in (each.listed, each.single)], False
    else:
        each_case = question.asked(base, sizes, parse_axes(axes), ranks_per_node)
        predictions = ranked(
            [
                predictor.predict(case) if why is None else Prediction(case=case, refused=why)
                for case, why in each_case.items()
            ]
        )
        lines = list(text.lines(predictions))
        told = [text.to_dict(each) for each in predictions]
        refused = all(each.refused is not None for each in predictions)
    give(files, {"--json": lambda: json_text.written(told)}, lines, "prediction")
    raise SystemExit(2 if refused else 0)


def _store(name: str) -> Path:
    """The file of a store. Raises UsageError for one of its sessions: a base is made of several."""
    from parabench.store.store import split

    path, session = split(name)
    if session is not None:
        raise UsageError(f"{name}: predictions are made of all sessions of a store; give {path}")
    return path


def _world_sizes(text: str) -> list[int]:
    """The numbers in --world-size. Raises UsageError."""
    sizes = []
    for each in text.split(","):
        if not each.strip().isascii() or not each.strip().isdigit() or int(each) < 1:
            raise UsageError(f"--world-size {text!r} is not a number of ranks; give 8, or 8,16")
        if len(each) > 10 or int(each) > MOST_RANKS:
            raise UsageError(
                f"--world-size {each.strip()} is more ranks than any machine has; give {MOST_RANKS} at most"
            )
        sizes.append(int(each))
    return sizes


def _links(given: tuple[str, ...]) -> dict[str, Any]:
    """By tier what --link says."""
    from parabench.analysis.prediction.network import given_link
    from parabench.analysis.prediction.schedule import BETWEEN, WITHIN

    tiers = {"node": BETWEEN, "local": WITHIN}
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
