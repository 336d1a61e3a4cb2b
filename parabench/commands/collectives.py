"""`parabench collectives`: time single collective operations."""

from __future__ import annotations

from pathlib import Path
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
from parabench.commands.run import measure
from parabench.plan.collective_protocol import CollectiveProtocol, CollectiveSweep


@click.command()
@shared(*options_of(CollectiveSweep))
@shared(*options_of(CollectiveProtocol))
@links_option
@seed_option
@label_option
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write nccl-tests' JSON too."
)
@out_option
@resume_option
@shared(*launcher_options)
@dry_run_option
def collectives(**options: Any) -> None:
    """Time single collective operations, as nccl-tests does, by every algorithm; check results exactly."""
    from parabench.session.request import CollectivesRequest

    measure(CollectivesRequest, **options)
