"""`parabench ab`: two settings, measured in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from parabench.commands.compare import OF_GATE, OUTPUTS
from parabench.commands.options import axes_in, command, gate_options, session_options, shared, training_options
from parabench.commands.output import STANDARD_OUTPUT, console, files_in, give, renders_of
from parabench.plan.protocol import MOST_ROUNDS

if TYPE_CHECKING:
    from parabench.analysis.compare.gate import Comparison


@click.command()
@click.argument("suite", required=False)
@click.option("--a", "a", required=True, metavar="SIDE", help="The base, or '' for this checkout and environment.")
@click.option("--b", "b", required=True, metavar="SIDE", help="The candidate.")
@shared(*training_options)
@click.option(
    "--rounds",
    type=click.IntRange(0, MOST_ROUNDS),
    help="In how many rounds of a launch the ranks of both sides take turns of a few steps; 0: whole launches "
    "alternate. [default: 24, in 8 launches]",
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

    files, axes = files_in(options), axes_in(options)

    def keep(outcome: Comparison) -> None:
        from parabench.analysis.text.compare import to_dict

        give(files, renders_of(outcome, OF_GATE, to_dict), (), "comparison")

    run = TrainingRequest.of(axes=axes, argv=command(), **options)
    request = AbRequest(a=a, b=b, run=run, tolerance=tolerance, alpha=alpha)
    raise SystemExit(run_ab(request, console(stderr=STANDARD_OUTPUT in files.values()), keep))
