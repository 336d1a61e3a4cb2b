"""`parabench compare`: the gate, and the comparison of machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from parabench.commands.options import between_sessions, gate, shared
from parabench.commands.output import FILE, Renders, check_apart, give, json_text
from parabench.errors import UsageError

if TYPE_CHECKING:
    from parabench.analysis.compare.across import Across
    from parabench.analysis.compare.gate import Comparison

# What only a gate has.
_GATES = {
    "tolerance": "--tolerance",
    "alpha": "--alpha",
    "between_sessions": "--between-sessions",
    "changed": "--changed",
    "junit_file": "--junit",
}

# The files that a comparison can be written to.
OUTPUTS = (
    click.option("--json", "json_file", type=FILE, help="Write JSON (docs/compare.schema.json)."),
    click.option("--junit", "junit_file", type=FILE, help="Write JUnit XML: a test for each case."),
    click.option("--markdown", "markdown_file", type=FILE, help="Write Markdown, for a job summary or a comment."),
    click.option("--html", "html_file", type=FILE, help="Write a page with figures."),
)


@click.command()
@click.argument("base")
@click.argument("candidate")
@shared(*gate, between_sessions)
@click.option("--changed", multiple=True, metavar="NAME", help="What else differs, and is what you want to judge.")
@click.option("--across-hardware", is_flag=True, help="Compare machines: ratios and their mean, no pass and no fail.")
@shared(*OUTPUTS)
@click.pass_context
def compare(
    ctx: click.Context,
    base: str,
    candidate: str,
    tolerance: float,
    alpha: float,
    between_sessions: float,
    changed: tuple[str, ...],
    across_hardware: bool,
    json_file: Path | None,
    junit_file: Path | None,
    markdown_file: Path | None,
    html_file: Path | None,
) -> None:
    """Did CANDIDATE get slower than BASE? Each is a store, or STORE@SESSION by id or label.

    Exits with 0 where slowdowns beyond the tolerance are ruled out in every case, with 1 for a regression, and with 3
    when neither was shown.
    With --across-hardware there is no verdict, and it exits with 0. The file - is standard output, and nothing else is
    printed then.
    """
    from parabench.analysis.compare.sides import read_sides
    from parabench.analysis.text import format

    if across_hardware:
        for name, option in _GATES.items():
            if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
                raise UsageError(f"{option} is a gate's, and two machines have no pass or fail; leave it out")
    files = {"--json": json_file, "--junit": junit_file, "--markdown": markdown_file, "--html": html_file}
    check_apart(files)
    sides = read_sides(base, candidate)
    if across_hardware:
        from parabench.analysis.compare.across import across

        outcome: Across | Comparison
        outcome = ratios = across(*sides)
        code, renders = 0, _across_renders(ratios)
    else:
        from parabench.analysis.compare.gate import compare as compare_sides

        outcome = judged = compare_sides(*sides, tolerance, alpha, changed, allowance=between_sessions)
        code, renders = judged.verdict.exit_code, gate_renders(judged)
    give(files, renders, (format.one_line(line) for line in outcome.lines()), "comparison")
    raise SystemExit(code)


def gate_renders(outcome: Comparison) -> Renders:
    """What makes the text of each file of a gate; imported when it is asked for."""

    def junit() -> str:
        from parabench.report.output.junit import render

        return render(outcome)

    def markdown() -> str:
        from parabench.report.output.markdown_gate import render

        return render(outcome)

    def html() -> str:
        from parabench.report.views.gate import render

        return render(outcome)

    return {"--json": lambda: json_text(outcome.to_dict()), "--junit": junit, "--markdown": markdown, "--html": html}


def _across_renders(outcome: Across) -> Renders:
    def markdown() -> str:
        from parabench.report.output.markdown_across import render

        return render(outcome)

    def html() -> str:
        from parabench.report.views.across import render

        return render(outcome)

    return {"--json": lambda: json_text(outcome.to_dict()), "--markdown": markdown, "--html": html}
