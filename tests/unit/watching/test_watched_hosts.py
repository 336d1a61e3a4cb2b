"""The hosts of a watched loop, from what each rank reports: cores, environments, and results by node."""

from __future__ import annotations

from typing import Any

from parabench.launch.outcome import diagnose
from parabench.launch.processes import ProcessOutcome
from parabench.launch.results import MarkLayout, NodeResult, RankReport
from parabench.store.record import Status
from parabench.watching.group import cores_of, node_records
from parabench.watching.record import group_by_node


def bound(*cores: int, limit: float | None = None, **environment: Any) -> dict[str, Any]:
    return {
        "cores": list(cores),
        "core_limit": limit,
        "environment": environment,
        "devices_reason": None,
    }


def test_hosts_cores_are_those_of_all_ranks():
    assert cores_of([bound(0, 1), bound(2, 3)]) == 4
    assert cores_of([bound(0, 1), bound(0, 1)]) == 2
    assert cores_of([bound(0, 1, limit=1.5), bound(2, 3, limit=1.5)]) == 2
    # mpirun binds each rank to one core; the record of a host has the cores of all its ranks.
    hosts = [[bound(0), bound(1)], [bound(4, host="b", cores=1), bound(6)]]
    assert node_records(hosts) == [{"node": 0}, {"node": 1, "host": "b", "cores": 2}]
    assert node_records(hosts[:1]) == []


def part(rank: int, lost: str | None = None) -> NodeResult:
    layout = MarkLayout(columns=5, moments=5, rows=3, position=str)
    of = NodeResult.silent(rank // 2, f"host{rank // 2}", range(rank, rank + 1), layout, lost=lost)
    if lost is None:
        of.outcome, of.reports, of.tails = ProcessOutcome(ok=True), [RankReport(rank=rank)], []
        of.began_s = 10.0 + rank
    return of


def test_group_by_node_joins_results_of_ranks():
    first, second = group_by_node([part(rank) for rank in range(4)], 2)
    assert (first.node, list(first.ranks), first.began_s, first.outcome) == (0, [0, 1], 10.0, ProcessOutcome(ok=True))
    assert (second.node, list(second.ranks), second.host) == (1, [2, 3], "host1")
    assert diagnose([first, second], str, 60.0) == (Status.OK, None)
    # Nothing is known of a lost rank, its clock included.
    (node,) = group_by_node([part(2, lost="rank 2 is lost"), part(3)], 2)
    assert (node.began_s, node.outcome, node.tails) == (13.0, ProcessOutcome(ok=False), ["", ""])
