"""Measurements of real links between ranks of one machine; test_nodes.py has limited links between hosts."""

from pathlib import Path

import numpy as np

from guard import GUARD_S
from hang_helpers import pass_when
from parabench import files
from parabench.launch.launcher import launch
from parabench.launch.results import marks_path
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.links import LATENCY_QUANTILE, LinkProtocol
from parabench.store.record import MIB, Phase
from parabench.workloads.links import rate

QUICK = LinkProtocol(warmup=2, round_trips=50, most_bytes=4 * MIB, transfers=3)
THREE = Case(world_size=3, device="cpu", backend="gloo")


def measure(protocol):
    seen = launch(LaunchSpec.of(THREE, protocol, GUARD_S))
    return seen.links, seen.messages


def test_three_ranks_measure_all_pairs_both_ways():
    links, messages = measure(QUICK)
    assert [(each.from_rank, each.to_rank) for each in links] == [(1, 2), (2, 1), (0, 2), (2, 0), (0, 1), (1, 0)]
    assert {(each.from_node, each.to_node, each.from_device, each.to_device) for each in links} == {
        (0, 0, "cpu", "cpu")
    }
    assert all(each.latency_s and each.latency_s > 0 for each in links)
    # On a busy machine a round trip may last as long as the largest transfer of so few bytes.
    assert all((each.bytes_per_s or 0) > 0 or each.reason for each in links)
    # The results follow from the measured messages. There is a warm-up message for each requested one, or each size.
    for link in links:
        own = [each for each in messages if (each.from_rank, each.to_rank) == (link.from_rank, link.to_rank)]
        trips, transfers = ([each for each in own if (each.bytes == 8) is small] for small in (True, False))
        assert [each.phase for each in trips] == [Phase.WARMUP] * 2 + [Phase.MEASURE] * 50
        counted = [each.duration_s for each in trips if each.phase == Phase.MEASURE]
        assert link.latency_s == np.quantile(counted, LATENCY_QUANTILE["cpu"]) / 2
        sizes = [each.bytes for each in transfers]
        assert sizes == sorted(sizes)
        took = [each.duration_s for each in transfers if each.phase == Phase.MEASURE]
        assert {each.bytes for each in transfers if each.phase == Phase.MEASURE} == {sizes[-1]}
        assert link.bytes_per_s is None or link.bytes_per_s == rate(sizes[-1], took, link.latency_s)


def test_links_before_a_hang_are_kept(monkeypatch):
    slow = LinkProtocol(round_trips=50, transfers=10**6, most_s=10**6)
    # Rank 1 is the first to send. It writes its latency before it sends without end.
    marks = files.own_folder()
    pass_when(monkeypatch, lambda _: any(np.fromfile(each)[1] > 0 for each in marks.glob(f"*/{marks_path(Path(), 1)}")))
    links, messages = measure(slow)
    assert messages == []
    assert all(
        each.bytes_per_s is None and each.reason and each.reason.startswith(f"hung: no end after {GUARD_S:g} s")
        for each in links
    )
    # The first sender had its latency before it hung.
    assert links[0].latency_s is not None
    assert links[-1].latency_s is None
    assert "ranks 1 and 2" in str(links[0].reason)
