"""`parabench serve`: the page while the run goes on."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from html import escape
from pathlib import Path

import click

from parabench.commands.options import store_argument
from parabench.commands.output import say, show
from parabench.commands.report import template_option
from parabench.signals import Interrupted, stop_signals

# As many as nobody guesses.
TOKEN_BYTES = 32


@click.command()
@store_argument
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Port of 127.0.0.1; 0 for any that is free.",
)
@template_option
@click.option("--token", "guarded", is_flag=True, help="Answer only who knows the random address that is printed.")
@click.option("--open", "opened", is_flag=True, help="Open it in the browser.")
def serve(store: str, port: int, template: Path | None, guarded: bool, opened: bool) -> None:
    """Show the report of STORE, or STORE@SESSION by id or label, while a run goes on, to browsers of this machine.

    STORE is parabench-results when not given; it need not exist yet. Ctrl-C ends it.
    """
    from parabench.report.assets import check_folder
    from parabench.serve.progress import standing
    from parabench.serve.rebuild import Child, Renewal
    from parabench.serve.server import LOOPBACK, Live, listen
    from parabench.store.store import split

    if template is not None:
        check_folder(template)
    standing(*split(store))  # what is there and no store will not become one
    child = Child(template)
    token = secrets.token_urlsafe(TOKEN_BYTES) if guarded else ""
    server = listen(Live(lambda: split(store), Renewal(child), template), port, token)
    address = f"http://{LOOPBACK}:{server.port}/{token and f'{token}/'}"
    say([f"{address} shows {store}; Ctrl-C ends it"])
    try:
        with stop_signals(), ExitStack() as stack:
            if opened:
                show(_to_open(address, stack) if guarded else address, address)
            server.serve_forever()
    except Interrupted:
        say(["stopped"])
    finally:
        child.end()


def _to_open(address: str, stack: ExitStack) -> str:
    """What leads a browser to an address that other users must not see: all of them see what a process is started
    with, and no other the file in our own folder."""
    from parabench.files import launch_folder

    file = stack.enter_context(launch_folder()) / "open.html"
    file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(address)}">\n')
    return file.as_uri()
