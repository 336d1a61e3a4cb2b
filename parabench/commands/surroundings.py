"""Where a command runs: the user's folder, command line and terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console


def find_users_own() -> None:
    """A user's own strategy or model, package.module:name, is found where the user stands. Last in line, so that no
    file there takes the place of a library's."""
    with contextlib.suppress(FileNotFoundError):
        sys.path.append(os.getcwd())


def command() -> list[str]:
    """The command that reproduces this session, without what only continues it."""
    return ["parabench", *(argument for argument in sys.argv[1:] if argument != "--resume")]


def console(stderr: bool = False) -> Console:
    """Where a run tells how far it is; on standard error when the output is to hold something else alone."""
    from parabench.session.progress import PatientConsole

    return PatientConsole(stderr=stderr)


def say(lines: Iterable[str]) -> None:
    """Print lines of a store, which anyone may have written, so that they control no terminal and stay lines."""
    from parabench.analysis.text import format

    for line in lines:
        click.echo(format.printable(line))


def show(address: str, called: str) -> None:
    """Open an address in the user's browser; where there is none, a line says what to open by hand."""
    import webbrowser

    try:
        shown = webbrowser.open(address)
    except (webbrowser.Error, OSError):
        shown = False
    if not shown:
        click.echo(f"parabench: no browser could be started; open {called} yourself", err=True)
