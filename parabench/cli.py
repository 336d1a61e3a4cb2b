"""The command line. Commands import what they need when they run, so that reading stays quick and free of torch."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parabench import __version__
from parabench.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_OUT = Path("parabench-results")

# 0: all is well; 1: a regression, or a launch that is not ok; 2: wrong usage; 130: interrupted.
REGRESSION, USAGE = 1, 2


class Commands(click.Group):
    """A group that prints a UsageError as one line and exits with 2."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: D102 - click's
        try:
            return super().invoke(ctx)
        except UsageError as error:
            click.echo(f"parabench: {' '.join(str(error).split())}", err=True)
            ctx.exit(USAGE)
        except sqlite3.Error as error:
            click.echo(f"parabench: the store cannot be used: {error}; give the results.db of a run", err=True)
            ctx.exit(USAGE)


_seed = click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    help="Seed of the order in which cases are launched. [default: 0]",
)
_deadline = click.option(
    "--deadline",
    type=float,
    metavar="SECONDS",
    help="When a launch counts as hung. [default: 10 x expected, 60 at least]",
)
_label = click.option("--label", help="A name for this session.")
_out = click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=DEFAULT_OUT,
    show_default=True,
    help="Folder for results.db and report.html.",
)
_resume = click.option(
    "--resume",
    is_flag=True,
    help="Continue the interrupted session in --out; nothing that is done runs again.",
)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def main() -> None:
    """Measure distributed PyTorch training: what is fastest here, did it get slower, how do machines compare."""


@main.command()
@click.argument("suite", required=False)
@click.option("--set", "axes", multiple=True, metavar="AXIS=V1,V2", help="Values for an axis, instead of the suite's.")
@click.option("--launches", type=int, help="Launches of every case: one a block.")
@click.option("--steps", type=int, help="Measured steps a launch.")
@click.option("--warmup", type=int, help="Steps before them that are kept apart.")
@click.option("--instrumented", type=int, help="Steps after them that carry instruments; 0 for none. [default: 4]")
@click.option("--profile", is_flag=True, help="Add a step under torch.profiler; traces go to --out, folder traces.")
@click.option("--memory-snapshot", is_flag=True, help="Add a step whose CUDA allocations are written down there too.")
@click.option("--data", help="text, text:PATH, mnist:DIR, synthetic or your own package.module:name; as --set data=...")
@click.option("--model", help="A name that `parabench list` shows, or your own package.module:name; as --set model=...")
@_seed
@_deadline
@_label
@_out
@_resume
def run(suite: str | None, axes: tuple[str, ...], data: str | None, model: str | None, **options: Any) -> None:
    """Run SUITE (a name that `parabench list` shows, or a file) and write the store and the report."""
    from parabench.run import Request, run_suite

    _find_users_own()
    given = list(axes) + [f"{name}={value}" for name, value in (("data", data), ("model", model)) if value is not None]
    request = Request(suite=suite, axes=tuple(given), argv=_command(), **options)
    console = _console()
    raise SystemExit(run_suite(request, console))


@main.command()
@click.option("--op", metavar="OP1,OP2", help="all_reduce, reduce_scatter, all_gather, broadcast. [default: all four]")
@click.option(
    "--algorithm", metavar="A1,A2", help="Names that `parabench list` shows. [default: native and all of parabench's]"
)
@click.option("--min", "min_size", metavar="SIZE", help="The smallest size: 4096, 64KiB, 1MiB. [default: 64KiB]")
@click.option("--max", "max_size", metavar="SIZE", help="The largest size. [default: 64MiB]")
@click.option("--factor", type=int, help="From one size to the next. [default: 4]")
@click.option("--world-size", metavar="N1,N2", help="Ranks. [default: all devices on CUDA, 2 on the CPU]")
@click.option("--ranks-per-node", type=int, metavar="G", help="Ranks of a node, for two_level.")
@click.option("--dtype", help="float32, float64, bfloat16 or float16. [default: float32]")
@click.option("--redop", help="sum, avg, max or min. [default: sum]")
@click.option("--device", help="cpu or cuda. [default: cuda where there is one]")
@click.option("--backend", help="gloo or nccl. [default: nccl on CUDA, else gloo]")
@click.option("--threads", type=int, help="CPU threads that a rank computes with. [default: 1]")
@click.option("--launches", type=int, help="Launches of every case: one a block. [default: 3]")
@click.option("--iterations", type=int, help="Timed calls of a size. [default: 20 to 200, fewer for large sizes]")
@click.option("--warmup", type=int, help="Calls before them that are kept apart. [default: 5]")
@_seed
@_deadline
@_label
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write nccl-tests' JSON to this file too.")
@_out
@_resume
def collectives(**options: Any) -> None:
    """Time single collective operations, as nccl-tests does, by every algorithm; check results exactly."""
    from parabench.collectives_run import CollectivesRequest, run_collectives

    _find_users_own()
    raise SystemExit(run_collectives(CollectivesRequest(argv=_command(), **options), _console()))


