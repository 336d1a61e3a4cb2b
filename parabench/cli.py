"""Run the command line: import the module of a command when it is called, and print errors as one line.

Exit codes: 0: success; 1: a regression, or a launch that is not ok; 2: wrong usage; 3: inconclusive; 130: interrupted.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import signal
import sqlite3
import sys
from collections.abc import Sequence
from typing import Any

import click

from parabench import __version__
from parabench.analysis import format
from parabench.commands.output import Command
from parabench.errors import UsageError, print_error, unknown
from parabench.signals import STOPPED

# Each is a function in a module of `parabench.commands`, which has the name of the command or the name in MODULES.
COMMANDS = {
    "ab": "Compare two variants of the code, interleaved.",
    "best": "Show the fastest configuration of a session, and its lead.",
    "check": "Try one batch of your model, and list what each strategy needs.",
    "collectives": "Time single collective operations, as nccl-tests does.",
    "compare": "Compare two sessions for regressions (CI gate).",
    "doctor": "Check devices, versions, backends and noise.",
    "export": "Write a session for another tool, or one step as a trace.",
    "history": "Show when the step time of each configuration changed.",
    "init": "Write a suite and a workflow for your own model.",
    "list": "Show suites, strategies, algorithms and models.",
    "noise": "Measure the slowdown that `ab` can detect here, by minutes.",
    "predict": "Predict step times of more ranks, other links, other buckets.",
    "report": "Write the HTML report of a results database.",
    "run": "Measure a suite and write the report.",
    "serve": "Show the report in a browser, live while a session runs.",
}
MODULES = {
    "best": "answers",
    "check": "init",
    "collectives": "run",
    "compare": "answers",
    "history": "answers",
    "noise": "ab",
    "serve": "report",
}
# Inside torchrun, mpirun or srun, one process of each host runs ON_NODES, and IN_ONE_PROCESS are refused.
ON_NODES = ("run", "collectives")
IN_ONE_PROCESS = ("ab", "noise")
USAGE = 2
# These commands read results databases, print, and exit. They create many objects but little garbage. Garbage
# collection, after every 700 new objects, takes about a sixth of a report's time.
ANSWERING = ("best", "compare", "history", "predict", "report")
GARBAGE_AFTER = 1_000_000


class Commands(Command, click.Group):
    """The group of all commands. It prints a UsageError as one line and exits with 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        if name in ANSWERING:
            gc.set_threshold(GARBAGE_AFTER)
            # When numpy is imported, it starts a thread for each core.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        command: click.Command = getattr(importlib.import_module(f"parabench.commands.{MODULES.get(name, name)}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise unknown("command", args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        name = next(iter(sys.argv[1:] if args is None else args), None)
        if name not in (*ON_NODES, *IN_ONE_PROCESS):
            return super().main(args, *rest, **options)
        from parabench.cluster.foreign_group import once_per_host

        try:
            with once_per_host(measures=name in ON_NODES):
                return super().main(args, *rest, **options)
        except UsageError as error:
            print_error(f"parabench: {format.error_line(error)}")
            sys.exit(USAGE)

    def invoke(self, ctx: click.Context) -> Any:
        _open_standard_streams()
        try:
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # set so for the imports
                signal.signal(signal.SIGINT, signal.default_int_handler)
            return super().invoke(ctx)
        except KeyboardInterrupt:  # before or after the command handles stop requests itself
            text, code = "stopped", STOPPED
        except UsageError as error:
            text, code = format.error_line(error), USAGE
        except sqlite3.Error as error:
            text, code = (
                f"the results database cannot be used: {format.error_line(error)}; give the results.db of a run",
                USAGE,
            )
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EIO):
                raise  # click handles a closed pipe; other errors are bugs
            text, code = f"the output cannot be written: {format.error_line(error)}", USAGE
        print_error(f"parabench: {text}")
        ctx.exit(code)


def _open_standard_streams() -> None:
    """Open closed standard streams (`>&-`) on /dev/null.

    Otherwise, the next file that is opened gets the number of the stream, and the text that a library or a rank prints
    is written to this file.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
            os.set_inheritable(nowhere, True)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    examples={
        "Which configuration trains fastest on this machine?": "parabench run quick",
        "Is my change slower than what is committed?": "parabench ab quick --baseline ../base --candidate .",
        "Is this machine fit to measure on?": "parabench doctor",
    },
)
@click.version_option(__version__)
def main() -> None:
    """Measure distributed PyTorch training: what is fastest here, did it get slower, how do machines compare."""
