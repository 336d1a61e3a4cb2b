"""`parabench ab`: two settings, measured in turns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parabench.commands.compare import OUTPUTS, gate_renders
from parabench.commands.options import all_axes, command, gate, session, shared, training
from parabench.commands.output import STANDARD_OUTPUT, check_apart, console, give

if TYPE_CHECKING:
    from parabench.analysis.compare.gate import Comparison


@click.command()
@click.argument("suite", required=False)
@click.option("--a", "a", required=True, metavar="SIDE", help="The base: words as below, or '' for as it is here.")
@click.option("--b", "b", required=True, metavar="SIDE", help="The candidate.")
@shared(*training)
@shared(*gate)
@shared(*OUTPUTS)
@shared(*session)
def ab(
    suite: str | None,
    a: str,
    b: str,
    axes: tuple[str, ...],
    data: str | None,
    model: str | None,
    tolerance: float,
    alpha: float,
    json_file: Path | None,
    junit_file: Path | None,
    markdown_file: Path | None,
    html_file: Path | None,
    **options: Any,
) -> None:
    """Is side B of SUITE slower than side A? Both run in turns, launch by launch.

    A side is told in words: NAME=VALUE sets an environment variable, a folder that holds bin/python is a virtual
    environment, and any other folder a checkout: the side runs in it and imports from it first.

    Exits with 0 where slowdowns beyond the tolerance are ruled out in every case, with 1 for a regression, and with 3
    when neither was shown.
    When a file is -, it alone is on standard output, and all else on standard error.
    """
    from parabench.ab.driver import AbRequest, run_ab
    from parabench.session.request import TrainingRequest

    files = {"--json": json_file, "--junit": junit_file, "--markdown": markdown_file, "--html": html_file}
    check_apart(files)

    def keep(outcome: Comparison) -> None:
        give(files, gate_renders(outcome), (), "comparison")

    run = TrainingRequest.of(suite=suite, axes=all_axes(axes, data, model), argv=command(), **options)
    request = AbRequest(a=a, b=b, run=run, tolerance=tolerance, alpha=alpha)
    raise SystemExit(run_ab(request, console(stderr=STANDARD_OUTPUT in files.values()), keep))
