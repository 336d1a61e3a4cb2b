"""`parabench compare`: the gate, and the comparison of machines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parabench.commands.options import between_sessions, check_no_effect, command, complete_stores, gate_options, shared
from parabench.commands.output import Command, Files, file_option, files_in, give

if TYPE_CHECKING:
    from parabench.analysis.answer import Answer

# The files of a comparison.
OUTPUTS = (
    file_option("json", "Write JSON (docs/reference/json.md)."),
    file_option("junit", "Write JUnit XML: a test for each configuration."),
    file_option("markdown", "Write Markdown, for a job summary or a comment."),
    file_option("html", "Write a page with figures."),
)


@click.command(
    cls=Command,
    examples={
        "Did a run get slower?": "parabench compare base new --tolerance 2%",
        "The verdict for a pull request and for a test report:": (
            "parabench compare base new --markdown verdict.md --junit junit.xml"
        ),
        "What changed between two folders of profiler traces?": "parabench compare --from traces-before traces-after",
        "How do two machines compare?": "parabench compare old.db new.db --across-hardware",
    },
)
@click.argument("base", shell_complete=complete_stores)
@click.argument("candidate", shell_complete=complete_stores)
@shared(*gate_options, between_sessions)
@click.option("--changed", multiple=True, metavar="NAME", help="A fact that differs on purpose, such as torch.")
@click.option("--across-hardware", is_flag=True, help="Compare machines: ratios and their mean, no verdict.")
@click.option("--from", "recorded", is_flag=True, help="Compare two folders of profiler traces; no verdict.")
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
    """Did CANDIDATE get slower than BASE? Each is a results database, or STORE@SESSION by id or label.

    Exit codes: 0 no regression (slowdowns beyond the tolerance are ruled out in every configuration), 1 regression,
    3 inconclusive. With --across-hardware or --from, the exit code is 0. The file - is standard output, and nothing
    else is printed then.
    """
    from parabench.analysis.compare import gate, machines
    from parabench.analysis.compare.sides import read_sides
    from parabench.report.views import comparison

    gates = ("tolerance", "alpha", "between_sessions", "changed", "junit_file")
    if recorded:
        check_no_effect("--from", (*gates, "across_hardware"))
    elif across_hardware:
        check_no_effect("--across-hardware", gates)
    files = files_in(options)
    if recorded:
        from parabench.analysis.compare import recordings
        from parabench.analysis.session import session_data
        from parabench.imports.into_store import results_of

        argv = command()
        with results_of(Path(base), argv) as own, results_of(Path(candidate), argv) as new:
            answer = recordings.answer(session_data(own), session_data(new))
        view = comparison.recordings_view(answer, argv)
    elif across_hardware:
        sides = read_sides(base, candidate)
        answer = machines.answer(machines.compared(*sides))
        view = comparison.machines_view(sides, answer)
    else:
        answer = gate.compare(*read_sides(base, candidate), tolerance, alpha, changed, allowance=between_sessions)
        give_gate(files, answer, gate.lines(answer))
        raise SystemExit(gate.exit_code(answer))
    give(files, lambda: answer, view.lines(), "comparison", {"--markdown": view.markdown, "--html": view.html})


def give_gate(files: Files, answer: Answer, lines: Iterable[str]) -> None:
    """Print the lines of a gate, and write its files."""
    from parabench.analysis import format
    from parabench.report.views import junit
    from parabench.report.views.comparison import gate_view

    renders = {
        "--junit": lambda: junit.render(answer),
        "--markdown": lambda: gate_view(answer).markdown(),
        "--html": lambda: gate_view(answer).html(),
    }
    give(files, lambda: answer, map(format.one_line, lines), "comparison", renders)
