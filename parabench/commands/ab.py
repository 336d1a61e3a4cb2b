"""`parabench ab`: compare two variants, interleaved. `parabench noise`: find the slowdown that `ab` detects here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from parabench.commands.answers import OUTPUTS, give_gate
from parabench.commands.options import (
    Rate,
    axes_in,
    check_no_effect,
    command,
    complete_stores,
    fraction,
    gate_options,
    session_options,
    shared,
    suite_argument,
    training_options,
    typed,
)
from parabench.commands.output import Command, console, file_option, files_in, give
from parabench.errors import UsageError
from parabench.files import STANDARD_OUTPUT
from parabench.plan.schedule import MOST_ROUNDS
from parabench.registry import import_from_here, working_directory
from parabench.session.request import Request
from parabench.signals import STOPPED


@click.command(
    cls=Command,
    examples={
        "Is this checkout slower than another one?": "parabench ab quick --baseline ../base --candidate .",
        "Is another NCCL algorithm slower?": (
            "parabench ab quick --baseline '' --candidate NCCL_ALGO=allreduce:tree --set strategy=ddp"
        ),
        "Compare two versions of torch, for a script:": (
            "parabench ab quick --baseline venvs/old --candidate venvs/new --json -"
        ),
        "Is this change, one of many, worth it?": (
            "parabench ab quick --baseline '' --candidate OMP_NUM_THREADS=2 --series tuning"
        ),
    },
)
@suite_argument
@click.option(
    "--baseline", "--a", "a", metavar="VARIANT", help="The baseline, or '' for this checkout and environment."
)
@click.option("--candidate", "--b", "b", metavar="VARIANT", help="The candidate.")
@shared(*training_options)
@click.option(
    "--rounds",
    type=click.IntRange(0, MOST_ROUNDS),
    help="Rounds per launch. In each, both variants run a few steps. 0: whole launches alternate. "
    "[default: 60, in 8 launches; with --series 36]",
)
@shared(*gate_options)
@click.option(
    "--series",
    type=click.Path(path_type=Path, file_okay=False),
    help="Accept or reject the candidate as a proposal of a series: --alpha is then the chance of any false accept in "
    "this folder. Without --baseline and --candidate, show its proposals.",
)
@click.option("--least", type=fraction, help="With --series: the smallest gain that is worth a change. [default: 1%]")
@click.option(
    "--budget",
    type=Rate(0, min_open=True),
    metavar="MINUTES",
    help="With --series: decide within this time.",
)
@shared(*OUTPUTS)
@shared(*session_options)
def ab(
    a: str | None,
    b: str | None,
    tolerance: float,
    alpha: float,
    series: Path | None,
    least: float | None,
    budget: float | None,
    **options: Any,
) -> None:
    """Is the candidate slower than the baseline on SUITE? Their launches are interleaved.

    A VARIANT is one or more words: NAME=VALUE sets an environment variable, a folder that contains bin/python is a
    virtual environment, and any other folder a checkout: the variant runs in it and imports from it first.

    Exits with 0 if slowdowns beyond the tolerance are ruled out in every configuration, with 1 for a regression, and
    with 3 if the result is inconclusive. With --series: 0 to accept the candidate, 1 to reject it.
    If a file is -, only this file is on standard output, and all else is on standard error.
    """
    from parabench.ab.driver import AbRequest, run_ab
    from parabench.analysis.compare import gate

    working_directory()
    if series is not None:
        raise SystemExit(_series(a, b, series, least, budget, options))
    if given := [name for name, value in (("--least", least), ("--budget", budget)) if value is not None]:
        raise UsageError(f"{given[0]} has no effect without --series; leave it out")
    if a is None or b is None:
        raise UsageError(
            f"{'--baseline' if a is None else '--candidate'} VARIANT is missing; give both --baseline and --candidate"
        )
    files, axes = files_in(options), axes_in(options)
    run = Request.of(axes=axes, argv=command(), **options)
    request = AbRequest(a=a, b=b, run=run, tolerance=tolerance, alpha=alpha, files=_typed(files))
    outcome = run_ab(request, console(stderr=STANDARD_OUTPUT in files.values()))
    if outcome is None:
        raise SystemExit(STOPPED)
    give_gate(files, outcome, ())
    raise SystemExit(gate.exit_code(outcome))


def _series(
    a: str | None, b: str | None, folder: Path, least: float | None, budget: float | None, options: dict[str, Any]
) -> int:
    """Accept or reject the candidate as a proposal of a series, or show the series. Return the exit code."""
    from parabench.ab.driver import AbRequest
    from parabench.ab.series import ROUNDS, answer, lines, read_series, run_series, table
    from parabench.analysis.compare.proposal import MOST_PAIRS

    # The folder decides them, or they belong to the gate.
    check_no_effect("--series", ("tolerance", "label", "out", "resume", "junit_file", "markdown_file", "html_file"))
    for name in ("label", "out", "resume"):
        options.pop(name)
    files, axes = files_in(options), axes_in(options)
    if a is None and b is None:
        there = read_series(folder)
        if there is None:
            raise UsageError(f"{folder} holds no series; start one with --baseline VARIANT and --candidate VARIANT")
        give(files, lambda: answer(there), [*table(there), *lines(there)], "series")
        return 0
    if b is None:
        raise UsageError("--candidate VARIANT is missing; give the proposal")
    defaults = {"launches": MOST_PAIRS, "rounds": ROUNDS}
    given = {name: value for name, value in options.items() if value is not None}
    run = Request.of(axes=axes, argv=command(), out=folder, **defaults | given)
    request = AbRequest(a=a or "", b=b, run=run, files=_typed(files))
    alpha = click.get_current_context().params["alpha"] if typed("alpha") else None
    budget_s = None if budget is None else 60 * budget
    to_console = console(stderr=STANDARD_OUTPUT in files.values())
    decided = run_series(request, to_console, alpha=alpha, least=least, budget_s=budget_s)
    if decided is None:
        return STOPPED
    give(files, lambda: answer(decided), (), "series")
    return decided.exit_code


@click.command(
    cls=Command,
    examples={
        "What can `ab` detect on this runner? Measure for five minutes:": "parabench noise quick",
        "The same from an earlier `ab`, as JSON:": "parabench noise --from parabench-results --json -",
    },
)
@suite_argument
@click.option(
    "--minutes",
    type=Rate(0, 24 * 60, min_open=True),
    default=5.0,
    show_default=True,
    help="Start no pair of launches that would end after this time.",
)
@click.option(
    "--from",
    "store",
    metavar="STORE",
    shell_complete=complete_stores,
    help="Measure nothing: answer from the newest `ab` or `noise` of a results database, or of STORE@SESSION.",
)
@shared(*training_options)
@click.option(
    "--rounds",
    type=click.IntRange(0, MOST_ROUNDS),
    help="Rounds per launch of the `ab` that is predicted. [default: fewer with more configurations, at least 4]",
)
@shared(file_option("json", "Write JSON (docs/reference/json.md)."))
@shared(*session_options)
def noise(minutes: float, store: str | None, **options: Any) -> None:
    """How small a slowdown does `parabench ab` of SUITE (quick) detect here, and in how many minutes?

    Measures the same code as both variants for --minutes. The differences between pairs of launches predict the
    slowdown that an `ab` of any length detects, and the time that a gate takes.

    Exits with 3 if that time is too short.
    """
    from parabench.ab.driver import run_noise
    from parabench.analysis.noise import exit_code, lines, read_pilot, sensitivity

    files, axes = files_in(options), axes_in(options)
    if store is not None:
        check_no_effect("--from, which measures nothing", (), ("store", "json_file"))
        found = sensitivity(read_pilot(store))
        give(files, lambda: found, lines(found), "answer")
        raise SystemExit(exit_code(found))
    import_from_here()
    if options["suite"] is None and not options["resume"]:
        options["suite"] = "quick"
    run = Request.of(axes=axes, argv=command(), **options)
    measured = run_noise(run, minutes, console(stderr=STANDARD_OUTPUT in files.values()), _typed(files))
    if measured is None:
        raise SystemExit(STOPPED)
    give(files, lambda: measured, (), "answer")
    raise SystemExit(exit_code(measured))


def _typed(files: Mapping[str, object]) -> list[str]:
    """Return the words of the file options on the command line."""
    return [word for option, path in files.items() if path is not None for word in (option, str(path))]
