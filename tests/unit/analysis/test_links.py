"""Links: the measured pairs, their tiers, warnings about slow links, and sessions with --links."""

import io
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

import fake_links
import fake_results as fake
from answers_helpers import sweet_spots
from fake_launch import FakeLauncher
from fake_links import rows
from parabench.analysis.links import check_links, explained, link_table, tiers_of, tiers_text
from parabench.analysis.ranking.best import closing_lines
from parabench.analysis.session import session_data
from parabench.launch.results import RankReport
from parabench.machine.accelerator import Gpu
from parabench.machine.machine import Machine
from parabench.plan.case import Case
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.links import TOO_QUICK, all_pairs
from parabench.probes import CaseReport
from parabench.report.build import render
from parabench.session import links as linking
from parabench.session.request import Request
from parabench.session.session import run_session
from parabench.signals import STOPPED
from parabench.store.record import LinkSample
from parabench.store.results import load
from parabench.store.store import Store
from parabench.workloads.links import links, rate

# ---- pairs


@pytest.mark.parametrize("n", [2, 3, 8, 17])
def test_all_pairs_meet_once_in_the_fewest_rounds(n):
    rounds = all_pairs(n)
    assert sorted(itertools.chain(*rounds)) == list(itertools.combinations(range(n), 2))
    assert len(rounds) == n - 1 + n % 2
    for each in rounds:
        assert len({rank for pair in each for rank in pair}) == 2 * len(each)


# ---- measurements


def test_rate_uses_the_best_third_without_latency():
    assert rate(900, [1.0, 9.0, 1.2, 8.0, 7.0, 6.0], 0.05) == pytest.approx(900 / (1.1 - 0.1))
    assert rate(900, [1.0], 0.0) == 900
    assert math.isnan(rate(900, [1.0, 2.0], 0.25))


def test_links_have_a_row_per_direction_with_a_reason():
    case = Case(world_size=2, nodes=2, device="cuda", backend="nccl")
    marks = [np.array([[5.0, 1e-6, 2e9]]), np.array([[5.0, 3e-6, math.nan]])]
    reports = [RankReport(rank=0, cases=[CaseReport(device="cuda:0")]), RankReport(rank=1, reported=False)]
    there, back = links(case, marks, reports, "hung: no end")
    assert there == LinkSample(0, 1, 0, 1, "cuda:0", "cuda", 1e-6, 2e9, None)
    assert back == LinkSample(1, 0, 1, 0, "cuda", "cuda:0", 3e-6, None, "hung: no end")
    assert [row.reason for row in links(case, marks, reports, None)] == [None, TOO_QUICK]


def test_link_launch_has_the_ranks_of_a_node_or_its_devices():
    gpus = tuple(Gpu("GPU", None, i) for i in range(8))
    small, large = Case(world_size=2, device="cpu", backend="gloo"), Case(world_size=4, device="cpu", backend="gloo")
    cuda = Case(world_size=2, device="cuda", backend="nccl")

    def grid(cases, machine):
        case = linking.case_of_all_ranks(cases, machine)
        return case.world_size, case.nodes, case.device, case.backend

    assert grid((small, large), Machine(cores=2)) == (4, 1, "cpu", "gloo")
    assert grid((small,), Machine(cores=2, nodes=3, ranks_per_node=5)) == (15, 3, "cpu", "gloo")
    assert grid((cuda,), Machine(cores=2, gpus=gpus)) == (8, 1, "cuda", "nccl")
    # NCCL needs one device per rank.
    assert grid((cuda,), Machine(cores=2, gpus=gpus[:4], nodes=2, ranks_per_node=8)) == (8, 2, "cuda", "nccl")
    of_collectives = CollectiveCase(op="all_reduce", algorithm="ring", world_size=4, device="cpu", backend="gloo")
    assert grid((of_collectives,), Machine(cores=2)) == (4, 1, "cpu", "gloo")


# ---- tiers


def found(links):
    return [f"{each.code}: {each.message}" for each in check_links(table(links))]


def table(links):
    return link_table(SimpleNamespace(links=fake_links.table(links)), SimpleNamespace(id=1))


def test_tiers_have_medians_and_extremes():
    links = rows(2, 3, lambda a, b: 0.5 if (a, b) == (0, 3) else 1.0)
    same = [
        LinkSample(6, 7, 0, 0, "cuda:0", "cuda:0", 1e-6, 9e9),
        LinkSample(7, 6, 0, 0, "cuda:0", "cuda:0", None, None, "x"),
    ]
    found = tiers_of(table([*links, *same]))
    assert list(found.index) == ["across nodes", "same node", "same device"]
    assert list(found.loc["across nodes"]) == pytest.approx([2, 60e-6, 0.375e9, 0.25e9, 0.5e9])
    assert list(found.loc["same node"]) == pytest.approx([12, 20e-6, 4e9, 4e9, 4e9])
    assert list(found.loc["same device"]) == pytest.approx([2, 1e-6, 9e9, 9e9, 9e9])
    assert tiers_text(found) == "across nodes 0.38 GB/s, in a node 4.0 GB/s, on one device 9.0 GB/s: 11 times less"
    found.loc["across nodes", "bytes_per_s"] = 8e9
    assert tiers_text(found.iloc[:2]) == "across nodes 8.0 GB/s, in a node 4.0 GB/s: 2.0 times more"
    assert tiers_text(found.iloc[1:2]) == "in a node 4.0 GB/s"


