"""`parabench collectives`: time single collective operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from parabench.commands.options import (
    cluster,
    deadline,
    dry,
    label,
    links,
    out,
    resume,
    seed,
    shared,
)
from parabench.commands.run import measure


@click.command()
@click.option("--op", metavar="OP1,OP2", help="all_reduce, reduce_scatter, all_gather, broadcast. [default: all four]")
@click.option(
    "--algorithm", metavar="A1,A2", help="Names that `parabench list` shows. [default: native and all of parabench's]"
)
@click.option("--min", "min_size", metavar="SIZE", help="The smallest size: 4096, 64KiB, 1MiB. [default: 64KiB]")
@click.option("--max", "max_size", metavar="SIZE", help="The largest size. [default: 1GiB on CUDA, 64MiB on the CPU]")
@click.option("--factor", type=int, help="From one size to the next. [default: 4]")
@click.option("--world-size", metavar="N1,N2", help="Ranks. [default: all devices on CUDA, 2 on the CPU]")
@click.option("--ranks-per-node", type=int, metavar="G", help="Ranks of a node, for two_level.")
@click.option("--dtype", help="float32, float64, bfloat16 or float16. [default: float32]")
@click.option("--redop", help="sum, avg, max or min. [default: sum]")
@click.option("--device", help="cpu or cuda. [default: cuda where there is one]")
@click.option("--backend", help="gloo or nccl. [default: nccl on CUDA, else gloo]")
@click.option("--threads", type=int, help="CPU threads that a rank computes with. [default: 1]")
@click.option(
    "--mode",
    metavar="MODE",
    help="throughput: calls back to back, as nccl-tests; latency: each after a barrier. [default: throughput]",
)
@click.option("--graph", is_flag=True, default=None, help="Calls captured in a CUDA graph, as nccl-tests -G (NCCL).")
@click.option("--launches", type=int, help="Launches of every case: one a block. [default: 3]")
@click.option(
    "--measure-seconds",
    "measure_s",
    type=float,
    metavar="SECONDS",
    help="Throughput: how long calls of a size are timed in a launch. [default: 0.25, at least 20 calls]",
)
@click.option("--batches", type=int, help="Throughput: the clock is read after each of so many. [default: 10]")
@click.option(
    "--iterations",
    type=int,
    help="Timed calls: of a batch, instead of --measure-seconds; in mode latency of a size. "
    "[default: 20 to 200, fewer for large sizes]",
)
@click.option("--warmup", type=int, help="Calls before them that are kept apart. [default: 5]")
@links
@seed
@deadline
@label
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write nccl-tests' JSON to this file too.")
@out
@resume
@shared(*cluster)
@dry
def collectives(**options: Any) -> None:
    """Time single collective operations, as nccl-tests does, by every algorithm; check results exactly."""
    from parabench.session.request import CollectivesRequest

    measure(CollectivesRequest, options)
