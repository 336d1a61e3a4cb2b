"""The command line. Commands import what they need when they run, so that reading stays quick and free of torch."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from typing import Any

import click

from parabench import __version__
from parabench.analysis.text import format
from parabench.commands.ab import ab
from parabench.commands.best import best
from parabench.commands.compare import compare
from parabench.commands.history import history
from parabench.commands.options import (
    DEFAULT_OUT,
    cluster,
    deadline,
    dry,
    flags_of,
    label,
    links,
    out,
    resume,
    seed,
    session,
    shared,
    training,
)
from parabench.commands.report import report
from parabench.commands.serve import serve
from parabench.commands.stores import chosen_in
from parabench.commands.surroundings import command, console, find_users_own, say
from parabench.commands.worker import worker
from parabench.errors import UsageError

# 0: all is well; 1: a regression, or a launch that is not ok; 2: wrong usage; 3: inconclusive; 130: interrupted.
USAGE = 2


class Commands(click.Group):
    """A group that prints a UsageError as one line and exits with 2."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: D102 - click's
        _open_standard_streams()
        try:
            return super().invoke(ctx)
        except UsageError as error:
            click.echo(f"parabench: {format.one_line(error)}", err=True)
            ctx.exit(USAGE)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise  # a closed pipe is click's to end; anything else is a fault
            click.echo(f"parabench: what is said cannot be written: {format.one_line(error)}", err=True)
            ctx.exit(USAGE)
        except sqlite3.Error as error:
            why = format.one_line(error)
            click.echo(f"parabench: the store cannot be used: {why}; give the results.db of a run", err=True)
            ctx.exit(USAGE)


def _open_standard_streams() -> None:
    """Whoever started us may have closed standard input, output or error (`>&-`). The next file that is opened would
    get that number, and what a library or a rank writes to standard output would go into it: a store, a pipe."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(nowhere, True)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def main() -> None:
    """Measure distributed PyTorch training: what is fastest here, did it get slower, how do machines compare."""


@main.command()
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


@main.command()
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
    from parabench.session.collectives import CollectivesRequest, run_collectives

    find_users_own()
    flags, only_said = flags_of(options), options.pop("dry_run")
    request = CollectivesRequest(argv=command(), cluster=flags, **options)
    if only_said:
        from parabench.session.dry_collectives import dry_collectives

        raise SystemExit(dry_collectives(request, console()))
    raise SystemExit(run_collectives(request, console()))


@main.command()
@click.option("--trace", "case", metavar="CASE", required=True, help="A case's id, the beginning of it, or its label.")
@click.argument("store", default=str(DEFAULT_OUT / "results.db"))
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("trace.json"), show_default=True)
@click.option("--session", help="Id or label; the newest when not given.")
@click.option("--launch", type=int, help="Id in the store. [default: the case's median one]")
@click.option("--step", type=int, help="An instrumented step. [default: the launch's median one]")
def export(case: str, store: str, output: Path, session: str | None, launch: int | None, step: int | None) -> None:
    """Write one instrumented step of CASE in STORE as a trace, all ranks on one page, for ui.perfetto.dev.

    STORE is parabench-results/results.db when not given; STORE@SESSION names a session by id or label.
    """
    from parabench.analysis.evidence import evidence
    from parabench.analysis.session import select_session
    from parabench.report.trace import write_trace
    from parabench.store.store import load

    path, session = chosen_in(store, session)
    results = load(path)
    say(write_trace(evidence(results, select_session(results, session)), case, output, launch, step))


@main.command("list")
def list_all() -> None:
    """Show suites, strategies, algorithms and models, and what this machine can run."""
    from parabench.commands.list import lines

    say(lines())


@main.command()
def doctor() -> None:
    """Look at devices, versions and backends, and at what would make numbers untrustworthy."""
    from parabench.commands.doctor import examine

    raise SystemExit(examine(click.echo))


main.add_command(best)
main.add_command(report)
main.add_command(serve)
main.add_command(compare)
main.add_command(ab)
main.add_command(history)
main.add_command(worker)
