"""Define the options and arguments that several commands share, their completion, and checks of what was typed."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from parabench.errors import UsageError
from parabench.plan.fields import option_fields
from parabench.plan.protocol import TRACE, TURNS, Protocol
from parabench.records import LEAST_RATE, MOST_RATE, Record

DEFAULT_OUT = Path("parabench-results")

# Completion in shells imports no torch, because users wait for it each time they press the tab key.


def complete_suites(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of shipped suites that complete the input; if there are none, let the shell complete files."""
    from parabench.plan.suite import shipped

    found = [CompletionItem(name) for name in shipped() if name.startswith(incomplete)]
    return found or complete_stores(context, param, incomplete)


def complete_stores(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete files and folders."""
    return [CompletionItem(incomplete, type="file")]


store_argument = click.argument("store", default=str(DEFAULT_OUT), shell_complete=complete_stores)
suite_argument = click.argument("suite", required=False, shell_complete=complete_suites)

F = TypeVar("F", bound=Callable[..., Any])


def fraction(value: str) -> float:
    """Convert `2%` or `0.02`, a number from 0 to below 1."""
    text = value.strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = float("nan")
    if not 0 <= share < 1:
        raise click.BadParameter(f"{value!r} is not a fraction in [0, 1); write 2% or 0.02")
    return share


class Rate(click.FloatRange):
    """A range of numbers that excludes NaN, which click's range includes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        rate = float(super().convert(value, param, ctx))
        if math.isnan(rate):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return rate


# The options of a gate.
gate_options = (
    click.option(
        "--tolerance",
        type=fraction,
        default="2%",
        show_default=True,
        help="Smallest slowdown that counts as a regression.",
    ),
    click.option(
        "--alpha",
        type=Rate(LEAST_RATE, MOST_RATE),
        default=0.01,
        show_default=True,
        help="False-alarm rate, over all configurations together.",
    ),
)
# The option of a gate whose variants were not interleaved.
between_sessions = click.option(
    "--between-sessions",
    type=fraction,
    default="5%",
    show_default=True,
    help="Standard deviation between sessions of unchanged code, if base's results database has fewer than 4 sessions.",
)


def torchruns(flag: str, **more: Any) -> Callable[[F], F]:
    """Return the option for a flag of torchrun. It also reads the environment variable of torchrun for this flag."""
    return click.option(f"--{flag}", envvar=f"PET_{flag.replace('-', '_').upper()}", **more)


# torchrun's own flags; then three of ours.
launcher_options = (
    torchruns("nnodes", metavar="N", help="Number of nodes, as torchrun's; run the same command on each."),
    torchruns(
        "nproc-per-node",
        metavar="P",
        help="Ranks per node: a number, auto, gpu or cpu. [default: every device; 1 without]",
    ),
    torchruns("rdzv-endpoint", metavar="HOST:PORT", help="Address of node 0 and a free port there."),
    torchruns("rdzv-id", metavar="ID", help="Id of this session, the same on every node."),
    torchruns(
        "node-rank",
        type=int,
        metavar="R",
        help="Rank of this node. [default: 0 at the endpoint; the others in order of joining]",
    ),
    torchruns("master-addr", metavar="HOST", help="As --rdzv-endpoint HOST:..."),
    torchruns("master-port", type=click.IntRange(1, 65535), help="As ...:PORT."),
    torchruns("local-addr", metavar="ADDRESS", help="Address of this node for the others."),
    click.option("--rdzv-timeout", type=float, metavar="SECONDS", help="How long to wait for a node. [default: 600]"),
    click.option("--interface", metavar="NAME", help="Use only this network interface."),
    click.option(
        "--secret-file",
        metavar="FILE",
        help="Sign messages between nodes with the secret in FILE, which only its owner may read. [default: "
        "PARABENCH_SECRET or PARABENCH_SECRET_FILE]",
    ),
)


def axes_in(options: dict[str, Any]) -> tuple[str, ...]:
    """Remove --set, --data and --model from a command's options, and return them as "axis=value"."""
    own = {name: options.pop(name) for name in ("data", "model")}
    return (*options.pop("axes"), *(f"{name}={value}" for name, value in own.items() if value is not None))


def options_of(kind: type[Record], role: str = "") -> tuple[Callable[[F], F], ...]:
    """Return the command line options that the fields of a record with this role declare. Their default is None."""
    return tuple(
        click.option(
            each.field.option,
            name,
            type=str if each.field.text else None if each.type is bool else each.type,
            is_flag=each.type is bool,
            default=None,
            metavar=each.field.metavar,
            help=each.field.help,
        )
        for name, each in option_fields(kind).items()
        if each.field.role == role
    )


# The options of `run` and `collectives`, besides torchrun's.
links_option = click.option(
    "--links",
    is_flag=True,
    help="First measure latency and bandwidth between all nodes, and between the devices of each.",
)
dry_run_option = click.option(
    "--dry-run",
    is_flag=True,
    help="Print the plan and its expected duration, for any number of nodes; launch and write nothing.",
)
# The options of every session.
session_options = (
    click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Seed of the order of launches. [default: 0]"),
    click.option("--label", help="Name of this session."),
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        default=DEFAULT_OUT,
        show_default=True,
        help="Folder for results.db and report.html.",
    ),
    click.option(
        "--resume", is_flag=True, help="Continue the interrupted session in --out; finished launches are kept."
    ),
)

data_option = click.option(
    "--data",
    help="text, text:PATH, mnist:DIR, synthetic or your own package.module:name; as --set data=...",
)
model_option = click.option(
    "--model",
    help="A name that `parabench list` shows, or your own package.module:name; as --set model=...",
)
# The options of a session of training runs: its cases and its launches.
training_options = (
    click.option(
        "--set",
        "axes",
        multiple=True,
        metavar="AXIS=V1,V2",
        help="Values for an axis, instead of the suite's.",
    ),
    *options_of(Protocol),
    data_option,
    model_option,
)
# Only `run` has these: interleaving of cases, racing, and traces.
racing_options = (
    *options_of(Protocol, TURNS),
    click.option(
        "--until-decided",
        is_flag=True,
        help="Measure the configurations that may still be the fastest until 2% is detectable, without a time limit.",
    ),
    click.option(
        "--budget",
        type=float,
        metavar="MINUTES",
        help="Racing and --until-decided: start no repetition, except planned ones, that would end after this time. "
        "[default: the suite's, 5]",
    ),
    *options_of(Protocol, TRACE),
)


def shared(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds these options to a command, in their order."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def command() -> list[str]:
    """Return the command line that reproduces this session, without --resume."""
    return ["parabench", *(argument for argument in sys.argv[1:] if argument != "--resume")]


def typed(name: str) -> bool:
    """Return whether the user gave this parameter of the current command."""
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


def check_no_effect(mode: str, names: Sequence[str], but: Sequence[str] = ()) -> None:
    """Raise UsageError if the user gave a parameter that has no effect in a mode of the current command.

    These are the parameters in `names`, or all parameters except `but`.
    """
    for each in click.get_current_context().command.params:
        if typed(str(each.name)) and (each.name in names or (but and each.name not in but)):
            what = each.opts[0] if isinstance(each, click.Option) else str(each.name).upper()
            raise UsageError(f"{what} has no effect with {mode}; leave it out")
