"""`parabench best`: the sweet spot."""

from __future__ import annotations

from typing import Any

import click

from parabench.commands.options import store_argument
from parabench.commands.output import Command, Name, file_option, files_in, give
from parabench.errors import UsageError
from parabench.plan.case import RecordedCase


@click.command(
    cls=Command,
    examples={
        "What was fastest in the newest session?": "parabench best",
        "Which configuration of a session needs the least memory?": "parabench best results@nightly --objective memory",
        "What is fastest at each number of ranks, for a script?": "parabench best results --by world_size --json -",
    },
)
@store_argument
@click.option(
    "--objective",
    type=Name(["step_time_s", "tokens_per_s", "memory", "joules"]),
    default="step_time_s",
    show_default=True,
    help="What to rank by: step time, throughput, peak memory per rank, or energy per token.",
)
@click.option("--by", multiple=True, metavar="AXIS,...", help="Also the best for each value of these axes.")
@file_option("json", "Write JSON (docs/reference/json.md).")
def best(store: str, objective: str, by: tuple[str, ...], **options: Any) -> None:
    """Show the fastest configuration in STORE, or STORE@SESSION by id or label, and its uncertainty.

    STORE is a results database, by default parabench-results.
    """
    from parabench.analysis.numbers import LAUNCH_NUMBERS
    from parabench.analysis.session import data_of, select_session, split
    from parabench.store.results import load

    files, axes = files_in(options), tuple(name.strip() for text in by for name in text.split(","))
    path, session = split(store)
    # Power and energy of devices are read ten times a second, so only for the objective that needs them.
    only = LAUNCH_NUMBERS if objective == "joules" else LAUNCH_NUMBERS | {"device_sample": "metric = 'used_bytes'"}
    results = load(path, only)
    chosen = select_session(results, session)
    if results.of([chosen.id]).launch.empty:
        raise UsageError(f"{chosen.name} has no launch yet; wait for the first, or name another: {path}@SESSION")
    if chosen.kind == RecordedCase.kind:
        chosen.require("training", path)
    if chosen.kind == "collectives":
        from parabench.analysis.collectives import crossover

        if axes or objective != "step_time_s":
            raise UsageError(
                f"{chosen.name} measured collectives, which have no --objective and no --by; "
                f"give neither, or name one that trained: {path}@SESSION"
            )
        answer = crossover.answer(data_of(results, chosen))
        lines = list(answer.sentences)
    else:
        from parabench.analysis.ranking import best as ranking
        from parabench.analysis.ranking.objectives import OBJECTIVES

        answer = ranking.best(data_of(results, chosen), OBJECTIVES[objective], axes)
        lines = ranking.lines(answer)
    give(files, lambda: answer, lines, "answer")
