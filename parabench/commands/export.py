"""`parabench export`: a step as a trace."""

from __future__ import annotations

from pathlib import Path

import click

from parabench.commands.options import store_argument
from parabench.commands.output import say


@click.command()
@click.option("--trace", "case", metavar="CASE", required=True, help="A case's id, the beginning of it, or its label.")
@store_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("trace.json"), show_default=True)
@click.option("--launch", type=int, help="Id in the store. [default: the case's median one]")
@click.option("--step", type=int, help="An instrumented step. [default: the launch's median one]")
def export(case: str, store: str, output: Path, launch: int | None, step: int | None) -> None:
    """Write one instrumented step of CASE in STORE as a trace, all ranks on one page, for ui.perfetto.dev.

    STORE is parabench-results when not given; STORE@SESSION names a session by id or label.
    """
    from parabench.analysis.session import session_data
    from parabench.report.trace import write_trace
    from parabench.store.results import load
    from parabench.store.store import split

    path, session = split(store)
    results = load(path)
    say(write_trace(session_data(results, session), case, output, launch, step))
