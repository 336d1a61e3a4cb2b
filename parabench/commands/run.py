"""`parabench run`: measure a suite; and `parabench worker`, for who is already inside a group of processes."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from parabench.commands.options import (
    axes_in,
    command,
    complete_suites,
    dry_run_option,
    flags_of,
    launcher_options,
    links_option,
    secret_option,
    session_options,
    shared,
    suite_argument,
    trace_options,
    training_options,
    turns_options,
)
from parabench.commands.output import Command, console, file_option
from parabench.errors import LOG_LEVEL, UsageError
from parabench.files import STANDARD_OUTPUT
from parabench.registry import import_from_here

if TYPE_CHECKING:
    from parabench.session.request import Request

AFTER_RANK_0_S = 1.0

json_option = file_option("json", "Write the answer as JSON (docs/reference/best.schema.json).")


@click.command(
    cls=Command,
    examples={
        "Which configuration trains fastest on this machine?": "parabench run quick",
        "Which of these, on two ranks?": (
            "parabench run strategies --set strategy=ddp,fsdp,tp --set world_size=2 --out first"
        ),
        "What would be run, and for how long?": "parabench run scaling --dry-run",
        "Only the answer, for a script:": "parabench run quick --label nightly --json -",
    },
)
@suite_argument
@shared(*training_options)
@shared(*turns_options, *trace_options)
@links_option
@shared(*session_options)
@json_option
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
        from parabench.session.dry_run import dry_runs

        if request.json_file is not None:
            raise UsageError("--dry-run measures nothing that --json could hold; leave one of them out")
        raise SystemExit(dry_runs(request, console()))
    from parabench.session.session import run_sessions

    raise SystemExit(run_sessions(request, console(stderr=request.json_file == STANDARD_OUTPUT)))


@click.command(
    cls=Command,
    examples={
        "As one rank of two that torchrun starts:": "torchrun --nproc-per-node 2 -m parabench worker quick",
        "Under Slurm, a task for each device:": (
            "srun --ntasks-per-node 8 python -m parabench worker strategies --label slurm"
        ),
    },
)
@click.argument("suite", shell_complete=complete_suites)
@shared(*training_options, *turns_options, *session_options)
@json_option
@secret_option
def worker(secret_file: str | None, **options: Any) -> None:
    """Run SUITE as one rank of a group of processes that torchrun, mpirun, srun or Ray has started.

    As in: torchrun --nproc-per-node 2 -m parabench worker quick. Rank 0 writes the store and the report.
    """
    # What c10d warns of (a host without a name, a try that waited) we say ourselves where it matters.
    os.environ.setdefault(LOG_LEVEL, "ERROR")
    from parabench.cluster.attached.environment import speaks
    from parabench.files import release_own
    from parabench.session.attached import run_worker
    from parabench.session.request import TrainingRequest

    import_from_here()
    try:
        request = TrainingRequest.of(axes=axes_in(options), argv=command(), **options)
        if len(request.parts()) > 1:
            raise UsageError(f"suite {request.suite} takes several sessions; run it with parabench run, not in a group")
        # Lines, on a terminal too: a display that moves would take its time from the rank that it lives in.
        told = console(stderr=request.json_file == STANDARD_OUTPUT, force_terminal=False)
        code, sane = run_worker(request, secret_file, told)
    except UsageError as error:
        if speaks(os.environ, error):
            raise
        # The first rank says it for its host; before it has, no other may end: mpirun and torchrun would end it too.
        time.sleep(AFTER_RANK_0_S)
        raise SystemExit(2) from None
    if not sane:
        # A thread is stuck in a collective, or another rank is gone from one: leaving the group would wait for it.
        sys.stdout.flush()
        release_own()
        os._exit(code)
    raise SystemExit(code)
