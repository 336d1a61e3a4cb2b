"""The optional first step of a session: what lies between its ranks is measured, kept, and said in a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from parabench.case import Case
from parabench.machine import Machine
from parabench.opened import Opened
from parabench.store import Store, load

if TYPE_CHECKING:  # it brings torch
    from parabench.cluster.crew import Crew


def measure_links(
    store: Store, opened: Opened[Any, Any], machine: Machine, crew: Crew | None, say: Callable[[str], None]
) -> None:
    """Measure the links of a session that has begun, and has none yet; `say` tells the user a line.

    What cannot be measured is kept as unknown, with its reason, and the session goes on. Raises Interrupted when it is
    asked to stop, NodeGone when a node of the `crew` does not come back.
    """
    from parabench.analysis.links import link_table, tiers_of, tiers_said
    from parabench.analysis.session import select_session
    from parabench.links.measure import measure
    from parabench.links.protocol import LinkProtocol

    if bool(_links_of(store, opened.session_id)["bytes_per_s"].notna().any()):
        return
    case = case_of(opened.plan.cases, machine)
    if case.world_size < 2:
        say("links: none to measure, every case has one rank")
        return
    say(f"links: measuring them between {case.world_size} ranks")
    rows = measure(case, LinkProtocol(), crew=crew)
    store.add_links(opened.session_id, rows)
    results = load(store.path)
    reason = next((row.reason for row in rows if row.reason is not None), None)
    said = tiers_said(tiers_of(link_table(results, select_session(results, opened.session_id))))
    say(f"links: {said or 'unknown'}" + (f"; not all could be measured: {reason}" if reason is not None else ""))


def case_of(cases: tuple[Any, ...], machine: Machine) -> Case:
    """What is launched to measure: as many ranks as a node has or is to have, on all nodes; where nobody said how many,
    as many as the machine has devices, or its largest case ranks. Device and backend are the largest case's."""
    largest = max(cases, key=lambda case: (case.nodes, case.world_size))
    ranks = machine.ranks_per_node or max(
        len(machine.gpus) if largest.device == "cuda" else 0, largest.world_size // largest.nodes
    )
    # NCCL takes one rank a device.
    ranks = min(ranks, len(machine.gpus)) if largest.backend == "nccl" else ranks
    return Case(
        world_size=machine.nodes * ranks, nodes=machine.nodes, device=largest.device, backend=largest.backend
    )  # fmt: skip


def _links_of(store: Store, session_id: int) -> Any:
    links = load(store.path).links
    return links[links["session_id"] == session_id]
