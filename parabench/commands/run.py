"""`parabench run`: measure a suite."""

from __future__ import annotations

from typing import Any

import click

from parabench.commands.options import (
    cluster,
    command,
    dry,
    find_users_own,
    flags_of,
    links,
    session,
    shared,
    training,
)
from parabench.commands.output import console


@click.command()
@click.argument("suite", required=False)
@shared(*training)
@click.option("--profile", is_flag=True, help="Add a step under torch.profiler; traces go to --out, folder traces.")
@click.option("--memory-snapshot", is_flag=True, help="Add a step whose CUDA allocations are written down there too.")
@click.option(
    "--until-decided",
    is_flag=True,
    help="Then run more blocks of what may still be the fastest, until a difference of 2 % would show.",
)
@click.option(
    "--budget",
    type=float,
    metavar="MINUTES",
    help="With it: begin no further block that would end after that time. The planned ones are run in any case.",
)
@links
@shared(*session)
@shared(*cluster)
@dry
def run(suite: str | None, axes: tuple[str, ...], data: str | None, model: str | None, **options: Any) -> None:
    """Run SUITE (a name that `parabench list` shows, or a file) and write the store and the report."""
    from parabench.session.session import Request, run_suite

    find_users_own()
    given = list(axes) + [f"{name}={value}" for name, value in (("data", data), ("model", model)) if value is not None]
    flags, only_said = flags_of(options), options.pop("dry_run")
    request = Request(suite=suite, axes=tuple(given), argv=command(), cluster=flags, **options)
    if only_said:
        from parabench.session.dry_run import dry_run

        raise SystemExit(dry_run(request, console()))
    raise SystemExit(run_suite(request, console()))
