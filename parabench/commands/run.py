"""`parabench run` and `parabench collectives`: measure a suite, or single collective operations."""

from __future__ import annotations

import os
from typing import Any

import click

from parabench.cluster.topology import LauncherFlags
from parabench.commands.options import (
    axes_in,
    command,
    dry_run_option,
    launcher_options,
    links_option,
    options_of,
    racing_options,
    session_options,
    shared,
    suite_argument,
    training_options,
)
from parabench.commands.output import Command, console, file_option
from parabench.errors import LOG_LEVEL, SILENT, UsageError
from parabench.files import STANDARD_OUTPUT
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.registry import import_from_here
from parabench.session.request import Request


@click.command(
    cls=Command,
    examples={
        "Which configuration trains fastest on this machine?": "parabench run quick",
        "Which of these, on two ranks?": (
            "parabench run strategies --set strategy=ddp,fsdp,tp --set world_size=2 --out first"
        ),
        "Which launches would run, and for how long?": "parabench run scaling --dry-run",
        "Only the answer, for a script:": "parabench run quick --label nightly --json -",
    },
)
@suite_argument
@shared(*training_options, *racing_options, links_option, *session_options)
@file_option("json", "Write the answer as JSON (docs/reference/json.md).")
@shared(*launcher_options, dry_run_option)
def run(**options: Any) -> None:
    """Run SUITE (a name that `parabench list` shows, or a file) and write the results database and the report."""
    measure("training", axes=axes_in(options), **options)


@click.command(
    cls=Command,
    examples={
        "Which all-reduce is fastest here, by size?": "parabench collectives --op all_reduce --max 16MiB",
        "How long does a single call take?": "parabench collectives --mode latency --algorithm native,ring",
        "What do two nodes give? On each of them:": (
            "parabench collectives --nnodes 2 --rdzv-endpoint node0:29500 --rdzv-id 1 --links"
        ),
    },
)
@shared(*options_of(CollectiveCase), *options_of(CollectiveProtocol), links_option, *session_options)
@file_option("json", "Write nccl-tests' JSON too.")
@shared(*launcher_options, dry_run_option)
def collectives(**options: Any) -> None:
    """Time single collective operations, as nccl-tests does, by every algorithm; check results exactly."""
    measure("collectives", **options)


def measure(kind: str, **options: Any) -> None:
    """Run a session of a kind (training or collectives) with a command's options, or print its plan; then exit."""
    import_from_here()
    flags, dry = flags_of(options), options.pop("dry_run")
    request = Request.of(kind, argv=command(), cluster=flags, **options)
    if dry:
        from parabench.session.dry_run import dry_run

        if request.json_file is not None:
            raise UsageError("--dry-run measures nothing that --json could hold; leave one option out")
        raise SystemExit(dry_run(request, console()))
    from parabench.session.session import run_sessions

    raise SystemExit(run_sessions(request, console(stderr=request.json_file == STANDARD_OUTPUT)))


def flags_of(options: dict[str, Any]) -> LauncherFlags:
    """Remove the flags of torchrun from a command's options, and return them."""
    flags = LauncherFlags(**{name: options.pop(name) for name in LauncherFlags.__slots__})
    if flags.nnodes:
        # parabench reports failures of the rendezvous store itself, without c10d's C++ frames. torch reads the variable
        # when it is imported, and a custom model imports torch.
        os.environ.setdefault(LOG_LEVEL, SILENT)
    return flags
