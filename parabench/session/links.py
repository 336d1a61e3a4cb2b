"""The optional first step of a session: measure and store the links between its ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parabench.analysis.links import check_links, link_table, tiers_of, tiers_text
from parabench.analysis.session import select_session
from parabench.launch.spec import LaunchSpec
from parabench.machine import accelerator
from parabench.machine.machine import Machine
from parabench.plan.case import Case
from parabench.plan.links import TOO_QUICK, LinkProtocol, most_s
from parabench.session.resume import SessionState
from parabench.session.runner import Executor
from parabench.store.results import load
from parabench.store.store import Store


def measure_links(
    store: Store, state: SessionState[Any, Any], machine: Machine, log: Callable[[str], None], launch: Executor
) -> None:
    """Measure and store the links of a session, unless it has all. An unknown link is stored with a reason.

    Raises Interrupted if asked to stop, and NodeGone if a node does not come back.
    """
    # Links that were lost with a node, or in a hang, can be measured again.
    reasons = load(store.path).of([state.session_id]).links["reason"]
    if len(reasons) and (reasons.isna() | (reasons == TOO_QUICK)).all():
        return
    case = case_of_all_ranks(state.plan.cases, machine)
    if case.world_size < 2:
        log("links: none to measure, every configuration has one rank")
        return
    log(f"links: measuring them between {case.world_size} ranks")
    protocol = LinkProtocol()
    launched = launch(LaunchSpec.of(case, protocol, most_s(case, protocol)))
    store.add_links(state.session_id, launched.links, launched.messages)
    results = load(store.path).of([state.session_id])
    links = link_table(results, select_session(results, state.session_id))
    log(f"links: {tiers_text(tiers_of(links)) or 'unknown'}")
    for finding in check_links(links):
        log(f"links: {finding.message}")


def case_of_all_ranks(cases: tuple[Any, ...], machine: Machine) -> Case:
    """Return a case with all ranks of all nodes, and with the device and backend of the largest case.

    By default, a node has a rank for each device, and at least the ranks of the largest case.
    """
    largest = max(cases, key=lambda case: (case.nodes, case.world_size))
    ranks = machine.ranks_per_node or max(
        len(machine.gpus) if largest.device == accelerator.TYPE else 0, largest.world_size // largest.nodes
    )
    # NCCL has one rank per device, unless the user allows more.
    ranks = min(ranks, len(machine.gpus)) if largest.backend == "nccl" and not machine.nccl.may_share else ranks
    return Case(
        world_size=machine.nodes * ranks, nodes=machine.nodes, device=largest.device, backend=largest.backend
    )  # fmt: skip
