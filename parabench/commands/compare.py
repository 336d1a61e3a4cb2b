"""`parabench compare`: the gate, and the comparison of machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from parabench.commands.options import between_sessions, check_no_effect, command, complete_stores, gate_options, shared
from parabench.commands.output import Command, Files, file_option, files_in, give, renders_of

# What only a gate has.
_GATES = ("tolerance", "alpha", "between_sessions", "changed", "junit_file")

# The files of a comparison, and the modules that render a gate.
OUTPUTS = (
    file_option("json", "Write JSON (docs/reference/json.md)."),
    file_option("junit", "Write JUnit XML: a test for each case."),
    file_option("markdown", "Write Markdown, for a job summary or a comment."),
    file_option("html", "Write a page with figures."),
)
OF_GATE = {
    "--junit": "parabench.report.views.junit",
    "--markdown": "parabench.report.views.markdown",
    "--html": "parabench.report.views.gate",
}


@click.command(
    cls=Command,
    examples={
        "Did a run get slower?": "parabench compare base new --tolerance 2%",
        "The verdict for a pull request and for a test report:": (
            "parabench compare base new --markdown verdict.md --junit junit.xml"
        ),
        "What changed between two recordings of torch.profiler?": "parabench compare --from traces-before traces-after",
        "How do two machines compare?": "parabench compare old.db new.db --across-hardware",
    },
)
@click.argument("base", shell_complete=complete_stores)
@click.argument("candidate", shell_complete=complete_stores)
@shared(*gate_options, between_sessions)
@click.option("--changed", multiple=True, metavar="NAME", help="A fact that differs on purpose, such as torch.")
@click.option("--across-hardware", is_flag=True, help="Compare machines: ratios and their mean, no verdict.")
@click.option("--from", "recorded", is_flag=True, help="Compare two folders of other tools' recordings; no verdict.")
@shared(*OUTPUTS)
def compare(
    base: str,
    candidate: str,
    tolerance: float,
    alpha: float,
    between_sessions: float,
    changed: tuple[str, ...],
    across_hardware: bool,
    recorded: bool,
    **options: Any,
) -> None:
    """Did CANDIDATE get slower than BASE? Each is a store, or STORE@SESSION by id or label.

    Exit codes: 0 no regression (slowdowns beyond the tolerance are ruled out in every case), 1 regression, 3
    inconclusive. With --across-hardware or --from, the exit code is 0. The file - is standard output, and nothing else
    is printed then.
    """
    from parabench.analysis import format
    from parabench.analysis.compare.sides import read_sides

    if recorded:
        check_no_effect("--from", (*_GATES, "across_hardware"))
    elif across_hardware:
        check_no_effect("--across-hardware", _GATES)
    files = files_in(options)
    if recorded:
        _recordings(base, candidate, files)
        return
    sides = read_sides(base, candidate)
    if across_hardware:
        from parabench.analysis.compare import machines

        of = machines.compared(*sides)
        answer, code = machines.answer(of), 0
        lines = map(format.printable, machines.lines(answer))
        renders = renders_of(answer, {"--markdown": OF_GATE["--markdown"]})
        renders |= renders_of(of, {"--html": "parabench.report.views.comparison"})
    else:
        from parabench.analysis.compare import gate

        answer = gate.compare(*sides, tolerance, alpha, changed, allowance=between_sessions)
        code, lines = gate.exit_code(answer), map(format.one_line, gate.lines(answer))
        renders = renders_of(answer, OF_GATE)
    give(files, lambda: answer, lines, "comparison", renders)
    raise SystemExit(code)


def _recordings(base: str, candidate: str, files: Files) -> None:
    """Compare two folders of recordings, and write the files."""
    from parabench.analysis.session import session_data
    from parabench.imports.into_store import results_of
    from parabench.report.views import recorded_pair

    argv = command()
    with results_of(Path(base), argv) as own, results_of(Path(candidate), argv) as new:
        found = recorded_pair.Pair(session_data(own), session_data(new), argv)
        renders = {
            "--markdown": lambda: recorded_pair.to_markdown(found),
            "--html": lambda: recorded_pair.render(found),
        }
        give(files, lambda: recorded_pair.answer(found), recorded_pair.lines(found), "comparison", renders)
