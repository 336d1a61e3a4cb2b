"""`parabench collectives`: time single collective operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from parabench.commands.options import cluster, dry, label, links, options_of, out, resume, seed, shared
from parabench.commands.run import measure
from parabench.plan.collective_protocol import CollectiveProtocol, CollectiveSweep


@click.command()
@shared(*options_of(CollectiveSweep))
@shared(*options_of(CollectiveProtocol))
@links
@seed
@label
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write nccl-tests' JSON to this file too.")
@out
@resume
@shared(*cluster)
@dry
def collectives(**options: Any) -> None:
    """Time single collective operations, as nccl-tests does, by every algorithm; check results exactly."""
    from parabench.session.request import CollectivesRequest

    measure(CollectivesRequest, **options)
