"""`parabench collectives` with a fake launcher."""

import json
from functools import partial

import pytest

import fake_collectives as fake
import fake_results
from command_line import parabench
from consumer_schemas import superbench_busbw
from fake_launch import FakeLauncher
from fake_launch import run_fake as run
from parabench.analysis.collectives.bus import measured
from parabench.analysis.collectives.nccl_tests import results_json, table_lines
from parabench.analysis.numbers import numbers
from parabench.analysis.session import select_session
from parabench.errors import UsageError
from parabench.machine.accelerator import Gpu
from parabench.machine.machine import Machine
from parabench.plan.collective_case import OPS
from parabench.plan.collective_protocol import ROUNDS
from parabench.session import session as sessions
from parabench.session.request import Request
from parabench.store.record import Failure, Status
from parabench.store.results import load

GPUS = Machine(cores=8, gpus=(Gpu("H200", 10**11),) * 4)
WRONG = Status.WRONG, Failure("wrong elements", 1)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(sessions, "this_machine", lambda: Machine(cores=2, gpus_reason="a test has none"))


def request(folder, **more):
    given = {"op": "all_reduce", "algorithm": "native,ring", "max_bytes": "1MiB", "launches": 2, "iterations": 4}
    return Request.of("collectives", **({"argv": ["parabench", "collectives"], "out": folder / "out"} | given | more))


def planned(tmp_path, machine, **more):
    return Request.of("collectives", argv=[], out=tmp_path, **more).plan(machine).plan


def test_collectives_run_writes_database_report_and_answer(tmp_path):
    launcher = FakeLauncher(seconds=lambda case, size: 1e-4 + size * (1e-9 if case.algorithm == "ring" else 2e-9))
    code, said = run(request(tmp_path, json_file=tmp_path / "deep" / "r.json"), launcher)
    assert code == 0
    assert "# all_reduce, 2 ranks: ring is fastest from 64 KiB to 1 MiB (2 repetitions)." in said
    assert (tmp_path / "out" / "report.html").stat().st_size > 1e6
    results = load(tmp_path / "out" / "results.db")
    assert results.launch[["strategy", "model"]].drop_duplicates().to_numpy().tolist() == [["collectives", ""]]
    assert list(results.launch["repetition"]) == [0, 0, 1, 1]
    # Launches, ranks and sizes; two batches of warm-up and ten of four calls.
    assert len(results.collective) == 4 * 2 * 3 * (2 + 10)
    timed = results.collective[results.collective["phase"] == "measure"]
    assert (len(timed), set(timed["calls"])) == (4 * 2 * 3 * 10, {4})
    assert json.loads((tmp_path / "deep" / "r.json").read_text())["results"][0]["op"] == "all_reduce"


def test_collectives_label_the_latency_mode(tmp_path):
    file = tmp_path / "r.json"
    code, said = run(request(tmp_path, mode="latency", json_file=file), FakeLauncher())
    assert code == 0
    assert "# timed: isolated calls, each after a barrier\n" in said
    assert "# time: of a call, 10th percentile over a launch, by its slowest rank; mean over launches" in said
    results = load(tmp_path / "out" / "results.db")
    assert set(results.collective["calls"]) == {1}
    assert len(results.collective) == 4 * 2 * 3 * (5 + 4)
    told = json.loads(file.read_text())
    assert (told["config"]["blocking_collectives"], told["results"][0]["timing"]) == ("true", "latency")
    assert (told["results"][0]["actual_iterations"], told["results"][0]["in_place_launches"]["calls"]) == (4, 8)
    with pytest.raises(UsageError, match="has another plan"):
        run(request(tmp_path, resume=True, mode="throughput"), FakeLauncher())
    # A bare --resume follows the plan.
    assert run(Request.of("collectives", argv=[], out=tmp_path / "out", resume=True), FakeLauncher())[0] == 0


def test_graph_captures_only_algorithms_of_nccl(tmp_path):
    asked = partial(planned, tmp_path, GPUS, graph=True)
    plan = asked()
    assert {case.algorithm for case in plan.cases} == {"native"}
    assert plan.protocol.timing == "throughput, CUDA graph"
    # Whole graphs of 20 calls, however few are asked for.
    assert [asked(iterations=n).protocol.calls_in_a_batch(1.0) for n in (1, 20, 21)] == [20, 20, 40]
    assert [case.algorithm for case in asked(op="all_reduce", algorithm="native,nccl:ring").cases] == [
        "native", "nccl:ring",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="--graph captures NCCL's own calls, and here ring runs over nccl"):
        asked(algorithm="ring")


