"""What a command prints and writes: lines for the terminal, the files that are asked for, a page in the browser."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parabench.errors import UsageError
from parabench.files import write_whole

if TYPE_CHECKING:
    from rich.console import Console

# An option's file. "-" is standard output, which then holds that file alone.
FILE = click.Path(path_type=Path, dir_okay=False, allow_dash=True)
STANDARD_OUTPUT = Path("-")

# By option: the file, where one is asked for; and what makes its text.
Files = Mapping[str, Path | None]
Renders = Mapping[str, Callable[[], str]]


def json_text(data: Any) -> str:
    """JSON for people and machines; unknown is null, so what is not finite is a mistake of ours."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def check_apart(files: Files) -> None:
    """Raise UsageError when two outputs are one file, or both standard output."""
    seen: dict[Path, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        dash = path == STANDARD_OUTPUT
        other = seen.setdefault(path if dash else path.resolve(), option)
        if other != option:
            where = "standard output, -" if dash else f"the same file, {path}"
            raise UsageError(f"{other} and {option} name {where}; give each its own")


def give(files: Files, renders: Renders, lines: Iterable[str], what: str) -> None:
    """Print the lines, or the file that standard output is to hold, and write the others, which hold a `what`.

    Each file is whole or not there, whatever becomes of the others. Raises UsageError, in one line, with all that
    failed.
    """
    printed = next((option for option, path in files.items() if path == STANDARD_OUTPUT), None)
    if printed is None:
        say(lines)
    else:
        click.echo(renders[printed](), nl=False)
    failed = []
    for option, path in files.items():
        if path is not None and option != printed:
            try:
                write_whole(path, renders[option](), what, f"give another file to {option}")
            except UsageError as error:
                failed.append(str(error))
    if failed:
        raise UsageError("; ".join(failed))


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
