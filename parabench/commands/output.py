"""Print the help and the output of commands: lines for the terminal, files, a page in the browser."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parabench.analysis import format
from parabench.errors import UsageError, print_error, unknown
from parabench.files import STANDARD_OUTPUT, write_whole

if TYPE_CHECKING:
    from rich.console import Console

    from parabench.analysis.answer import Answer

# An option's file. "-" is standard output, which then has only this file.
FILE = click.Path(path_type=Path, dir_okay=False, allow_dash=True)

# The kinds of files, in the order of writing.
KINDS = ("json", "junit", "markdown", "html")

# The requested file by option.
Files = Mapping[str, Path | None]

# The key of --quiet in the context of a command.
QUIET = "parabench.quiet"


class Command(click.Command):
    """A command whose help ends with examples, {question: command line}, and which has --quiet unless it is a group."""

    def __init__(self, *arguments: Any, examples: Mapping[str, str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.examples = examples
        if not isinstance(self, click.Group):
            self.params.append(
                click.Option(
                    ["-q", "--quiet"],
                    is_flag=True,
                    expose_value=False,
                    callback=lambda ctx, param, value: ctx.meta.__setitem__(QUIET, value),
                    help="Print only the answer; print nothing if it is written to a file.",
                )
            )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for question, line in self.examples.items():
                formatter.write_text(question)
                formatter.write(f"{'':>{formatter.current_indent + 2}}{line}\n")


class Name(click.Choice):  # type: ignore[type-arg]  # generic since click 8.2
    """A choice of names. The error for an unknown name suggests the most similar one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.choices:
            raise unknown(str(param and param.name), value, self.choices)
        return str(value)


def is_quiet() -> bool:
    """Return whether the user gave --quiet to the current command."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.meta.get(QUIET))


def file_option(name: str, help: str) -> Callable[[Any], Any]:
    """Return the option `--name FILE` of a file to write. `files_in` returns the file."""
    return click.option(f"--{name}", f"{name}_file", type=FILE, help=help)


def files_in(options: dict[str, Any]) -> Files:
    """Remove the file options from `options`, and return {option: file}. Raises UsageError if two are the same."""
    files = {f"--{name}": options.pop(f"{name}_file") for name in KINDS if f"{name}_file" in options}
    places = {option: path.resolve() for option, path in files.items() if path is not None}
    for place in places.values():
        same = [option for option in places if places[option] == place]
        if len(same) > 1:
            raise UsageError(f"{' and '.join(same)} name the same file, {files[same[0]]}; give each its own")
    return files


def give(
    files: Files,
    answer: Callable[[], Answer],
    lines: Iterable[str],
    what: str,
    renders: Mapping[str, Callable[[], str]] | None = None,
) -> None:
    """Print the answer of a command, and write its files. Raises UsageError if a file cannot be written.

    Args:
        answer: returns the answer, for JSON.
        lines: printed, unless a file is standard output.
        what: the name of the answer in errors.
        renders: {option: function that returns the text of its file}.
    """
    command = str(click.get_current_context().info_name)
    renders = {"--json": lambda: answer().to_json(command), **(renders or {})}
    printed = next((option for option, path in files.items() if path == STANDARD_OUTPUT), None)
    if printed is not None:
        click.echo(renders[printed](), nl=False)
    elif not (is_quiet() and any(files.values())):
        say(lines)
    for option, path in files.items():
        if path is not None and option != printed:
            write_whole(path, renders[option](), what, f"give another file to {option}")


def console(stderr: bool = False, force_terminal: bool | None = None) -> Console:
    """Return the console that shows the progress of a run, on standard output or standard error."""
    from parabench.session.progress import PatientConsole

    return PatientConsole(stderr=stderr, quiet=is_quiet(), force_terminal=force_terminal)


def note(lines: Iterable[str]) -> None:
    """Print lines other than the answer, such as the names of files, unless --quiet is given."""
    if not is_quiet():
        say(lines)


def say(lines: Iterable[str]) -> None:
    """Print lines, and replace control characters, which a database may contain."""
    for line in lines:
        click.echo(format.printable(line))


def show(address: str, called: str) -> None:
    """Open an address in the user's browser. If that fails, print that the user can open `called`."""
    try:
        shown = webbrowser.open(address)
    except (webbrowser.Error, OSError):
        shown = False
    if not shown:
        print_error(f"parabench: no browser could be started; open {called} yourself")
