"""`parabench worker`: the command for who is already inside a group of processes."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import click

from parabench.commands.options import axes_in, command, session_options, shared, training_options, turns_options
from parabench.errors import UsageError
from parabench.registry import import_from_here

AFTER_RANK_0_S = 1.0


@click.command()
@click.argument("suite")
@shared(*training_options, *turns_options, *session_options)
def worker(**options: Any) -> None:
    """Run SUITE as one rank of a group of processes that torchrun, mpirun, srun or Ray has started.

    As in: torchrun --nproc-per-node 2 -m parabench worker quick. Rank 0 writes the store and the report.
    """
    # What c10d warns of (a host without a name, a try that waited) we say ourselves where it matters.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from parabench.cluster.attached.environment import speaks
    from parabench.files import release_own
    from parabench.session.attached import run_worker
    from parabench.session.progress import PatientConsole
    from parabench.session.request import TrainingRequest

    import_from_here()
    try:
        request = TrainingRequest.of(axes=axes_in(options), argv=command(), **options)
        # Lines, on a terminal too: a display that moves would take its time from the rank that it lives in.
        code, sane = run_worker(request, PatientConsole(force_terminal=False))
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
