"""`parabench run`: measure a suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from parabench.commands.options import (
    axes_in,
    command,
    dry_run_option,
    flags_of,
    launcher_options,
    links_option,
    session_options,
    shared,
    trace_options,
    training_options,
    turns_options,
)
from parabench.commands.output import console
from parabench.registry import import_from_here

if TYPE_CHECKING:
    from parabench.session.request import Request


@click.command()
@click.argument("suite", required=False)
@shared(*training_options)
@shared(*turns_options, *trace_options)
@links_option
@shared(*session_options)
@shared(*launcher_options)
@dry_run_option
def run(**options: Any) -> None:
    """Run SUITE (a name that `parabench list` shows, or a file) and write the store and the report."""
    from parabench.session.request import TrainingRequest

    measure(TrainingRequest, axes=axes_in(options), **options)


def measure(kind: type[Request], **options: Any) -> None:
    """Run the session that a command's options ask for, or say what it would do; then exit."""
    import_from_here()
    flags, only_said = flags_of(options), options.pop("dry_run")
    request = kind.of(argv=command(), cluster=flags, **options)
    if only_said:
        from parabench.session.dry_run import dry_run

        raise SystemExit(max(dry_run(part, console()) for part in request.parts()))
    from parabench.session.session import run_sessions

    raise SystemExit(run_sessions(request, console()))
