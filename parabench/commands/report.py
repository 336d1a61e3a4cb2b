"""`parabench report`: write the HTML report of sessions. `parabench serve`: show it live in a browser."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from parabench.commands.options import DEFAULT_OUT, command, complete_stores, store_argument, typed
from parabench.commands.output import Command, note, say, show
from parabench.errors import UsageError
from parabench.files import is_special
from parabench.signals import Interrupted, stop_signals


@click.command(
    cls=Command,
    examples={
        "Write the report of a run and open it:": "parabench report results --open",
        "Two sessions on one page:": "parabench report results@before results@after -o both.html",
        "Existing profiler traces or NCCL logs:": "parabench report --from traces -o traces.html",
    },
)
@click.argument("stores", nargs=-1, metavar="[STORE]...", shell_complete=complete_stores)
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True)
@click.option("--open", "opened", is_flag=True, help="Open it in the browser.")
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A folder to read instead of STORE, with traces of torch.profiler, flight recorder dumps, NCCL Inspector "
    "files, logs of nccl-tests, or NCCL debug logs. A results database is written next to the page.",
)
def report(stores: tuple[str, ...], output: Path, opened: bool, source: Path | None) -> None:
    """Write the HTML report of STORE, or STORE@SESSION by id or label. Two or more are compared on one page.

    STORE is a results database, by default parabench-results.
    """
    from parabench.analysis.session import split

    if output.is_dir():
        raise UsageError(
            f"{output} cannot be written: it is a folder; give -o a file, such as {output / 'report.html'}"
        )
    chosen = [split(store) for store in stores or (str(DEFAULT_OUT),)]
    if source is not None:
        if stores:
            raise UsageError(f"--from {source} replaces a results database; give it without {stores[0]}")
        _of_recordings(source, output, typed("output"))
    elif len(chosen) > 1:
        from parabench.report.views.comparison import write_comparison

        note([str(write_comparison(chosen, output))])
    else:
        from parabench.report.build import write_report
        from parabench.store.results import load

        ((path, which),) = chosen
        note([str(write_report(load(path), output, which))])
    if opened:
        show(output.resolve().as_uri(), str(output))


def _of_recordings(source: Path, output: Path, named: bool) -> None:
    """Write the report of a folder of profiler traces or logs, and their results database next to it.

    Raises UsageError, and then writes no file; also if the report would be in the folder and is not `named`.
    """
    from parabench.imports.into_store import report_recordings

    store = output.with_suffix(".db")
    if is_special(output) or store == output:
        raise UsageError(
            f"{output} cannot be the page: its results database is written next to it; give -o an HTML file"
        )
    if not named and source.is_dir() and output.resolve().is_relative_to(source.resolve()):
        raise UsageError(f"{output} would be written into {source}, which is left as it is; give -o another place")
    say(report_recordings(source, output, command()))
    note([str(output), str(store)])


@click.command(
    cls=Command,
    examples={
        "Watch a run that goes on:": "parabench serve parabench-results --open",
        "On a machine that others use:": "parabench serve --port 8000 --token",
    },
)
@store_argument
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Port of 127.0.0.1; 0 for any that is free.",
)
@click.option("--token", "guarded", is_flag=True, help="Only answer requests for the random address that is printed.")
@click.option("--open", "opened", is_flag=True, help="Open it in the browser.")
def serve(store: str, port: int, guarded: bool, opened: bool) -> None:
    """Show the report of STORE, or STORE@SESSION by id or label, while a run goes on, to browsers of this machine.

    STORE is a results database, by default parabench-results. It need not exist yet. Ctrl-C stops the server.
    """
    from parabench.analysis.session import split
    from parabench.serve import LOOPBACK, Live, Server, make_page, read_progress

    if guarded and opened:
        raise UsageError("--open would show the token to other users, as an argument of the browser; give only --token")
    read_progress(*split(store))  # a file that is not a results database never becomes one
    token = secrets.token_urlsafe() if guarded else ""
    server = Server(Live(store, make_page), port, token)
    address = f"http://{LOOPBACK}:{server.server_port}/{token and f'{token}/'}"
    say([f"{address} shows {store}; Ctrl-C ends it"])
    try:
        with stop_signals():
            if opened:
                show(address, address)
            server.serve_forever()
    except Interrupted:
        note(["stopped"])