def test_resume_refuses_a_session_of_another_command(tmp_path):
    fake.write(tmp_path / "c.db", [fake.launch(fake.case(), lambda size: 1e-3)], finished=False)
    fake_results.write(tmp_path / "t.db", [fake_results.launch(fake_results.case())], finished=False)
    for command, store, said in (
        ("run", "c.db", "measured collectives, not training; resume it with 'parabench collectives --resume"),
        ("collectives", "t.db", "measured training, not collectives; resume it with 'parabench run --resume"),
    ):
        (tmp_path / store).rename(tmp_path / "results.db")
        result = parabench(command, "--resume", "--out", tmp_path)
        assert result.exit_code == 2
        assert said in result.stderr


def test_deadlines_follow_bytes_and_then_the_measured_time(tmp_path):
    launcher = FakeLauncher()
    run(request(tmp_path, algorithm="native", max_bytes="64MiB", iterations=None), launcher)
    assert launcher.deadlines[0] > 100
    assert launcher.deadlines[1] == 60.0
    run(request(tmp_path, algorithm="native", deadline_s=7.0), launcher)
    assert launcher.deadlines[-1] == 7.0


# -- the plan ----------------------------------------------------------------------------------------------------


def test_plan_has_all_operations_and_algorithms_by_default(tmp_path, machine):
    plan = planned(tmp_path, machine)
    assert len(plan.cases) == 4 * 5
    assert {case.op for case in plan.cases} == set(OPS)
    assert {(case.world_size, case.device, case.backend) for case in plan.cases} == {(2, "cpu", "gloo")}
    assert plan.cases[0].sizes == tuple(65536 * 4**i for i in range(6))
    four = planned(tmp_path, machine, world_size="2,4")
    assert {(c.algorithm, c.ranks_per_node) for c in four.cases if c.ranks_per_node} == {("two_level", 2)}
    assert len(four.cases) == 4 * (5 + 6)


def test_plan_on_gpus_skips_what_nccl_lacks(tmp_path):
    plan = planned(tmp_path, GPUS, algorithm="native,nccl:tree")
    assert {(case.world_size, case.device, case.backend) for case in plan.cases} == {(4, "cuda", "nccl")}
    assert [case.op for case in plan.cases if case.algorithm == "nccl:tree"] == ["all_reduce"]
    assert [s.case.op for s in plan.skipped] == ["reduce_scatter", "all_gather", "broadcast"]
    with pytest.raises(UsageError, match="NCCL has tree for all_reduce only"):
        planned(tmp_path, GPUS, op="broadcast", algorithm="nccl:tree")


# -- nccl-tests' conventions -------------------------------------------------------------------------------------


def test_superbench_finds_the_largest_bus_bandwidth(tmp_path):
    def truth(size):
        return 1e-4 + size * 1e-9

    largest = (1 << 18) / truth(1 << 18) / 1e9 * 3 / 4
    for op in ("all_gather", "reduce_scatter"):
        one = fake.launch(fake.case(op, world_size=4, max_bytes=1 << 18), truth)
        results = fake.write(tmp_path / f"{op}.db", [one])
        found = superbench_busbw(table_lines(results, select_session(results)))
        assert found == pytest.approx(largest, abs=0.005), op
    # Operations that torch has in place only are N/A out of place, as in nccl-tests.
    in_place = fake.write(tmp_path / "r.db", [fake.launch(fake.case("all_reduce", world_size=4), truth)])
    with pytest.raises(ValueError, match="N/A"):
        superbench_busbw(table_lines(in_place, select_session(in_place)))


def test_json_extends_the_layout_of_nccl_tests(tmp_path):
    cases = [fake.case(op, world_size=4, max_bytes=1 << 18) for op in OPS]
    launches = fake.sweep(cases, lambda case, size: 1e-4 + size * 1e-9, repetitions=2)
    results = fake.write(tmp_path / "r.db", launches)
    told = json.loads(json.dumps(results_json(results, select_session(results)), allow_nan=False))
    assert told["version"] == 3
    assert told["config"]["per_iter_skip"] == 0
    assert told["out_of_bounds"] == {"count": 0, "okay": "true"}
    assert set(told["average_bus_bandwidth"]) == {"bandwidth", "okay"}
    assert told["config"]["minimum_bytes"] == 65536
    gather = next(r for r in told["results"] if r["op"] == "all_gather")
    assert list(gather)[:7] == ["size", "count", "type", "redop", "root", "out_of_place", "in_place"]
    assert list(gather["out_of_place"]) == ["time", "alg_bw", "bus_bw", "nwrong"]
    assert gather["out_of_place"]["time"] == pytest.approx(165.536)
    assert gather["out_of_place"]["bus_bw"] == pytest.approx(65536 / 165.536e-6 / 1e9 * 3 / 4)
    assert (gather["algorithm"], gather["world_size"], gather["actual_iterations"]) == ("native", 4, 4)
    assert gather["in_place_launches"]["spread"] == pytest.approx(0, abs=1e-9)
    reduce = next(r for r in told["results"] if r["op"] == "all_reduce")
    assert reduce["out_of_place"] is None
    assert "in place only" in reduce["out_of_place_reason"]


