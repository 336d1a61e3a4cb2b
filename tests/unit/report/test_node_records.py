"""Several nodes: devices and hosts by node, compared machines, slow nodes, and summaries of many nodes."""

import pytest

import fake_collectives as collectives
import fake_nodes
import fake_results as fake
from answers_helpers import check
from fake_devices import DEVICE, gpu_case
from page_helpers import section
from parabench.analysis.efficiency import efficiency
from parabench.analysis.environment import nodes
from parabench.analysis.session import session_data
from parabench.analysis.step.calls import alone_table, training_bandwidth
from parabench.analysis.step.device_time import device_line, device_table, memory_timeline
from parabench.analysis.step.stragglers import straggler_table
from parabench.analysis.step.timeline import median_step
from parabench.report.build import render
from parabench.report.trace import choose, trace

GPUS = [DEVICE, DEVICE]


def stored(folder, launches, environment=None):
    path = folder / f"{len(list(folder.iterdir()))}.db"
    return fake.write(path, launches, environment=environment or fake_nodes.environment())


def seen(folder, launches, environment=None):
    results = stored(folder, launches, environment)
    return session_data(results)


def found(folder, launches, environment=None):
    return {one.code: one for one in check(stored(folder, launches, environment))}


def gpu_launch(repetition=0, **more):
    return fake_nodes.read(fake.launch(gpu_case(world_size=4), repetition=repetition), **more)


# -- words ---------------------------------------------------------------------------------------------------------


def test_consecutive_nodes_are_named_by_range():
    assert [nodes.nodes_text(of) for of in ([17], [9, 3, 4, 5])] == ["node 17", "nodes 3-5, 9"]
    assert nodes.cluster_text(fake_nodes.environment(2, 8)) == "2 nodes x 8 ranks"


# -- devices and hosts ---------------------------------------------------------------------------------------------


def test_devices_of_the_same_number_are_not_mixed(tmp_path):
    hot = {"power_w": 300.0, "energy_j": lambda t: 1e6 + 300.0 * t, "used_bytes": 5e9}
    known = seen(tmp_path, [gpu_launch(changed={(1, 0): hot})])
    table = device_table(known)
    assert list(table["place"]) == [f"node {n}, device {d}" for n in (0, 1) for d in (0, 1)]
    assert list(table["power_w"]) == [500.0, 500.0, 300.0, 500.0]
    assert list(table["energy_j"]) == pytest.approx([1000.0, 1000.0, 600.0, 1000.0])
    (launch_id,) = known.counted["launch_id"]
    assert set(device_line(known, launch_id, "power_w")["place"]) == set(table["place"])
    memory = memory_timeline(known, launch_id)
    assert memory[memory["place"] == "node 1, device 0"]["bytes"].unique().tolist() == [5e9]
    assert known.counted["joules_per_step"].iloc[0] == pytest.approx((3 * 1000.0 + 600.0) / 20)


def test_peak_counts_the_devices_of_all_nodes(tmp_path):
    case = gpu_case(world_size=4, backend="nccl", precision="bf16-mixed", model="gpt2")
    environment = fake_nodes.environment(gpus=GPUS)
    (row,) = efficiency(seen(tmp_path, [fake_nodes.spread(fake.launch(case))], environment)).to_dict("records")
    assert row["devices"] == 4
    assert row["peak_flops_per_s"] == 4 * 989.5e12


def test_microbenchmark_on_one_node_is_not_for_several(tmp_path):
    path = tmp_path / "r.db"
    of = fake.launch(fake.case(), 0.01)
    for rank in (0, 1):
        fake.instrumented(of, 25, rank, calls=[{"start_s": 4.0, "bytes": 2**20}])
    alone = collectives.launch(collectives.case(world_size=2), lambda size: 1e-3)
    collectives.write(path, [alone])
    spanning_nodes = fake.write(path, [fake_nodes.spread(of)], environment=fake_nodes.environment(2, 1))
    known = session_data(spanning_nodes)
    table = training_bandwidth(known, alone_table(spanning_nodes))
    assert table[["nodes", "why"]].to_numpy().tolist() == [[2, "not measured"]]
    del of.facts["nodes"]
    together = fake.write(path, [of])
    known = session_data(together)
    table = training_bandwidth(known, alone_table(together))
    assert table[["nodes", "why"]].to_numpy().tolist() == [[1, ""]]


