"""`parabench ab`, `parabench referee` and `parabench noise`: two sides, measured in turns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parabench.commands.compare import OF_GATE, OUTPUTS
from parabench.commands.options import (
    ALPHAS,
    Fraction,
    Rate,
    axes_in,
    command,
    complete_stores,
    gate_options,
    seed_option,
    session_options,
    shared,
    suite_argument,
    training_options,
)
from parabench.commands.output import (
    Command,
    Files,
    console,
    file_option,
    files_in,
    give,
    renders_of,
)
from parabench.errors import UsageError
from parabench.files import STANDARD_OUTPUT
from parabench.plan.protocol import MOST_ROUNDS
from parabench.registry import working_directory

if TYPE_CHECKING:
    from parabench.ab.referee import Series
    from parabench.analysis.compare.gate import Comparison
    from parabench.analysis.compare.sensitivity import Sensitivity


@click.command(
    cls=Command,
    examples={
        "Is this checkout slower than another one?": "parabench ab quick --a ../base --b .",
        "Is another NCCL algorithm slower?": (
            "parabench ab quick --a '' --b NCCL_ALGO=allreduce:tree --set strategy=ddp"
        ),
        "The same of two versions of torch, for a script:": "parabench ab quick --a venvs/old --b venvs/new --json -",
    },
)
@suite_argument
@click.option("--a", "a", required=True, metavar="SIDE", help="The base, or '' for this checkout and environment.")
@click.option("--b", "b", required=True, metavar="SIDE", help="The candidate.")
@shared(*training_options)
@click.option(
    "--rounds",
    type=click.IntRange(0, MOST_ROUNDS),
    help="In how many rounds of a launch the ranks of both sides take turns of a few steps; 0: whole launches "
    "alternate. [default: 60, in 8 launches]",
)
@shared(*gate_options)
@shared(*OUTPUTS)
@shared(*session_options)
def ab(a: str, b: str, tolerance: float, alpha: float, **options: Any) -> None:
    """Is side B slower than side A on SUITE? Their launches are interleaved.

    A SIDE is one or more words: NAME=VALUE sets an environment variable, a folder that holds bin/python is a virtual
    environment, and any other folder a checkout: the side runs in it and imports from it first.

    Exits with 0 where slowdowns beyond the tolerance are ruled out in every case, with 1 for a regression, and with 3
    when neither was shown.
    When a file is -, it alone is on standard output, and all else on standard error.
    """
    from parabench.ab.driver import AbRequest, run_ab
    from parabench.session.request import TrainingRequest

    working_directory()
    files, axes = files_in(options), axes_in(options)

    def keep(outcome: Comparison) -> None:
        from parabench.analysis.text.compare import to_dict

        give(files, renders_of(outcome, OF_GATE, to_dict), (), "comparison")

    run = TrainingRequest.of(axes=axes, argv=command(), **options)
    request = AbRequest(a=a, b=b, run=run, tolerance=tolerance, alpha=alpha, files=_typed(files))
    raise SystemExit(run_ab(request, console(stderr=STANDARD_OUTPUT in files.values()), keep))


@click.command(
    cls=Command,
    examples={
        "Is this variable worth setting?": "parabench referee quick --series tuning --proposal OMP_NUM_THREADS=2",
        "Is this checkout better than the one before, decided within 10 minutes?": (
            "parabench referee quick --series tuning --baseline ../before --proposal . --budget 10"
        ),
        "What was kept so far?": "parabench referee --series tuning",
    },
)
@suite_argument
@click.option(
    "--series",
    "out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder of the series: what was proposed, what became of it, and a store of each.",
)
@click.option("--baseline", default="", metavar="SIDE", help="What is now. [default: this checkout and environment]")
@click.option("--proposal", metavar="SIDE", help="What may replace it. Without it the series is shown.")
@click.option("--least", type=Fraction(), help="The smallest gain that is worth a change. [default: 1%]")
@click.option("--alpha", type=ALPHAS, help="The chance of any false keep in the whole series. [default: 0.01]")
@click.option("--budget", type=click.FloatRange(0, min_open=True), metavar="MINUTES", help="Decide within that time.")
@shared(*training_options)
@click.option("--rounds", type=click.IntRange(0, MOST_ROUNDS), help="As of `parabench ab`. [default: 36]")
@shared(seed_option, file_option("json", "Write the series as JSON (docs/reference/referee.schema.json)."))
def referee(proposal: str | None, baseline: str, out: Path, **options: Any) -> None:
    """Is a change worth keeping? Measure a PROPOSAL against the baseline on SUITE, both anew and in turns.

    A SIDE is what it is for `parabench ab`: variables, a virtual environment, a checkout. However many proposals a
    series has, the chance that any of them is kept although it gains nothing stays below --alpha.

    Exits with 0 to keep it, and with 1 to discard it.
    """
    from parabench.ab.referee import ROUNDS, RefereeRequest, lines, read_series, run_referee, table
    from parabench.analysis.compare.proposal import MOST_PAIRS
    from parabench.session.request import TrainingRequest

    files, axes = files_in(options), axes_in(options)
    to_console = console(stderr=STANDARD_OUTPUT in files.values())

    def keep(series: Series) -> None:
        give(files, renders_of(series, {}, asdict), (), "series")

    if proposal is None:
        there = read_series(out)
        if there is None:
            raise UsageError(f"{out} holds no series; begin one with --proposal SIDE")
        give(files, renders_of(there, {}, asdict), [*table(there), *lines(there)], "series")
        return
    alpha, least, budget = (options.pop(name) for name in ("alpha", "least", "budget"))
    options = {"launches": MOST_PAIRS, "rounds": ROUNDS} | {k: v for k, v in options.items() if v is not None}
    run = TrainingRequest.of(axes=axes, argv=command(), out=out, **options)
    asked = RefereeRequest(
        baseline=baseline,
        proposal=proposal,
        run=run,
        alpha=alpha,
        least=least,
        budget_s=None if budget is None else 60 * budget,
        files=_typed(files),
    )
    raise SystemExit(run_referee(asked, to_console, keep))


@click.command(
    cls=Command,
    examples={
        "What can `ab` show on this runner, told by five minutes:": "parabench noise quick",
        "Of an ab that was measured already, as JSON:": "parabench noise --from parabench-results --json -",
        "Fill a workflow of `parabench init`:": "parabench noise mine.py --workflow .github/workflows/mine.yml",
    },
)
@suite_argument
@click.option(
    "--minutes",
    type=Rate(0, 24 * 60, min_open=True),
    default=5.0,
    show_default=True,
    help="Begin no pair of launches that would end after that time.",
)
@click.option(
    "--from",
    "store",
    metavar="STORE",
    shell_complete=complete_stores,
    help="Measure nothing: answer from the newest `ab` or `noise` of a store, or of STORE@SESSION.",
)
@shared(*training_options)
@click.option(
    "--rounds",
    type=click.IntRange(0, MOST_ROUNDS),
    help="As of `parabench ab`, for which the answer holds. [default: fewer of more cases, 4 at least]",
)
@shared(file_option("json", "Write JSON (docs/reference/noise.schema.json)."))
@click.option(
    "--baseline",
    metavar="STORE",
    shell_complete=complete_stores,
    help="Tell too what `parabench compare` with the newest session of this store can pass.",
)
@click.option(
    "--workflow",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write what the gate of SUITE needs into this workflow, of `parabench init` or made anew.",
)
@shared(*session_options)
def noise(minutes: float, store: str | None, baseline: str | None, workflow: Path | None, **options: Any) -> None:
    """How small a slowdown does `parabench ab` of SUITE (quick) show here, and in how many minutes?

    Measures the same code on both sides for --minutes, and tells from how much pairs of launches differ what an `ab`
    of any length will see, and how long a gate needs.

    Exits with 3 where that time is too short to say.
    """
    from dataclasses import replace

    from parabench.analysis.compare.sensitivity import against_baseline, sensitivity
    from parabench.analysis.compare.sides import read_side
    from parabench.analysis.text.noise import lines, to_dict
    from parabench.commands.templates.workflow import check_workflow, fill_workflow

    files, axes = files_in(options), axes_in(options)
    to_console = console(stderr=STANDARD_OUTPUT in files.values())

    def keep(answer: Sensitivity, suite: str, said: Iterable[str] = ()) -> None:
        give(files, renders_of(answer, {}, to_dict), said, "answer")
        if workflow is not None and answer.seen:
            to_console.print(fill_workflow(workflow, suite, answer), highlight=False, markup=False, soft_wrap=True)

    against = against_baseline(read_side(baseline, "baseline")) if baseline is not None else None
    if store is not None:
        _check_from()
        from parabench.analysis.compare.pilot import read_pilot

        answer = replace(sensitivity(read_pilot(store)), baseline=against)
        if workflow is not None:
            check_workflow(workflow, answer.suite)
        keep(answer, answer.suite, lines(answer))
        raise SystemExit(answer.exit_code)
    from parabench.ab.noise import NoiseRequest, run_noise
    from parabench.session.request import TrainingRequest

    working_directory()
    if options["suite"] is None and not options["resume"]:
        options["suite"] = "quick"
    if workflow is not None and options["suite"] is not None:
        check_workflow(workflow, options["suite"])
    run = TrainingRequest.of(axes=axes, argv=command(), **options)
    named = _typed(files)
    named += ["--workflow", str(workflow)] if workflow is not None else []
    named += ["--baseline", baseline] if baseline is not None else []
    request = NoiseRequest(run=run, minutes=minutes, baseline=against, files=named)
    raise SystemExit(run_noise(request, to_console, lambda answer: keep(answer, run.suite or answer.suite)))


def _check_from() -> None:
    """Raise UsageError for what only a measurement obeys."""
    ctx = click.get_current_context()
    for each in ctx.command.params:
        given = ctx.get_parameter_source(str(each.name)) is click.core.ParameterSource.COMMANDLINE
        if given and each.name not in ("store", "json_file", "baseline", "workflow"):
            what = each.opts[0] if isinstance(each, click.Option) else "SUITE"
            raise UsageError(f"{what} has no effect with --from, which measures nothing; leave it out")


def _typed(files: Files) -> list[str]:
    """The files that are asked for, as it is typed."""
    return [word for option, path in files.items() if path is not None for word in (option, str(path))]
