"""`parabench export`: a session as other tools read it, or a step as a trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from parabench.commands.options import DEFAULT_OUT, store_argument
from parabench.commands.output import Command, note
from parabench.errors import UsageError
from parabench.exporters import EXPORTERS, Exporter, content_of, exporter_of
from parabench.files import STANDARD_OUTPUT, write_whole

if TYPE_CHECKING:
    from parabench.analysis.session import SessionData

F = TypeVar("F", bound=Callable[..., Any])
TRACE_FILE = "trace.json"
REMEDY = "give another place with -o"


def format_options(command: F) -> F:
    """Add a flag for each format of parabench, and --format for a user's own."""
    own = "A custom format: package.module:name, or the name of an installed package's entry point."
    command = click.option("--format", "formats", multiple=True, metavar="NAME", help=own)(command)
    for name, entry in reversed(EXPORTERS.items()):
        command = click.option(f"--{name}", "formats", flag_value=name, multiple=True, help=entry.summary)(command)
    return command


@click.command(
    cls=Command,
    examples={
        "For Bencher:": "parabench export --bencher results@nightly",
        "For Prometheus:": "parabench export --openmetrics -o -",
        "One step, for ui.perfetto.dev:": "parabench export --trace 'ddp native, 2 ranks' -o step.json",
        "Other tools' traces of all ranks in one:": "parabench export --trace --from traces -o all.json",
    },
)
@store_argument
@format_options
@click.option(
    "--trace",
    "case",
    is_flag=False,
    flag_value="",
    metavar="[CASE]",
    help="One instrumented step of CASE, an id, the beginning of one, or a label, for ui.perfetto.dev.",
)
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="For --trace: a folder with traces of other tools; all ranks are written into one trace on one clock.",
)
@click.option("-o", "--output", metavar="PLACE", help="File, folder, or tracking URI of MLflow. [default: by format]")
@click.option(
    "--launch", type=int, help="For --trace: its id in the results database. [default: the configuration's median one]"
)
@click.option("--step", type=int, help="For --trace: an instrumented step. [default: the launch's median one]")
def export(
    store: str,
    formats: tuple[str, ...],
    case: str | None,
    source: Path | None,
    output: str | None,
    launch: int | None,
    step: int | None,
) -> None:
    """Write a session of STORE for another tool, or one step of it as a trace.

    STORE is a results database, by default parabench-results; STORE@SESSION names a session by id or label.
    With `-o -`, text goes to standard output.
    """
    asked = [*([f"--trace {case}"] if case is not None else []), *(f"--{each}" for each in formats)]
    if len(asked) != 1:
        given = f"{' and '.join(asked)} are several formats" if asked else "no format is given"
        raise UsageError(f"{given}; give one of --trace CASE, {', '.join(f'--{name}' for name in EXPORTERS)}")
    if case is None and (launch, step) != (None, None):
        raise UsageError(f"--launch and --step are of --trace CASE; leave them out with {asked[0]}")
    if case == "" and source is None:
        raise UsageError("--trace needs the id or the label of a configuration; give --trace CASE")
    if case is not None and output == str(STANDARD_OUTPUT):
        raise UsageError("a trace goes to a file; give one with -o, such as trace.json")
    if source is not None:
        if case is None or case or (launch, step) != (None, None) or store != str(DEFAULT_OUT):
            raise UsageError(
                f"--from {source} goes with --trace alone: without a configuration, a database, --launch and --step"
            )
        from parabench.imports import read_folder
        from parabench.imports.merged import write_merged

        note(write_merged(read_folder(source), Path(output or TRACE_FILE)))
        return
    from parabench.analysis.session import session_data, split
    from parabench.store.results import load

    path, session = split(store)
    seen = session_data(load(path), session)
    if case is not None:
        from parabench.report.trace import write_trace

        note(write_trace(seen, case, Path(output or TRACE_FILE), launch, step))
        return
    entry, function = exporter_of(formats[0])
    if entry is None or entry.place:
        note(_write(formats[0], entry, function, seen, output))
    elif output == str(STANDARD_OUTPUT):
        raise UsageError(f"--{formats[0]} is handed to a service; give -o its address, or nothing")
    else:
        note(function(seen, output or ""))


def _write(
    name: str, entry: Exporter | None, function: Callable[..., Any], seen: SessionData, output: str | None
) -> list[str]:
    """Write what the exporter makes, and return the files. Raises UsageError, and then leaves no part of a file."""
    place = output or (entry.place if entry else None)
    if place is None:
        raise UsageError(f"--format {name} has no usual file; give one with -o, or - for standard output")
    content = content_of(name, function, seen)
    if isinstance(content, str):
        if place == str(STANDARD_OUTPUT):
            click.echo(content, nl=False)
            return []
        files: dict[Path, str | bytes] = {Path(place): content}
    else:
        if place == str(STANDARD_OUTPUT) or (Path(place).exists() and not Path(place).is_dir()):
            raise UsageError(f"{place} is not a folder, and {', '.join(content)} go into one; {REMEDY}")
        files = {Path(place) / each: raw for each, raw in content.items()}
    for path, raw in files.items():
        write_whole(path, raw, "file of another tool", REMEDY)
    return [str(path) for path in files]
