"""`parabench export`: write a session in the format of another tool, or a step as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from parabench.commands.options import DEFAULT_OUT, shared, store_argument
from parabench.commands.output import Command, note
from parabench.errors import UsageError
from parabench.exporters import EXPORTERS, content_of, exporter_of
from parabench.files import STANDARD_OUTPUT, write_whole
from parabench.imports import read_folder

if TYPE_CHECKING:
    from parabench.analysis.session import SessionData

TRACE_FILE = "trace.json"
REMEDY = "give another place with -o"


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
@shared(
    *(
        click.option(f"--{name}", "formats", flag_value=name, multiple=True, help=entry.summary)
        for name, entry in EXPORTERS.items()
    )
)
@click.option(
    "--format",
    "formats",
    multiple=True,
    metavar="NAME",
    help="A custom format: package.module:name, or the name of an installed package's entry point.",
)
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
    from parabench.analysis.session import session_data, split
    from parabench.store.results import load

    asked = [*([f"--trace {case}"] if case is not None else []), *(f"--{each}" for each in formats)]
    if len(asked) != 1:
        given = f"{' and '.join(asked)} are several formats" if asked else "no format is given"
        raise UsageError(f"{given}; give one of --trace CASE, {', '.join(f'--{name}' for name in EXPORTERS)}")
    if case is None and (source, launch, step) != (None, None, None):
        raise UsageError(f"--from, --launch and --step are options of --trace; leave them out with {asked[0]}")
    if case is not None and output == str(STANDARD_OUTPUT):
        raise UsageError("a trace goes to a file; give one with -o, such as trace.json")
    if source is not None:
        if case or (launch, step) != (None, None) or store != str(DEFAULT_OUT):
            raise UsageError(
                f"--from {source} goes with --trace alone: without a configuration, a database, --launch and --step"
            )
        from parabench.imports.merged import write_merged

        note(write_merged(read_folder(source), Path(output or TRACE_FILE)))
        return
    if case == "":
        raise UsageError("--trace needs the id or the label of a configuration; give --trace CASE")
    path, session = split(store)
    seen = session_data(load(path), session)
    if case is None:
        note(_written(formats[0], seen, output))
    else:
        from parabench.report.trace import write_trace

        note(write_trace(seen, case, Path(output or TRACE_FILE), launch, step))


def _written(name: str, seen: SessionData, output: str | None) -> list[str]:
    """Export a session, and return the written files, or the lines of an exporter that sends it to a service.

    Raises UsageError if it cannot be exported; then no part of a file is left.
    """
    entry, function = exporter_of(name)
    stdout = output == str(STANDARD_OUTPUT)
    if entry is not None and not entry.place:
        if stdout:
            raise UsageError(f"--{name} is handed to a service; give -o its address, or nothing")
        lines: list[str] = function(seen, output or "")
        return lines
    place = output or (entry.place if entry else None)
    if place is None:
        raise UsageError(f"--format {name} has no usual file; give one with -o, or - for standard output")
    content = content_of(name, function, seen)
    if isinstance(content, str):
        if stdout:
            click.echo(content, nl=False)
            return []
        write_whole(Path(place), content, "file of another tool", REMEDY)
        return [place]
    if stdout or (Path(place).exists() and not Path(place).is_dir()):
        raise UsageError(f"{place} is not a folder, and {', '.join(content)} go into one; {REMEDY}")
    for each, raw in content.items():
        write_whole(Path(place) / each, raw, "file of another tool", REMEDY)
    return [str(Path(place) / each) for each in content]
