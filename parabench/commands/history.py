"""`parabench history`: every case over sessions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from parabench.commands.options import complete_stores
from parabench.commands.output import Command, file_option, files_in, give
from parabench.errors import UsageError


@click.command(
    cls=Command,
    examples={
        "When did a configuration get slower?": "parabench history nightly.db",
        "Over several databases, as a page:": "parabench history monday.db tuesday.db --html history.html",
        "All ring configurations of this year, for a script:": (
            "parabench history nightly.db --case ring --since 2026-01-01 --all --json -"
        ),
    },
)
@click.argument("stores", metavar="STORE...", nargs=-1, required=True, shell_complete=complete_stores)
@click.option(
    "--case", metavar="TEXT", help="Only configurations whose label contains TEXT, or whose id begins with it."
)
@click.option("--suite", metavar="NAME", help="Only sessions of this suite.")
@click.option(
    "--since",
    type=click.DateTime(),
    metavar="DATE",
    help="Only sessions that started then or later, in UTC: 2026-01-31, or 2026-01-31T14:05:00.",
)
@click.option("--all", "every", is_flag=True, help="List the configurations that did not change, too.")
@file_option("json", "Write JSON (docs/reference/json.md).")
@file_option("html", "Write a page with figures.")
def history(
    stores: tuple[str, ...], case: str | None, suite: str | None, since: datetime | None, every: bool, **options: Any
) -> None:
    """Show the step time of each configuration over the sessions of one or more STOREs, and when it changed."""
    from parabench.analysis import history as follow
    from parabench.analysis.numbers import STEP_TIMES
    from parabench.analysis.session import split
    from parabench.store.results import load

    files = files_in(options)
    paths = []
    for store in stores:
        path, session = split(store)
        if session is not None:
            raise UsageError(
                f"{store}: a history includes all sessions of a results database; give {path}, with --since for fewer"
            )
        paths.append(path)
    read = [load(path, STEP_TIMES) for path in dict.fromkeys(paths)]
    outcome = follow.history(read, case=case, suite=suite, since=None if since is None else since.isoformat())

    def page() -> str:
        from parabench.report.sections.history import render  # imports jinja2

        return render(outcome)

    give(files, lambda: follow.answer(outcome), follow.lines(outcome, every), "history", {"--html": page})
