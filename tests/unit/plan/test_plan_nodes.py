"""Planning for several nodes: sizes that fill them or not, what a suite lists for one machine, batches and data that
grow with the ranks."""

import pytest

from parabench.errors import UsageError
from parabench.machine.accelerator import Gpu
from parabench.machine.machine import Machine
from parabench.plan.plan import make_plan
from parabench.plan.protocol import Protocol
from parabench.plan.suite import Suite, load_suite, shipped, sweep


def cluster(nodes, ranks_per_node, gpus=True):
    found = (Gpu("g", None),) * ranks_per_node * gpus
    reason = None if gpus else "none"
    return Machine(cores=64, gpus=found, gpus_reason=reason, nodes=nodes, ranks_per_node=ranks_per_node)


def plan(machine, *sweeps, **overrides):
    suite = Suite(name="s", path=None, question="q", sweeps=sweeps, protocol=Protocol())
    return make_plan(suite, overrides, Protocol(), machine, 0)


def sizes(made):
    return [(case.world_size, case.nodes) for case in made.cases]


# -- sizes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "ranks_per_node", "expected"),
    [
        (1, 1, [1]),
        (1, 8, [1, 2, 4, 8]),
        (2, 1, [1, 2]),
        (2, 8, [1, 2, 4, 8, 16]),
        (3, 5, [1, 2, 4, 5, 10, 15]),
        (4, 2, [1, 2, 4, 8]),
        (6, 6, [1, 2, 4, 6, 12, 24, 36]),
    ],
)
def test_sizes_go_up_to_a_node_and_then_by_whole_nodes(nodes, ranks_per_node, expected):
    machine = cluster(nodes, ranks_per_node)
    assert machine.world_sizes("cpu") == machine.world_sizes("cuda") == expected
    assert sizes(plan(machine, sweep(world_size="auto"))) == [(size, -(-size // ranks_per_node)) for size in expected]


def test_one_size_becomes_all_ranks_and_several_go_up_to_all():
    machine = cluster(3, 5)
    assert sizes(plan(machine, sweep(world_size=2))) == [(15, 3)]
    assert sizes(plan(machine, sweep(world_size=(2, 4)))) == [(2, 1), (4, 1), (5, 1), (10, 2), (15, 3)]
    assert sizes(plan(machine, sweep(world_size=(1, 2)))) == [(1, 1), (2, 1), (4, 1), (5, 1), (10, 2), (15, 3)]
    assert sizes(plan(machine, sweep(strategy="single"))) == [(1, 1)]


@pytest.mark.parametrize(("asked", "spread"), [(4, (4, 1)), (6, (6, 1)), (12, (12, 2)), (16, (16, 2))])
@pytest.mark.parametrize("gpus", [False, True])
def test_a_size_that_is_asked_for_need_fill_no_node(asked, spread, gpus):
    made = plan(cluster(2, 8, gpus), sweep(world_size=2), world_size=(asked,))
    assert sizes(made) == [spread]
    # The default batch divides among those ranks only.
    assert made.cases[0].global_batch == {4: 8, 6: 24, 12: 24, 16: 16}[asked]


def test_a_size_that_cannot_be_spread_is_refused():
    for asked in (9, 24):
        with pytest.raises(UsageError, match=f"world_size {asked} cannot be spread evenly over a node of 8 ranks"):
            plan(cluster(2, 8), sweep(world_size=2), world_size=(asked,))


def test_nodes_may_be_asked_for():
    made = plan(cluster(2, 8), sweep(world_size=(2, 4)), nodes=(1, 2))
    assert sorted(sizes(made)) == [(2, 1), (2, 2), (4, 1), (4, 2), (8, 1), (8, 2), (16, 2)]
    assert {each.reason for each in made.skipped} == {
        "world_size 16 cannot be spread evenly over a node of 8 ranks; give a multiple of 8, up to 16"
    }
    odd = plan(cluster(3, 5), sweep(world_size="auto"), nodes=(2,))
    assert sizes(odd) == [(2, 2), (4, 2), (10, 2)]
    assert [each.reason for each in odd.skipped] == [
        f"nodes is 2; it must divide world_size {size}" for size in (1, 5, 15)
    ]
    with pytest.raises(UsageError, match="nodes is 3, and this session has 2"):
        plan(cluster(2, 6), sweep(world_size=2), nodes=(3,))


# -- the suite's values for one machine ----------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [False, True])
@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(1, 1), (1, 8), (2, 1), (3, 5), (2, 8), (125, 8)])
@pytest.mark.parametrize("name", shipped())
def test_every_suite_can_be_planned_on_any_nodes(name, nodes, ranks_per_node, gpus):
    suite = load_suite(name)
    made = make_plan(suite, {}, suite.protocol, cluster(nodes, ranks_per_node, gpus), 0)
    assert max(sizes(made)) == (nodes * ranks_per_node, nodes)
    assert len({(case.strategy, case.data) for case in made.cases}) == len({case.strategy for case in made.cases})


def test_fit_to_cluster_replaces_simulated_nodes():
    sweeps = (
        sweep(strategy="hsdp", ranks_per_node=2, world_size=4),
        sweep(strategy="ddp", algorithm="two_level", ranks_per_node=2, world_size=4),
    )
    for made in (plan(cluster(2, 8), *sweeps), plan(cluster(2, 8), *sweeps, ranks_per_node=(8,))):
        assert [case.ranks_per_node for case in made.cases] == [8, 8]
    assert [case.ranks_per_node for case in plan(cluster(1, 8), *sweeps).cases] == [2, 2]
    with pytest.raises(UsageError, match="nothing to run; ranks_per_node is 2, and on 2 nodes two_level goes by the 8"):
        plan(cluster(2, 8), sweeps[1], ranks_per_node=(2,))


# -- batch and data ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [False, True])
def test_fit_to_cluster_gives_all_cases_one_batch(gpus):
    sweeps = (sweep(strategy="single"), sweep(world_size=2))
    assert {case.global_batch for case in plan(cluster(3, 5, gpus), *sweeps).cases} == {120}
    made = plan(cluster(3, 5, gpus), sweep(world_size=(2, 4), global_batch=8))
    assert {case.global_batch for case in made.cases} == {120}


def test_data_is_synthetic_when_the_batch_outgrows_the_text():
    sweeps = (sweep(strategy="single"), sweep(world_size=2, seq_len=(8, 64)))
    assert {case.data for case in plan(cluster(16, 8, False), *sweeps).cases} == {"text"}
    assert {case.data for case in plan(cluster(32, 8, False), *sweeps).cases} == {"synthetic"}
    weak = plan(cluster(32, 8, False), sweep(world_size="auto", batch_per_rank=1))
    assert {case.data for case in weak.cases} == {"synthetic"}
