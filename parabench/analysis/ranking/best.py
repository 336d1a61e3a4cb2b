"""Answer which configuration is the fastest, and how certain that is, for `parabench best` and the end of a run."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence

from parabench.analysis import format
from parabench.analysis.answer import Answer, Row, tables
from parabench.analysis.carry_over import carry_over, noise_floor
from parabench.analysis.carry_over import sentence as carried_over
from parabench.analysis.environment.nodes import cluster_options
from parabench.analysis.links import explained, link_table, tiers_of
from parabench.analysis.memory import case_states, compared
from parabench.analysis.ranking import TABLES, ranked
from parabench.analysis.ranking.objectives import OBJECTIVES, STEP, TIMED, Objective, require
from parabench.analysis.ranking.race import Rows, undecided
from parabench.analysis.ranking.sentences import headed, number, placed
from parabench.analysis.scaling import scaling_lines
from parabench.analysis.session import SessionData
from parabench.analysis.stats.contrasts import MOST_REPETITIONS
from parabench.analysis.step import summary
from parabench.analysis.warnings import all_findings
from parabench.errors import UsageError, did_you_mean
from parabench.plan.case import DEFAULTS
from parabench.store.record import MEASURED_ON_CPU, WATCHED, Finding
from parabench.store.results import known_records
from parabench.store.store import STORE_NAME

# The budget of the proposed command if deciding looks hopeless and fewer candidates would help.
NARROWING_MIN = 30


def best(
    seen: SessionData,
    objective: Objective = STEP,
    by: Sequence[str] = (),
    computed: Sequence[Finding] = (),
    *,
    instrumented: bool = False,
) -> Answer:
    """Return which configuration of each workload is the best, and how certain that is.

    For step times, the sentences include scaling, model states, and the command that would settle open comparisons.

    Args:
        seen: A session of training runs.
        objective: The number to rank by.
        by: Axes for the table `by`, which has the best configuration for each of their values.
        computed: Warnings besides the stored ones.
        instrumented: Whether to read instrumented steps, for the communication of a single configuration.

    Raises:
        UsageError: If an axis is unknown, or if the session has no number for the objective.
    """
    for name in by:
        if name not in DEFAULTS:
            hint = did_you_mean(name, DEFAULTS, most=3, cutoff=0.5)
            raise UsageError(f"--by {name!r} is not an axis; {hint}use one of {', '.join(DEFAULTS)}")
    require(seen, objective)
    by_step_time = objective is STEP and not by
    works = seen.once(answered) if by_step_time else answered(seen, objective, list(dict.fromkeys(by)))
    rows = {name: [row for work in works for row in work[name]] for name in TABLES}
    sentences = tuple(_sentences(seen, works, objective, instrumented))
    return Answer(sentences, tables(TABLES, rows), warnings=tuple(all_findings(seen.results, seen.session, computed)))


def answered(seen: SessionData, objective: Objective = STEP, by: Sequence[str] = ()) -> list[Rows]:
    """Return the rows of the answer's tables for each workload.

    If the objective depends on links, and links were measured, they explain the best configuration. The defaults let
    `SessionData.once(answered)` rank by step time.
    """
    works = ranked(seen.numbers, objective, by, seen.cases, seen.session.raced)
    if objective.name not in TIMED or not len(seen.results.read("link", f"session_id = {seen.session.id}")):
        return works
    tiers = tiers_of(link_table(seen.results, seen.session))
    for work in works:
        if work["workloads"][0]["decided"]:
            first, *others = (seen.case(row["case_id"]) for row in placed(work, "best", "tied", "slower"))
            work["workloads"][0]["links"] = explained(first, others, tiers)
    return works


def _sentences(seen: SessionData, works: Sequence[Rows], objective: Objective, instrumented: bool) -> Iterator[str]:
    """Yield the sentences of the answer. If nothing is decided, memory is first, because it has no noise."""
    workloads = [work["workloads"][0] for work in works]
    decided = any(each["decided"] for each in workloads)
    memory = compared(seen.once(case_states)) if objective is STEP else []
    if not decided:
        yield from memory
    for work in works:
        yield from headed(work)
    yield from interleaving_lines(seen, small=False)
    if objective is STEP:
        yield from summary.lines(seen, instrumented=instrumented)
        yield from scaling_lines(seen)
    if decided:
        yield from memory
    for basis in dict.fromkeys(each["basis"] for each in workloads if each["best"] is not None):
        yield f"One number per launch: {basis}. All ± and comparisons are at 95%."
    if objective is STEP:
        yield from (f"{purpose}: {command}" for purpose, command in next_command(seen, works))


def closing_lines(seen: SessionData) -> list[str]:
    """Return the last lines of a run: the sentences of its answer."""
    return _text(best(seen, instrumented=True))


def _text(answer: Answer) -> list[str]:
    """Return the sentences as lines, after the warning that a machine with GPUs was measured on its CPU."""
    on_cpu = [each.message for each in answer.warnings if each.code == MEASURED_ON_CPU]
    return [*on_cpu, *format.in_lines(answer.sentences)]


def by_workload(answer: Answer) -> list[Rows]:
    """Return the rows of each workload of an answer, in the answer's order."""
    found: dict[str, Rows] = {}
    for name in TABLES:
        for row in known_records(answer.tables[name]):
            found.setdefault(row["workload"], {each: [] for each in TABLES})[name].append(row)
    return list(found.values())


