"""`parabench worker`: a session of trainings in a group of processes that is there, the store and report at rank 0."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from parabench.analysis.text import format
from parabench.cluster.attached.coordinator import RankCoordinator
from parabench.cluster.attached.environment import ProcessEnvironment, group_of
from parabench.cluster.attached.hosts import machine_of, of_this
from parabench.cluster.attached.join import RankAgent, join_group
from parabench.cluster.fingerprint import facts_of
from parabench.cluster.secret import read_secret
from parabench.collectives.nccl import is_nccls
from parabench.errors import UsageError
from parabench.files import remove_abandoned
from parabench.launch.store_client import StoreLost
from parabench.machine.machine import this_machine
from parabench.plan.case import Case
from parabench.plan.plan import Skipped, TrainingPlan
from parabench.plan.suite import load_suite, parse_axis
from parabench.session.progress import logger, warner
from parabench.session.request import TrainingRequest, plan_training
from parabench.session.session import NOT_OK, conclude, lead_session
from parabench.signals import STOPPED, Interrupted
from parabench.store.record import TRACES
from parabench.strategies import entry_of


def run_worker(request: TrainingRequest, secret_file: str | None, console: Console) -> tuple[int, bool]:
    """Run the request as this process' rank: the exit code, and whether the process is sane enough to end as others do.
    What ranks hand over they sign with the secret in that file, or in the environment.

    Raises UsageError, at rank 0 before anything is recorded.
    """
    log, warn = logger(console), warner(console)
    group = group_of(os.environ)
    group.announce()
    secret = read_secret(secret_file)
    assert request.suite is not None
    suite = load_suite(request.suite)
    machine = this_machine()
    if group.local_rank == 0:
        remove_abandoned()  # of ranks that were killed
    shared = replace(join_group(group, log), secret=secret)
    facts, about = facts_of(request.words(), suite.path), of_this(group, machine)
    if group.rank:
        # Of a host's ranks only the first tells of the host.
        agent = RankAgent(group, {} if group.local_rank else facts, about, request.out / TRACES)
        return agent.follow(shared), agent.sane
    lead = RankCoordinator(shared, group, facts, about, log)
    try:
        with lead:
            said = lead.wait_for_ranks()
            check_asked(request.axes, group)
            here = machine_of(said, machine, group)
            planned = plan_training(request, suite, here, turns=True)
            planned = replace(planned, plan=fitting(planned.plan, group))
            code, session_id = lead_session(request, planned, here, lead, console)
            if code != STOPPED:
                conclude(request, session_id, console)
            if lead.over is not None:
                warn(lead.over)
            lead.end(code)
    except Interrupted as stop:
        warn(f"stopped by {stop}")
        return STOPPED, False
    except StoreLost as why:
        warn(f"the session ends here: {why}; every finished launch is kept")
        return NOT_OK, False
    return code, lead.sane


def fitting(plan: TrainingPlan, group: ProcessEnvironment) -> TrainingPlan:
    """The plan without the cases that these processes cannot run. Raises UsageError when none is left."""
    reasons = {case: exceeds_group(case, group) for case in plan.cases}
    skipped = [Skipped(case, reason) for case, reason in reasons.items() if reason is not None]
    cases = [case for case, reason in reasons.items() if reason is None]
    if not cases:
        raise UsageError(f"nothing to run in this group: {skipped[0].reason}")
    return replace(plan, cases=tuple(cases), skipped=(*plan.skipped, *skipped))


def other_size(group: ProcessEnvironment) -> str:
    """Why a case of another world size than the group's cannot run."""
    return f"the group has {format.count(group.size, 'process')}; use parabench run for other world sizes"


def check_asked(axes: Sequence[str], group: ProcessEnvironment) -> None:
    """Raise UsageError where `axes`, as they are typed, ask for a world size larger than the group, or for none that is
    its own. The planner would speak of nodes, and of sizes that only fresh processes can have."""
    named = dict(text.split("=", 1) for text in axes if "=" in text)
    sizes = [size for size in parse_axis("world_size", named.get("world_size", "auto")) if size != "auto"]
    wrong = next((size for size in sizes if size > group.size or (size > 0 and group.size not in sizes)), None)
    if wrong is not None:
        raise UsageError(f"world_size {wrong} is not this group's: {other_size(group)}")


def exceeds_group(case: Case, group: ProcessEnvironment) -> str | None:
    """Why these processes cannot run the case; None when they can."""
    if case.world_size != group.size:
        return other_size(group)
    if is_nccls(case.algorithm):
        return "NCCL is pinned to an algorithm before a process first uses it, and these are shared; use parabench run"
    if entry_of(case.strategy).package is not None:
        return f"{case.strategy} keeps its first process group as long as its process lives; use parabench run"
    if entry_of(case.strategy).one_process and group.size > 1:
        return f"{case.strategy} drives all devices from one process, and here are {group.size}; use parabench run"
    return None
