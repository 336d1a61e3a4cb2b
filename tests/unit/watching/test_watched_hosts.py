"""The hosts of a watched loop, from the reports of its ranks: cores, environments, and results by node."""

from __future__ import annotations

from typing import Any

import numpy as np

from parabench.launch.outcome import diagnose
from parabench.launch.processes import ProcessOutcome
from parabench.launch.results import RankReport
from parabench.store.record import DeviceSample, HostSample, Status
from parabench.watching.group import Group, cores_of, node_records
from parabench.watching.loop import WIDTH
from parabench.watching.record import RankResult, node_results


def bound(*cores: int, limit: float | None = None, **environment: Any) -> dict[str, Any]:
    return {"cores": list(cores), "core_limit": limit, "environment": environment, "shown": [], "devices_reason": None}


def test_cores_of_host_include_all_ranks():
    assert cores_of([bound(0, 1), bound(2, 3)]) == 4
    assert cores_of([bound(0, 1), bound(0, 1)]) == 2
    assert cores_of([bound(0, 1, limit=1.5), bound(2, 3, limit=1.5)]) == 2
    # mpirun binds each rank to one core; the record of a host has the cores of all its ranks.
    hosts = [[bound(0), bound(1)], [bound(4, host="b", cores=1), bound(6)]]
    assert node_records(hosts) == [{"node": 0}, {"node": 1, "host": "b", "cores": 2}]
    assert node_records(hosts[:1]) == []


def found_of(rank: int, began_s: float, **unread: str) -> RankResult:
    return RankResult(
        report=RankReport(rank=rank),
        marks=np.zeros((3, WIDTH)),
        began_s=began_s,
        about={},
        stopped=False,
        device_samples=[DeviceSample(rank, 1.0, "power_w", 5.0)],
        host_samples=[HostSample(rank, 1.0, "rss_bytes", 5.0)],
        sampler={"period_s": 0.1, "ticks": 9, "missed": 0, "cpu_s": 0.25, "unread": unread},
    )


def test_node_results_join_the_ranks_of_each_host() -> None:
    found = [found_of(0, 10.0), found_of(1, 10.5, nvml="gone"), found_of(2, 1.0), found_of(3, 1.0)]
    first, second = node_results(Group(None, 0, ("a", "a", "b", "b")), found, 1.0)
    assert (first.node, list(first.ranks), first.began_s, first.outcome) == (0, [0, 1], 10.0, ProcessOutcome(ok=True))
    assert (second.node, list(second.ranks), second.host) == (1, [2, 3], "b")
    # Times of readings count from the first rank of their host.
    assert [(each.device, each.t_s) for each in first.device_samples] == [(0, 1.0), (1, 1.5)]
    assert [(each.rank, each.t_s) for each in first.host_samples] == [(0, 1.0), (1, 1.5)]
    assert (first.sampler["cpu_s"], first.sampler["unread"]) == (0.5, {"nvml": "gone"})
    assert diagnose([first, second], str, 60.0) == (Status.OK, None)


def test_node_results_name_the_lost_rank() -> None:
    (node,) = node_results(Group(None, 0, ("a", "a")), [found_of(0, 10.0), None], 4.8)
    assert (node.began_s, node.outcome, node.tails) == (10.0, ProcessOutcome(ok=False), ["", ""])
    status, failure = diagnose([node], str, 60.0)
    assert status is Status.CRASHED
    assert failure is not None
    assert failure.message == "rank 1 (a) sent no results within 5 s of rank 0's end"