def lines(answer: Answer) -> list[str]:
    """Return the lines for a terminal: sentences, then the code of the best and the tables of each workload."""
    parts = [_text(answer)]
    for work in by_workload(answer):
        workload = work["workloads"][0]
        name = f" ({workload['workload']})" if workload["workload"] else ""
        if workload["decided"]:
            (first,) = placed(work, "best")
            title = [f"{first['label']}{name}:"] if name else []
            parts.append([*title, *textwrap.indent(first["code"], "    ").splitlines()])
        if work["by"]:
            title = [f"By {', '.join(work['by'][0]['axes'])}{name}:"] if name else []
            parts.append([*title, *_by_table(work, workload)])
        if len(work["front"]) > 1:
            front = [["configuration", "step", "peak memory", "slower", "less memory"]]
            for at_front, point in enumerate(work["front"]):
                cells = [format.milliseconds(point["step_time_s"]), format.mebibytes(point["peak_memory_bytes"])]
                shares = [format.percent(point[share]) for share in ("slower", "less_memory")]
                front.append([point["label"], *cells, *(shares if at_front else ("–", "–"))])
            parts.append([f"Pareto-optimal in step time and peak memory{name}:", *format.aligned(front)])
    return [line for part in parts for line in (*part, "")][:-1]


def _by_table(work: Rows, workload: Row) -> list[str]:
    """Return the best configuration for each value of the axes of `--by`, as lines of a text table."""
    objective, axes = OBJECTIVES[workload["objective"]], work["by"][0]["axes"]
    candidates = {row["case_id"]: row for row in work["candidates"]}
    rows = [[*axes, "best configuration", objective.head, "slower", "distinguishable", "configurations"]]
    for place in work["by"]:
        if place["case_id"] is None:
            rows.append([*place["names"], f"none ({place['status']})", "–", "–", "–", "0"])
            continue
        own, first = candidates[place["case_id"]], place["case_id"] == workload["best"]
        unknown = "unknown" if not first else "best" if workload["winner"] else "–"
        clear = {True: "yes", False: "no", None: unknown}[place["distinguishable"]]
        slower = "–" if first else format.percent(own["slower"])
        count = str(place["configurations"])
        rows.append([*place["names"], own["label"], number(own, objective), slower, clear, count])
    return format.aligned(rows, texts=len(axes) + 1)


def next_command(seen: SessionData, works: Sequence[Rows], where: str | None = None) -> list[tuple[str, str]]:
    """Return [(purpose, command)] of a command that measures until the winner is clear; empty if it is not needed.

    If that would take more than MOST_REPETITIONS, the command has a budget. Only the newest session of a database can
    be resumed. `where` replaces the folder of the database, in output that other people read.
    """
    results, session = seen.results, seen.session
    newest = session.id == results.listed["id"].max()
    watched = (results.finding["code"] == WATCHED).any()
    if session.interleaved or watched or not newest or results.path.name != STORE_NAME:
        return []
    still, needed = False, 0
    for work in works:
        workload = work["workloads"][0]
        more = workload["more_repetitions"]
        if placed(work, "not_compared") or (placed(work, "tied") and (more is not None or not workload["decided"])):
            still, needed = True, max(needed, 0 if more is None else workload["repetitions"] + more)
    cases, _, too_noisy = undecided(seen.numbers, session.raced)
    if not still or not (cases or too_noisy):
        return []
    far = too_noisy or needed > MOST_REPETITIONS
    budget = ["--budget", f"{NARROWING_MIN:g}"] if far else []
    command = ["parabench", "run", "--resume", "--until-decided", *budget, "--out", where or str(results.path.parent)]
    command += cluster_options(session.environment)
    return [(f"To {'narrow it down' if far else 'settle it'}", shlex.join(command))]


def interleaving_lines(seen: SessionData, *, small: bool = True) -> list[str]:
    """Return a line about the noise floor of shared launches and one about interference, if they were tested.

    Interference that is too small to matter is only included if `small`.
    """
    tested = seen.once(carry_over)
    shown = [carried_over(tested, seen.labels)] if tested and (small or tested.matters) else []
    return [*seen.once(noise_floor), *shown]
