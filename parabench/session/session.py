"""Run sessions, from a request to a results database and a report.

A wrong request raises an error before anything is launched.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from rich.console import Console

from parabench import json_text
from parabench.analysis import format
from parabench.analysis.collectives import crossover, nccl_tests
from parabench.analysis.ranking.best import best, closing_lines
from parabench.analysis.ranking.race import next_seconds, undecided
from parabench.analysis.session import session_data
from parabench.analysis.stats.contrasts import MOST_REPETITIONS, SHARP_ENOUGH
from parabench.cluster.topology import Participants, join_cluster, topology_of
from parabench.errors import NodeGone, UsageError
from parabench.files import STANDARD_OUTPUT, is_special, write_whole
from parabench.machine.machine import Machine, this_machine
from parabench.plan.plan import C, P, Plan
from parabench.report import build
from parabench.session.links import measure_links
from parabench.session.progress import logger, make_progress, outcome, skipped_lines, trial_lines, warner
from parabench.session.request import Planned, Request
from parabench.session.resume import (
    REPORT_NAME,
    SessionState,
    begin_session,
    check_nodes_of,
    check_traces,
    check_writable,
    left_of,
    resume,
    resume_command,
    store_in,
    with_resume,
)
from parabench.session.runner import Executor, Runner, peak_metric
from parabench.signals import STOPPED, Interrupted, stop_signals
from parabench.store.database import StoreError
from parabench.store.record import FIRST_REPETITION, TRACES, Launch, Status
from parabench.store.results import load
from parabench.store.store import STORE_NAME, Store

NOT_OK = 1


def run_sessions(request: Request, console: Console) -> int:
    """Run the sessions of the request, and return the highest exit code. After a stop, no further session runs.

    Raises UsageError.
    """
    code = 0
    parts = left_of(request)
    if len(parts) > 1:
        check_outputs(request)  # only the last session writes them
    if parts[0].part_of is not None and topology_of(request.cluster, this_machine(), rendezvous=False):
        raise UsageError(
            f"suite {parts[0].part_of} takes several sessions, which run on one machine; start it without "
            "--nnodes, and measure several nodes with parabench collectives and with other suites, into the same --out"
        )
    for part in parts:
        code = max(code, run_session(part, console))
        if code == STOPPED:
            break
    return code


def run_session(request: Request, console: Console, launch: Executor | None = None) -> int:
    """Run one session and return the exit code. `launch` replaces real processes in tests.

    Raises UsageError before anything is launched or recorded.
    """
    log, warn = logger(console, request.prefix), warner(console, request.prefix)
    machine = this_machine()
    topology = topology_of(request.cluster, machine)
    if topology is not None:
        machine = replace(machine, nodes=topology.nodes, ranks_per_node=topology.ranks_per_node)
    planned = request.plan(machine)
    nodes = join_cluster(topology, request.words(), planned.file if planned else None, machine, request.out, log)
    if isinstance(nodes, int):
        return nodes
    try:
        with nodes:
            code, session_id = lead_session(request, planned, machine, nodes, console, launch)
            nodes.end(code)
    except Interrupted as stop:
        warn(f"stopped by {stop}; nothing was launched yet")
        return STOPPED
    if code == STOPPED:
        return code
    folder = shlex.quote(str(request.out))
    try:
        with stop_signals():
            conclude(request, session_id, console)
    except Interrupted as stop:
        warn(f"stopped by {stop}; all is stored, write the report with: parabench report {folder}")
        return STOPPED
    except UsageError as error:
        again = f"parabench report {folder} -o FILE"
        raise UsageError(f"{error}; all is stored, write the report with: {again}") from error
    finally:
        # The last line is the most important one.
        if nodes.over is not None:
            warn(nodes.over)
    return code


def lead_session(
    request: Request,
    planned: Planned[Any, Any] | None,
    machine: Machine,
    nodes: Participants,
    console: Console,
    launch: Executor | None = None,
) -> tuple[int, int]:
    """Run the planned launches and store them. Return the exit code and the session's id.

    If `planned` is None, the stored plan of a resumed session is run.
    """
    log = logger(console, request.prefix)
    check_outputs(request)
    plan = planned.plan if planned is not None else None
    if plan is not None:
        request.adding_s(plan)  # raises before anything is written
        check_traces(request.out, plan.protocol)
    go_on = ""
    try:
        with store_in(request.out, resumes=request.resume) as store:
            state: SessionState[Any, Any]
            if request.resume:
                state = resume(store, plan, request.kind, label=request.label)
                check_nodes_of(state.plan, machine)
                check_traces(request.out, state.plan.protocol)
                nodes.assemble(state.plan.cases)
            else:
                assert planned is not None
                nodes.assemble(planned.plan.cases)
                state = begin_session(store, request, planned, machine, nodes=nodes.environments)
                for line in [*(finding.message for finding in planned.findings), *trial_lines(planned.plan.cases)]:
                    log(line)
            adding_s = request.adding_s(state.plan)
            go_on = _resume_command(request, store, nodes)

            def prepared() -> Runner:
                runner = runner_of(store, state, launch, nodes)
                runner.room = machine.room
                if request.links:
                    measure_links(store, state, machine, log, runner.launch)
                return runner

            try:
                code = run_launches(store, state, prepared, adding_s, console, request.prefix, go_on)
            except NodeGone as why:
                nodes.over, code = str(why), NOT_OK
    except StoreError as error:
        if not go_on:
            again = "nothing was launched; give the command again, or another --out"
            raise UsageError(f"the run cannot begin: {error}; {again}") from error
        raise UsageError(f"the run does not end well: {error}; every launch is kept; go on with: {go_on}") from error
    return code, state.session_id


def _resume_command(request: Request, store: Store, nodes: Participants) -> str:
    """Return the command that resumes the session, and runs the later sessions of its suite."""
    if request.part_of is not None:
        return shlex.join(with_resume(request.argv))
    options = ["--until-decided"] * request.until_decided
    options += [] if request.budget is None else ["--budget", f"{request.budget:g}"]
    options += [*nodes.options, *["--links"] * request.links]
    options += [] if request.json_file is None else ["--json", str(request.json_file)]
    return resume_command(store.path, request.kind, *options)


def run_launches(
    store: Store,
    state: SessionState[Any, Any],
    prepared: Callable[[], Runner],
    adding_s: float | None,
    console: Console,
    prefix: str,
    go_on: str,
) -> int:
    """Run the remaining launches of a session and the repetitions that racing adds. Return the exit code.

    Args:
        prepared: creates the runner, before the first launch.
        adding_s: the time limit for added repetitions in seconds; None adds none.
        go_on: the command that resumes the session.

    Raises NodeGone, with that command, if the session cannot go on without a node.
    """
    resume_with = f"every finished launch is kept; resume with: {go_on}"
    log = logger(console, prefix)
    for line in skipped_lines(state.plan.skipped):
        log(line)
    if state.done:
        total = len(state.plan.launches())
        log(f"resuming: {total - len(state.plan.launches(state.done))} of {total} launches are done")
    runner: Runner | None = None
    began, ran = time.monotonic(), False
    plan: Plan[Any, Any] | None = state.plan
    try:
        with stop_signals():
            while plan is not None:
                done = store.launches_done(state.session_id)
                if left := plan.launches(done):
                    total = sum(1 for _ in Runner(plan=plan).launches_of(left))
                    repetitions = None if plan.protocol.races else plan.repetitions
                    with make_progress(console, total, repetitions, prefix) as progress:
                        runner = runner or prepared()
                        runner.plan, runner.done, runner.progress = plan, done, progress
                        runner.run()
                        plan = runner.plan
                store.finish_session(state.session_id)
                ran = bool(plan.cases)
                if adding_s is None or not ran:
                    break
                spent_s = time.monotonic() - began
                plan = next_repetition(store, state.session_id, plan, adding_s, spent_s, log, go_on)
    except Interrupted as stop:
        warner(console, prefix)(f"stopped by {stop}; {resume_with}")
        return STOPPED
    except NodeGone as why:
        raise NodeGone(f"the session ends here: {why}; {resume_with}") from why
    except (StoreError, OSError) as error:
        # The machine failed, not the case: for example, a disk is full.
        raise UsageError(f"the run cannot go on: {error}; {resume_with}") from error
    return 0 if store.all_ok(state.session_id) and ran else NOT_OK


def next_repetition(
    store: Store,
    session_id: int,
    plan: Plan[C, P],
    adding_s: float,
    spent_s: float,
    log: Callable[[str], None],
    go_on: str,
) -> Plan[C, P] | None:
    """Return `plan` with another repetition of the cases that may still be the fastest, and store it.

    `adding_s` is the time limit in seconds, and `spent_s` the time since the start. Return None in these cases:

    - The winner is clear.
    - The repetition would end after the limit.
    - Without a limit, the noise is too large. The command `go_on` is logged, which continues anyway.
    """
    launches = session_data(load(store.path), session_id).numbers
    left, half_width, too_noisy = undecided(launches, plan.protocol.races, patient=math.isfinite(adding_s))
    if too_noisy:
        hardly = f"{MOST_REPETITIONS} repetitions would hardly resolve {100 * SHARP_ENOUGH:g}%"
        minutes = (MOST_REPETITIONS - plan.repetitions) * next_seconds(launches, launches["case"].unique()) / 60
        log(f"too noisy: {hardly}; go on anyway with: {go_on} --budget {max(1, math.ceil(minutes))}")
    if not left:
        return None
    within = "" if half_width is None else f", {format.within(half_width)}"
    standing = f"{len(left)} of {len(plan.cases)} configurations remain{within}"
    if spent_s + next_seconds(launches, left) > adding_s:
        log(f"{standing}: racing ends after {format.duration(adding_s)}")
        return None
    log(standing)
    plan = plan.replace(extra=(*plan.extra, tuple(case.id for case in plan.cases if case.id in left)))
    store.replan(session_id, plan.to_dict())
    return plan


def runner_of(
    store: Store, state: SessionState[Any, Any], launch: Executor | None, nodes: Participants | None = None
) -> Runner:
    """Return the runner of a stored session, which launches on the `nodes`, or with `launch` if it is given."""
    nodes = nodes or Participants()

    def keep(launch: Launch) -> None:
        store.append(state.session_id, launch)
        nodes.show(f"{launch.case.label}: {outcome(launch)}")

    return Runner(
        plan=state.plan,
        launch=launch or nodes.executor(),
        keep=keep,
        replan=lambda changed: store.replan(state.session_id, changed.to_dict()),
        done=state.done,
        references=dict(state.references),
        **_earlier_results(store, state),
        traces=store.path.parent / TRACES,
    )


def _earlier_results(store: Store, state: SessionState[Any, Any]) -> dict[str, Any]:
    """Return keywords for `Runner`: results of earlier launches that decide which cases share the next launches."""
    if not (state.done and state.plan.protocol.takes_turns):
        return {}
    results = load(store.path).of([state.session_id])
    launches = results.launch[results.launch["repetition"] >= FIRST_REPETITION]
    failed = set(launches.loc[launches["status"] != Status.OK, "case_id"])
    if state.plan.kind != "training":
        return {"failed": failed}
    data = session_data(results, state.session_id)
    # The peak memory of each rank in the first repetition, by case id.
    first = data.numbers[data.numbers["repetition"] == FIRST_REPETITION].set_index("launch_id")
    whole = data.results.whole.join(first[["case", "device"]], on="launch_id", how="inner")
    known = whole[(whole["metric"] == whole["device"].map(peak_metric)) & (whole["value"] > 0)]
    peaks = {str(case): values.tolist() for case, values in known.groupby("case")["value"]}
    return {"step_times": dict(data.step_times), "failed": failed, "peaks": peaks}


def conclude(request: Request, session_id: int, console: Console) -> None:
    """Write the report, print the answers and the paths, and write the results to the file of --json."""
    if request.part_of is not None and request.kind != "training":
        return  # the last session of the suite has the answers
    results, log = load(request.out / STORE_NAME), logger(console, request.prefix)
    data = session_data(results, session_id)
    # `bare` lines have no prefix, because other tools read them. `written` returns the JSON of nccl-tests, or of
    # `parabench best --json`.
    bare: Iterable[str] = ()
    if request.kind == "collectives":
        bare = nccl_tests.table_lines(results, data.session)
        lines = list(crossover.answer(data).sentences)

        def written() -> str:
            return json_text.written(nccl_tests.results_json(results, data.session))
    else:
        lines = closing_lines(data)

        def written() -> str:
            return best(data).to_json("best")

    # A quiet console prints no answers if they go to --json.
    no_file = request.json_file is None
    for line in bare:
        logger(console, answers=no_file)(line)
    report = build.write_report(results, results.path.with_name(REPORT_NAME), str(session_id))
    for line in lines:
        logger(console, request.prefix, answers=no_file)(line)
    log(f"store:  {results.path}")
    log(f"report: {report}")
    if request.json_file is None:
        return
    text = written()
    if request.json_file == STANDARD_OUTPUT:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    write_whole(request.json_file, text, "results file", "give another file for --json")
    log(f"json:   {request.json_file}")


def check_outputs(request: Request) -> None:
    """Raise UsageError if the file for --json could not be written at the end of the run."""
    path = request.json_file
    if path is None or path == STANDARD_OUTPUT:
        return
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give a file for --json")
    if path.resolve() in [(request.out / name).resolve() for name in (REPORT_NAME, STORE_NAME)]:
        raise UsageError(f"{path} is this run's results database or report; give another file for --json")
    if not is_special(path):
        check_writable(path.resolve().parent, "folder", "--json")
    elif not os.access(path, os.W_OK):
        raise UsageError(f"{path} cannot be written; give another file for --json")