# ---- warnings


def slow(*pairs, by=0.5):
    return lambda a, b: by if (a, b) in pairs else 1.0


def of(*ends, by=0.5):
    """Return the factor of links of these ranks."""
    return lambda a, b: by if {a, b} & set(ends) else 1.0


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ([], None),
        (rows(4, 4, slow((0, 4), (1, 2), by=0.75)), None),
        (
            rows(4, 1, slow((1, 3), (3, 1))),
            "slow_link: Between node 1 and node 3: 0.25 GB/s; the median across nodes is 0.50 GB/s.",
        ),
        (
            rows(1, 4, slow((3, 1))),
            "slow_link: From rank 3 to rank 1: 2.0 GB/s, and back 4.0 GB/s; the median in a node is 4.0 GB/s.",
        ),
        # With two nodes, or with one partner, only the directions of a pair are compared.
        (rows(2, 2, slow((0, 2), (2, 0), by=0.01)), None),
        (rows(2, 2, slow((2, 0))), "slow_link: From node 1 to node 0: 0.25 GB/s, and back 0.50 GB/s."),
        # A slow node is named instead of its links.
        (
            rows(3, 1, delayed=of(2, by=3)),
            "slow_node_links: All links of node 2: a message takes 180 µs (median); other links across nodes: 60 µs.",
        ),
        (
            rows(2, 3, lambda a, b: 0.5 if min(a, b) > 2 else 1.0),
            "slow_node_links: All links inside node 1: median 2.0 GB/s; other links in a node: 4.0 GB/s.",
        ),
    ],
)
def test_check_links_names_the_smallest_slow_part(links, message):
    assert found(links) == ([] if message is None else [message])


# ---- why an algorithm wins

SLOW = tiers_of(table(rows(2, 2)))


def on_nodes(algorithm, nodes=2, world_size=4, **more):
    levels = {"ranks_per_node": world_size // nodes} if algorithm.startswith("two_level") else {}
    return Case(algorithm=algorithm, world_size=world_size, nodes=nodes, **(levels | more))


SAID = "Measured links: across nodes 0.50 GB/s, in a node 4.0 GB/s: 8.0 times less."


def test_answer_and_page_of_several_nodes_have_the_links(tmp_path):
    times, path = {on_nodes("two_level"): 10.0, on_nodes("ring"): 15.0}, tmp_path / "results.db"
    fake.write(path, fake.sweep(times, times.__getitem__))
    with Store.open_or_create(path) as store:
        store.add_links(1, rows(2, 2))
    results = load(path)
    (answer,) = sweet_spots(results)
    assert answer.links == SAID
    assert answer.links in closing_lines(session_data(results))
    assert f'<p class="lead">{SAID}' in render(results)
    assert explained(on_nodes("ring", 1, 2), [], SLOW) == ""


# ---- in a session


def measured_links(launcher):
    """Return the world sizes of the launches that measured links."""
    return [spec.world_size for spec in launcher.specs if spec.kind == "links"]


AGAIN = {"suite": None, "axes": (), "launches": None, "resume": True}


def session(tmp_path, launcher, **more):
    console = Console(file=io.StringIO(), width=200)
    words = {"suite": "quick", "argv": ["parabench", "run"], "out": tmp_path / "out", "links": True, "launches": 1}
    axes = ("strategy=ddp", "algorithm=ring", "bucket_mib=default", "world_size=2")
    code = run_session(Request.of(**(words | {"axes": axes} | more)), console, launcher)
    return code, console.file.getvalue()


def test_links_come_before_the_first_launch_and_are_kept(tmp_path):
    launcher = FakeLauncher(links=rows(1, 2, device="cpu"))
    code, output = session(tmp_path, launcher)
    assert (code, measured_links(launcher)) == (0, [2])
    assert output.startswith("links: measuring them between 2 ranks\nlinks: in a node 4.0 GB/s\n[reference]")
    results = load(tmp_path / "out" / "results.db")
    assert (len(results.links), list(results.link_messages["duration_s"])) == (2, [40e-6])
    assert [spec.kind for spec in launcher.specs] == ["links", "training", "training"]


@pytest.mark.parametrize(("reason", "times"), [("crashed: node 1 was lost", 2), (TOO_QUICK, 1)])
def test_resumed_session_measures_missing_links_again(tmp_path, reason, times):
    whole = rows(1, 4, device="cpu")
    hole = whole[-1]._replace(bytes_per_s=None, reason=reason)
    launcher = FakeLauncher(links=[*whole[:-1], hole], interrupt_at=2)
    axes = ("strategy=ddp", "algorithm=ring", "bucket_mib=default", "world_size=4")
    assert session(tmp_path, launcher, axes=axes)[0] == STOPPED
    launcher.links, launcher.interrupt_at = whole, None
    assert session(tmp_path, launcher, **AGAIN)[0] == 0
    assert len(measured_links(launcher)) == times
    assert len(load(tmp_path / "out" / "results.db").links) == 12
