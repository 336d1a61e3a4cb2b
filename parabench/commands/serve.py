"""`parabench serve`: the page while the run goes on."""

from __future__ import annotations

from pathlib import Path

import click

from parabench.commands.options import store_argument
from parabench.commands.output import say, show
from parabench.commands.report import template_option
from parabench.signals import Interrupted, stop_signals


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
@click.option("--open", "opened", is_flag=True, help="Open it in the browser.")
def serve(store: str, port: int, template: Path | None, opened: bool) -> None:
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
    server = listen(Live(lambda: split(store), Renewal(child), template), port)
    address = f"http://{LOOPBACK}:{server.port}/"
    say([f"{address} shows {store}; Ctrl-C ends it"])
    try:
        with stop_signals():
            if opened:
                show(address, address)
            server.serve_forever()
    except Interrupted:
        say(["stopped"])
    finally:
        child.end()
