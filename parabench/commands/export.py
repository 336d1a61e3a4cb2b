"""`parabench export`: a step as a trace."""

from __future__ import annotations

from pathlib import Path

import click

from parabench.commands.options import DEFAULT_OUT, chosen_in
from parabench.commands.output import say


@click.command()
@click.option("--trace", "case", metavar="CASE", required=True, help="A case's id, the beginning of it, or its label.")
@click.argument("store", default=str(DEFAULT_OUT / "results.db"))
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("trace.json"), show_default=True)
@click.option("--session", help="Id or label; the newest when not given.")
@click.option("--launch", type=int, help="Id in the store. [default: the case's median one]")
@click.option("--step", type=int, help="An instrumented step. [default: the launch's median one]")
def export(case: str, store: str, output: Path, session: str | None, launch: int | None, step: int | None) -> None:
    """Write one instrumented step of CASE in STORE as a trace, all ranks on one page, for ui.perfetto.dev.

    STORE is parabench-results/results.db when not given; STORE@SESSION names a session by id or label.
    """
    from parabench.analysis.session import session_data
    from parabench.report.trace import write_trace
    from parabench.store.results import load

    path, session = chosen_in(store, session)
    results = load(path)
    say(write_trace(session_data(results, session), case, output, launch, step))
