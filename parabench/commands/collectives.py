"""`parabench collectives`: time single collective operations."""

from __future__ import annotations

from typing import Any

import click

from parabench.commands.options import (
    dry_run_option,
    label_option,
    launcher_options,
    links_option,
    options_of,
    out_option,
    resume_option,
    seed_option,
    shared,
)
from parabench.commands.output import Command, file_option
from parabench.commands.run import measure
from parabench.plan.collective_protocol import CollectiveProtocol, CollectiveSweep


@click.command(
    cls=Command,
    examples={
        "Which all-reduce is fastest here, at which size?": "parabench collectives --op all_reduce --max 16MiB",
        "How long does a single call take?": "parabench collectives --mode latency --algorithm native,ring",
        "What do two nodes give? On each of them:": (
            "parabench collectives --nnodes 2 --rdzv-endpoint node0:29500 --rdzv-id 1 --links"
        ),
    },
)
@shared(*options_of(CollectiveSweep))
@shared(*options_of(CollectiveProtocol))
@links_option
@seed_option
@label_option
@file_option("json", "Write nccl-tests' JSON too.")
@out_option
@resume_option
@shared(*launcher_options)
@dry_run_option
def collectives(**options: Any) -> None:
    """Time single collective operations, as nccl-tests does, by every algorithm; check results exactly."""
    from parabench.session.request import CollectivesRequest

    measure(CollectivesRequest, **options)
