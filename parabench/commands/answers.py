"""`parabench best`, `compare` and `history`: answers from the sessions in results databases."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parabench.analysis import format
from parabench.commands.options import (
    between_sessions,
    check_no_effect,
    command,
    complete_stores,
    gate_options,
    shared,
    store_argument,
)
from parabench.commands.output import Command, Files, Name, file_option, files_in, give
from parabench.errors import UsageError
from parabench.plan.case import RecordedCase

if TYPE_CHECKING:
    from parabench.analysis.answer import Answer

# The files of a comparison.
OUTPUTS = (
    file_option("json", "Write JSON (docs/reference/json.md)."),
    file_option("junit", "Write JUnit XML: a test for each configuration."),
    file_option("markdown", "Write Markdown, for a job summary or a comment."),
    file_option("html", "Write a page with figures."),
)

# The formats of --since.
DATES = ("%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S")


@click.command(
    cls=Command,
    examples={
        "What was fastest in the newest session?": "parabench best",
        "Which configuration of a session needs the least memory?": "parabench best results@nightly --objective memory",
        "What is fastest at each number of ranks, for a script?": "parabench best results --by world_size --json -",
    },
)
@store_argument
@click.option(
    "--objective",
    type=Name(["step_time_s", "tokens_per_s", "memory", "joules"]),
    default="step_time_s",
    show_default=True,
    help="What to rank by: step time, throughput, peak memory per rank, or energy per token.",
)
@click.option("--by", multiple=True, metavar="AXIS,...", help="Also the best for each value of these axes.")
@file_option("json", "Write JSON (docs/reference/json.md).")
def best(store: str, objective: str, by: tuple[str, ...], **options: Any) -> None:
    """Show the fastest configuration in STORE, or STORE@SESSION by id or label, and its uncertainty.

    STORE is a results database, by default parabench-results.
    """
    from parabench.analysis.numbers import LAUNCH_NUMBERS
    from parabench.analysis.ranking import best as ranking
    from parabench.analysis.ranking.objectives import OBJECTIVES
    from parabench.analysis.session import data_of, select_session, split
    from parabench.store.results import load

    files, axes = files_in(options), tuple(name.strip() for text in by for name in text.split(","))
    path, session = split(store)
    # Power and energy of devices are read ten times a second, so only for the objective that needs them.
    only = LAUNCH_NUMBERS if objective == "joules" else LAUNCH_NUMBERS | {"device_sample": "metric = 'used_bytes'"}
    results = load(path, only)
    chosen = select_session(results, session)
    if results.of([chosen.id]).launch.empty:
        raise UsageError(f"{chosen.name} has no launch yet; wait for the first, or name another: {path}@SESSION")
    if chosen.kind == RecordedCase.kind:
        chosen.require("training", path)
    if chosen.kind == "collectives":
        from parabench.analysis.collectives import crossover

        if axes or objective != "step_time_s":
            raise UsageError(
                f"{chosen.name} measured collectives, which have no --objective and no --by; "
                f"give neither, or name one that trained: {path}@SESSION"
            )
        answer = crossover.answer(data_of(results, chosen))
        lines = list(answer.sentences)
    else:
        answer = ranking.best(data_of(results, chosen), OBJECTIVES[objective], axes)
        lines = ranking.lines(answer)
    give(files, lambda: answer, lines, "answer")


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
    from parabench.analysis.compare.comparison import compared
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
        answer = machines.answer(compared(*sides))
        view = comparison.machines_view(sides, answer)
    else:
        answer = gate.compare(*read_sides(base, candidate), tolerance, alpha, changed, allowance=between_sessions)
        give_gate(files, answer, gate.lines(answer))
        raise SystemExit(gate.exit_code(answer))
    give(files, lambda: answer, view.lines(), "comparison", {"--markdown": view.markdown, "--html": view.html})


def give_gate(files: Files, answer: Answer, lines: Iterable[str]) -> None:
    """Print the lines of a gate, and write its files."""
    from parabench.report.views import comparison, junit

    renders = {
        "--junit": lambda: junit.render(answer),
        "--markdown": lambda: comparison.gate_view(answer).markdown(),
        "--html": lambda: comparison.gate_view(answer).html(),
    }
    give(files, lambda: answer, map(format.one_line, lines), "comparison", renders)


@click.command(
    cls=Command,
    examples={
        "When did a configuration get slower?": "parabench history nightly.db",
        "Over several databases, as a page:": "parabench history monday.db tuesday.db --html history.html",
        "All ring configurations of this year, for a script:": (
            "parabench history nightly.db --case ring --since 2026-01-01 --all --json -"
        ),
    },
)
@click.argument("stores", metavar="STORE...", nargs=-1, required=True, shell_complete=complete_stores)
@click.option(
    "--case", metavar="TEXT", help="Only configurations whose label contains TEXT, or whose id begins with it."
)
@click.option("--suite", metavar="NAME", help="Only sessions of this suite.")
@click.option(
    "--since",
    metavar="DATE",
    help="Only sessions that started then or later, in UTC: 2026-01-31, or 2026-01-31T14:05:00.",
)
@click.option("--all", "every", is_flag=True, help="List the configurations that did not change, too.")
@file_option("json", "Write JSON (docs/reference/json.md).")
@file_option("html", "Write a page with figures.")
def history(
    stores: tuple[str, ...], case: str | None, suite: str | None, since: str | None, every: bool, **options: Any
) -> None:
    """Show the step time of each configuration over the sessions of one or more STOREs, and when it changed."""
    from parabench.analysis import history as follow
    from parabench.analysis.numbers import STEP_TIMES
    from parabench.analysis.session import split
    from parabench.store.results import load

    files = files_in(options)
    start = None if since is None else _date(since)
    paths = []
    for store in stores:
        path, session = split(store)
        if session is not None:
            raise UsageError(
                f"{store}: a history includes all sessions of a results database; give {path}, with --since for fewer"
            )
        paths.append(path)
    read = [load(path, STEP_TIMES) for path in dict.fromkeys(paths)]
    outcome = follow.history(read, case=case, suite=suite, since=start)

    def page() -> str:
        from parabench.report.sections.history import render  # imports jinja2

        return render(outcome)

    give(files, lambda: follow.answer(outcome), follow.lines(outcome, every), "history", {"--html": page})


def _date(text: str) -> str:
    """Return the date of --since as YYYY-MM-DDTHH:MM:SS. Raises UsageError for another text."""
    for layout in DATES:
        with suppress(ValueError):
            return datetime.strptime(text, layout).isoformat()
    raise UsageError(f"--since {text!r} is not a date; write it as 2026-01-31 or 2026-01-31T14:05:00")