# -- the other commands ------------------------------------------------------------------------------------------


def test_json_has_failed_launches_outside_of_averages(tmp_path):
    killed = Status.CRASHED, Failure("ended by SIGKILL", 1, "SIGKILL")
    launcher = FakeLauncher(failing={"ring": WRONG, "tree": killed})
    file = tmp_path / "r.json"
    code, said = run(request(tmp_path, algorithm="native,ring,tree", json_file=file), launcher)
    assert code == 1
    told = json.loads(file.read_text())
    ring, tree = "all_reduce ring, 2 ranks", "all_reduce tree, 2 ranks"
    assert sorted(each["case"] for each in told["failed"]) == [ring, ring, tree, tree]
    assert {"case": tree, "status": "crashed", "error": "rank 1: ended by SIGKILL"} in told["failed"]
    assert "all_reduce tree, 2 ranks: crashed: rank 1: ended by SIGKILL" in told["errors"]
    native = [r["in_place"]["bus_bw"] for r in told["results"] if r["algorithm"] == "native"]
    assert told["average_bus_bandwidth"]["bandwidth"] == pytest.approx(sum(native) / len(native))
    assert said.count("# Avg bus bandwidth    : N/A") == 1
    assert (told["nccl_version"], told["config"]["blocking_collectives"], told["config"]["graph"]) == (None, "false", 0)


# -- shared launches ----------------------------------------------------------------------------------------------

TURNS = {"algorithm": "native,ring,tree", "launches": 4}


def shared(launcher):
    return [[case.algorithm for case in spec.cases] for spec in launcher.specs]


def uneven(number):
    """By what a launch makes calls longer: far more than what algorithms differ by."""
    return 1.0 + 0.5 * (number * 7919 % 11) / 11


def four_percent(case, size):
    return 1e-4 * {"native": 1.0, "ring": 1.04, "tree": 1.08}[case.algorithm]


def test_shared_launch_removes_variance_between_launches(tmp_path):
    launcher = FakeLauncher(seconds=four_percent, level=uneven)
    code, said = run(request(tmp_path, **TURNS), launcher)
    assert code == 0
    assert [sorted(each) for each in shared(launcher)] == [["native", "ring", "tree"]] * 4
    assert len(set(map(tuple, shared(launcher)))) > 1
    assert "# all_reduce, 2 ranks: native is fastest from 64 KiB to 1 MiB (4 repetitions)." in said
    assert "# [4/4] repetition 4 of 4, 3 configurations interleaved: 10 rounds, " in said
    results = load(tmp_path / "out" / "results.db")
    assert sorted(results.launch["repetition"]) == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert results.launch.groupby("repetition")["position"].apply(sorted).tolist() == [[0, 1, 2]] * 4
    assert {json.loads(facts)["turns"]["rounds"] for facts in results.launch["facts"]} == {ROUNDS}


def test_wrong_result_removes_only_its_case(tmp_path):
    launcher = FakeLauncher(failing={"ring": WRONG})
    assert run(request(tmp_path, **TURNS | {"launches": 2}), launcher)[0] == 1
    assert [sorted(each) for each in shared(launcher)] == [["native", "ring", "tree"], ["native", "tree"], ["ring"]]
    results = load(tmp_path / "out" / "results.db")
    status = results.launch.groupby("algorithm")["status"].apply(list).to_dict()
    assert status == {"native": ["ok"] * 2, "ring": ["wrong"] * 2, "tree": ["ok"] * 2}


def test_shared_launch_is_compared_by_rounds(tmp_path):
    """One batch of ring's was disturbed, and its neighbours in the round were not."""
    cases = [fake.case(algorithm=name, max_bytes=1 << 16) for name in ("native", "ring")]
    protocol = fake.CollectiveProtocol(launches=1, batches=10, iterations=4, rounds=10)
    launches = []
    for place, case in enumerate(cases):
        launch = fake.launch(case, lambda size, place=place: 1e-3 * (1 + place), protocol=protocol)
        launch.facts["turns"] = {"cases": [each.id for each in cases], "rounds": 10, "place": place}
        if place:
            launch.collectives = [
                each._replace(duration_s=100 * each.duration_s) if (each.phase, each.step) == ("measure", 3) else each
                for each in launch.collectives
            ]
        launches.append(launch)
    results = fake.write(tmp_path / "r.db", launches, protocol=protocol)
    sizes = measured(numbers(results, select_session(results)))
    # As nccl-tests has it: the mean of all batches, the disturbed one too.
    assert list(sizes["call_s"]) == pytest.approx([1e-3, (9 * 2e-3 + 200e-3) / 10])
    native, ring = sizes["compared_s"]
    assert ring / native == pytest.approx(2.0)
    assert native * ring == pytest.approx(1e-3 * (9 * 2e-3 + 200e-3) / 10)
    assert sizes["shared_launch"].nunique() == 1