@main.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True)
@click.option("--session", help="Id or label; the newest when not given.")
def report(store: Path, output: Path, session: str | None) -> None:
    """Write the HTML report of STORE."""
    from parabench.report import write_report
    from parabench.store import load

    click.echo(write_report(load(store), output, session))


@main.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--session", help="Id or label; the newest when not given.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def best(store: Path, session: str | None, as_json: bool) -> None:
    """Say what was fastest in STORE, and how sure that is."""
    from parabench.analysis.best import sweet_spots
    from parabench.analysis.crossover import bus_answers
    from parabench.analysis.session import select_session
    from parabench.analysis.verdict import verdict
    from parabench.store import load

    results = load(store)
    chosen = select_session(results, session)
    answers = bus_answers(results, session) if chosen.kind == "collectives" else sweet_spots(results, session)
    if as_json:
        click.echo(json.dumps([answer.to_dict() for answer in answers], indent=2))
    else:
        lines = verdict(results, session) if chosen.kind == "training" else [each.sentence() for each in answers]
        for line in lines:
            click.echo(line)
        if not answers:
            why = "ended well" if len(results.launch[results.launch["session_id"] == chosen.id]) else "was recorded"
            click.echo(f"No launch {why}, so nothing can be said about what is fastest.")


@main.command()
@click.argument("base", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    default=0.02,
    show_default=True,
    help="Slower by less than this is no regression.",
)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 0.5, min_open=True),
    default=0.01,
    show_default=True,
    help="Accepted rate of false alarms.",
)
@click.option("--base-session", metavar="SESSION", help="Id or label in BASE; the newest when not given.")
@click.option("--new-session", metavar="SESSION", help="Id or label in NEW; the newest when not given.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(base: Path, new: Path, as_json: bool, **options: Any) -> None:
    """Did NEW get slower than BASE? Exits with 1 when a case did, or no longer ends well."""
    from parabench.analysis.compare import compare as compare_results
    from parabench.store import load

    outcome = compare_results(load(base), load(new), **options)
    click.echo(json.dumps(outcome.to_dict(), indent=2) if as_json else "\n".join(outcome.lines()))
    if not outcome.judged and not outcome.regressed:
        raise UsageError("nothing could be judged; give both sides two or more ok launches of the same cases")
    raise SystemExit(REGRESSION if outcome.regressed else 0)


@main.command()
@click.option("--trace", "case", metavar="CASE", required=True, help="A case's id, the beginning of it, or its label.")
@click.argument("store", type=click.Path(path_type=Path), default=DEFAULT_OUT / "results.db")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("trace.json"), show_default=True)
@click.option("--session", help="Id or label; the newest when not given.")
@click.option("--launch", type=int, help="Id in the store. [default: the case's median one]")
@click.option("--step", type=int, help="An instrumented step. [default: the launch's median one]")
def export(case: str, store: Path, output: Path, session: str | None, launch: int | None, step: int | None) -> None:
    """Write one instrumented step of CASE in STORE as a trace, all ranks on one page, for ui.perfetto.dev.

    STORE is parabench-results/results.db when not given.
    """
    from parabench.analysis.evidence import evidence
    from parabench.analysis.session import select_session
    from parabench.store import load
    from parabench.trace import write_trace

    results = load(store)
    for line in write_trace(evidence(results, select_session(results, session)), case, output, launch, step):
        click.echo(line)


@main.command("list")
def list_all() -> None:
    """Show suites, strategies, algorithms and models, and what this machine can run."""
    from parabench.listing import lines

    for line in lines():
        click.echo(line)


@main.command()
def doctor() -> None:
    """Look at devices, versions and backends, and at what would make numbers untrustworthy."""
    from parabench.doctor import examine

    raise SystemExit(examine(click.echo))


def _find_users_own() -> None:
    """A user's own strategy or model, package.module:name, is found where the user stands. Last in line, so that no
    file there takes the place of a library's."""
    with contextlib.suppress(FileNotFoundError):
        sys.path.append(os.getcwd())


def _command() -> list[str]:
    """The command that reproduces this session, without what only continues it."""
    return ["parabench", *(argument for argument in sys.argv[1:] if argument != "--resume")]


def _console() -> Console:
    from parabench.progress import PatientConsole

    return PatientConsole()