# -- machines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"cpu": "Other CPU"}, "CPU Other CPU against Some CPU"),
        ({"gpus": [DEVICE]}, "GPUs NVIDIA H200 (140 GiB) against 2 × NVIDIA H200 (140 GiB)"),
        ({"versions": {"torch": "2.12.0"}}, "torch 2.12.0 against 2.13.0"),
        (
            {"network": {"interfaces": [{"name": "ens1", "bits_per_s": 10**10}], "infiniband": []}},
            "network 10.0 Gb/s against 25.0 Gb/s",
        ),
    ],
)
def test_different_nodes_cause_a_warning(tmp_path, changed, text):
    network = {"interfaces": [{"name": "eth0", "bits_per_s": 25 * 10**9}], "infiniband": []}
    environment = fake_nodes.environment(gpus=GPUS, network=network, changed={1: changed})
    finding = found(tmp_path, [fake.launch(fake.case())], environment)["nodes_differ"]
    assert finding.message == f"The nodes are not alike: node 1 differs: {text}."


# -- slow nodes, slow ranks, clocks --------------------------------------------------------------------------------


def spanning(repetitions=3, *, slow=(), node=1, factor=1.5):
    return [
        fake_nodes.slowed(of, node, factor) if of.repetition in slow else of
        for of in (
            fake_nodes.spread(fake.launch(fake.case(world_size=4, bucket_mib=bucket), repetition=repetition))
            for bucket in (1.0, 25.0)
            for repetition in range(repetitions)
        )
    ]


def test_slow_node_causes_a_warning(tmp_path):
    finding = found(tmp_path, spanning(slow=(0, 1, 2)))["slow_node"]
    assert finding.message.startswith(
        "Node 1: in 6 of 6 launches that span nodes its ranks computed their forward pass "
    )
    # Rank 0 is 1% slower than the other rank of its node; the median of both counts.
    assert "49% slower than ranks of the other nodes (the median; more than 20% in each)" in finding.message
    assert finding.case_id is None


def test_slow_rank_is_named_with_its_node(tmp_path):
    launches = spanning(1)[:1]
    launches[0].samples = [
        one._replace(value=2 * one.value) if one.metric == "forward_s" and one.rank == 3 else one
        for one in launches[0].samples
    ]
    assert "rank 3 (node 1) computes its forward pass" in found(tmp_path, launches)["slow_rank"].message


def late(error_s):
    """Two nodes of one rank each: rank 1 comes 1 s late to the one collective of each of eight steps of 10 s."""
    of = fake_nodes.spread(fake.launch(fake.case()), error_s=error_s)
    for step in range(22, 30):
        for rank in (0, 1):
            call = {"start_s": 4.0 + rank, "duration_s": 2.0 - rank}
            fake.instrumented(of, step, rank, begin=100.0 * step, waits=[(4.0 + rank, 6.0)], calls=[call])
    return of


def test_straggler_is_unknown_when_clocks_differ(tmp_path):
    assert "rank 1 (node 1) was the last to enter the collectives" in found(tmp_path, [late(1e-4)])["straggler"].message
    for error_s in (1.5, None):
        known = seen(tmp_path, [late(error_s)])
        assert straggler_table(known)["who"].tolist() == ["rank 1 (node 1)"]
        assert "straggler" not in {one.code for one in check(known.results)}


def test_captions_have_the_precision_of_clocks(tmp_path):
    page = render(stored(tmp_path, [late(1e-4)]))
    assert "All ranks share one clock; clocks of nodes agree within 0.100 ms." in section(page, "timeline")
    assert "Clocks: clocks of nodes agree within 0.100 ms." in section(page, "stragglers")


def test_trace_separates_devices_of_nodes(tmp_path):
    of = fake_nodes.read(late(1e-4))
    of.facts["clock"] = {"began_s": 2200.0}
    known = seen(tmp_path, [of])
    assert median_step(known, of.case.id).node_of == {0: 0, 1: 1}
    events = trace(known, choose(known, of.case.id, step=22))["traceEvents"]
    names = {one["args"]["name"]: one["pid"] for one in events if one["name"] == "process_name"}
    assert set(names) == {"rank 0 (node 0)", "rank 1 (node 1)"} | {
        f"node {node}, device {device}" for node in (0, 1) for device in (0, 1)
    }
    assert len(set(names.values())) == len(names)
