"""`--dry-run`: what would be launched, for any number of nodes and without any of them; planning does not grow with
ranks."""

from __future__ import annotations

import re
import socket
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

import fake_links
from command_line import parabench
from fake_launch import FakeLauncher
from parabench.cluster.topology import LauncherFlags, topology_of
from parabench.errors import UsageError
from parabench.machine.accelerator import Gpu
from parabench.machine.machine import Machine, this_machine
from parabench.machine.versions import Nccl
from parabench.models import MODELS
from parabench.plan.case import Case
from parabench.plan.collective_protocol import FIRST_RUN_IN_S, RUN_IN_S
from parabench.plan.plan import make_plan
from parabench.plan.protocol import Protocol
from parabench.plan.suite import Suite, parse_axis, sweep
from parabench.session.dry_run import dry_run, planned_for
from parabench.session.request import CollectivesRequest, TrainingRequest
from parabench.session.runner import TrainingRunner
from parabench.session.session import run_session
from parabench.signals import STOPPED
from parabench.store.record import EXPLAIN_BLOCK, REFERENCE_BLOCK
from parabench.store.store import Store

OF_SEVERAL = '''\
"""What would more ranks give?"""

from parabench import ComputeProtocol, Protocol, sweep

CASES = [sweep(strategy="ddp", model="toy", batch_per_rank=2, world_size=2)]
PROTOCOL = Protocol(launches=2, warmup=2, steps=2, instrumented=0)
COMPUTE = [sweep(strategy="ddp", model="toy", batch_per_rank=2, world_size=(2, 8))]
COMPUTE_PROTOCOL = ComputeProtocol(launches=1, warmup=2, steps=2, instrumented=2)
COLLECTIVES = {"op": "all_reduce", "algorithm": "native", "min_size": "64KiB", "max_size": "64KiB"}
'''

SUITE = '''\
"""Which bucket size
is fastest?"""

from parabench import Protocol, sweep

CASES = [sweep(strategy="single"), sweep(strategy="ddp", bucket_mib=(1, 4, 25), world_size=2)]
PROTOCOL = Protocol(warmup=2, steps=3, launches=2, instrumented=0)
'''


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SUITE)
    return path


def said(suite, out, terminal=False, **more):
    console = Console(file=StringIO(), force_terminal=terminal, width=200, no_color=True)
    asked = TrainingRequest.of(suite=suite and str(suite), argv=[], out=out, **more)
    assert dry_run(asked, console) == 0
    return console.file.getvalue()


def run(suite, out, launcher=None, **more):
    return run_session(
        TrainingRequest.of(suite=suite and str(suite), argv=[], out=out, **more),
        Console(file=StringIO()),
        launcher or FakeLauncher(),
    )


def facts(text):
    """{what: all that is said of it} of the lines `what: ...`, those that go on included."""
    found, name = {}, None
    for line in text.splitlines():
        if line.startswith(" ") and name is not None:
            found[name] += f"; {line.strip()}"
        else:
            name, colon, rest = line.partition(":")
            if colon:
                found[name] = rest.strip()
    return found


# -- what is said --------------------------------------------------------------------------------------------------


def test_a_plan_is_made_and_nothing_is_written(suite, tmp_path):
    told = facts(planned("run", suite, "--out", tmp_path / "out"))
    assert told["sizes"] == "1 rank on 1 node (1 case); 2 ranks on 1 node (3 cases)"
    assert list(tmp_path.iterdir()) == [suite]


def test_a_cluster_is_planned_without_an_endpoint_a_network_or_its_devices(suite, tmp_path, monkeypatch):
    def refused(*args, **options):
        raise AssertionError("a dry run opens no socket")

    monkeypatch.setattr(socket, "socket", refused)
    nodes = ("--nnodes", 1250, "--nproc-per-node", 8, "--set", "device=cuda")
    said = planned("run", suite, *nodes, "--out", tmp_path / "out")
    assert "planned for 1,250 nodes with 8 ranks per node" in said
    told = facts(said)
    assert told["sizes"] == "1 rank on 1 node (1 case); 10,000 ranks on 1,250 nodes (3 cases)"
    assert told["each step"] == "10,000 samples of 1,024 tokens, data synthetic, model gpt2"
    assert told["launches"].endswith("1 reference on one device and 3 for NCCL's debug log")
    assert told["largest"] == "10,000 ranks on 1,250 nodes; ranks per node: 8"
    assert re.search(r"1,250 x 8 +8 CUDA devices", said)


def test_a_session_on_several_nodes_still_needs_its_endpoint(machine):
    flags = LauncherFlags(nnodes="2", nproc_per_node="4")
    with pytest.raises(UsageError, match="2 nodes need --rdzv-endpoint"):
        topology_of(flags, machine)
    topology = topology_of(flags, machine, rendezvous=False)
    assert (topology.nodes, topology.ranks_per_node) == (2, 4)


def test_other_machines_are_taken_to_have_what_their_ranks_need(machine):
    flags = LauncherFlags(nnodes="3", nproc_per_node="64")
    planned, notes = planned_for(flags, machine, False)
    assert (planned.nodes, planned.ranks("cpu"), planned.gpus) == (3, 64, ())
    assert notes[1] == "each node is assumed to have cores for 64 ranks; here: 2"
    planned, notes = planned_for(flags, machine, True)
    assert (planned.ranks("cuda"), planned.gpus_reason) == (64, None)
    assert notes[1] == "each node is assumed to have 64 CUDA devices; here: 0"
    one = Machine(cores=8, gpus=(Gpu("NVIDIA L4", 1 << 30),))
    planned, notes = planned_for(flags, one, False)
    assert {gpu.name for gpu in planned.gpus} == {"NVIDIA L4"}
    assert len(planned.gpus) == 64
    assert planned_for(LauncherFlags(), one, True) == (one, [])


def test_a_terminal_gets_a_screenful_and_a_pipe_all(suite, tmp_path):
    many = {"axes": ("bucket_mib=" + ",".join(map(str, range(1, 41))),)}
    piped, shown = (said(suite, tmp_path, terminal, **many) for terminal in (False, True))
    assert piped.count("ddp native") == 40
    assert shown.count("ddp native") == 19
    assert "and 21 cases more; into a pipe or a file all are written" in shown


def test_what_is_skipped_is_told_by_its_reason(suite, tmp_path):
    said = planned("run", suite, "--set", "nodes=1,2", "--out", tmp_path)
    assert "skipped 3 cases: nodes is 2, and this is one machine; see --nnodes" in said


def test_links_are_said_with_their_rounds_and_about_how_long(suite, tmp_path):
    four = {"cluster": LauncherFlags(nnodes="4", nproc_per_node="8"), "links": True}
    assert facts(said(suite, tmp_path, **four))["links"] == (
        "measured first, between 32 ranks in 10 rounds of about 2 to 3 s: 20 s to 30 s"
    )
    assert "links" not in facts(said(suite, tmp_path, cluster=four["cluster"]))
    alone = said(suite, tmp_path, links=True, axes=("strategy=single",))
    assert facts(alone)["links"] == "none to measure, every case has one rank"


def test_links_that_a_session_has_are_not_said_again(suite, tmp_path):
    out = tmp_path / "out"
    assert run(suite, out, FakeLauncher(interrupt_at=4)) == STOPPED
    assert "links" in facts(said(None, out, resume=True, links=True))
    with Store.open_or_create(out / "results.db") as store:
        store.add_links(1, fake_links.rows(1, 2, device="cpu"))
    assert "links" not in facts(said(None, out, resume=True, links=True))
    # A new session has none.
    assert "links" in facts(said(suite, out, links=True))


# -- counts and time -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [0, 2])
def test_launches_are_those_that_a_session_makes(gpus):
    machine = Machine(cores=2, gpus=(Gpu("g", None),) * gpus, gpus_reason=None if gpus else "none")
    sweeps = (
        sweep(strategy="single", seq_len=(8, 16)),
        sweep(strategy=("ddp", "fsdp"), bucket_mib=(1, 4), world_size=2, seq_len=(8, 16)),
    )
    mine = Suite(name="s", path=None, question="q", sweeps=sweeps, protocol=Protocol())
    plan = make_plan(mine, {}, Protocol(warmup=2, steps=2, launches=3), machine, 0)
    kept = []

    TrainingRunner(plan=plan, launch=FakeLauncher(), keep=kept.append).run()
    launches = list(TrainingRunner(plan=plan).expected())
    assert Counter((case, block) for case, block, _ in launches) == Counter((each.case, each.block) for each in kept)
    for kind in (
        lambda block: block >= 0,
        lambda block: block == REFERENCE_BLOCK,
        lambda block: block == EXPLAIN_BLOCK,
    ):
        assert [case for case, block, _ in launches if kind(block)] == [each.case for each in kept if kind(each.block)]


def test_a_store_that_knows_the_cases_tells_their_time(suite, tmp_path):
    out = tmp_path / "out"
    assert run(suite, out, FakeLauncher(lambda case: 0.78 if case.strategy == "single" else 0.38)) == 0
    store = (out / "results.db").read_bytes()
    # 3 launches on one device of 4 s, the reference among them; 6 on two of 2 s.
    assert facts(said(suite, out))["expected"] == f"24 s for 9 launches, as measured in {out / 'results.db'}"
    partly = facts(said(suite, out, axes=("bucket_mib=4,8",)))["expected"]
    assert partly.startswith(f"16 s for 5 launches, as measured in {out / 'results.db'}; arithmetic: ")
    assert partly.endswith("plus communication, and the start of 2 launches: 0.2 s or more")
    assert "as they took" not in said(suite, out, steps=4)
    assert (out / "results.db").read_bytes() == store
    assert sorted(each.name for each in out.iterdir()) == ["report.html", "results.db"]


def test_arithmetic_is_6_operations_a_parameter_and_token(suite, tmp_path):
    told = facts(said(suite, tmp_path, axes=("strategy=single", "model=gpt-nano", "global_batch=8")))["expected"]
    # 5 steps of 8 sequences of 64 tokens; 2 blocks of the one case that is left, and its reference.
    seconds = 3 * 5 * 6 * MODELS["gpt-nano"].parameters * 8 * 64 / 5e9
    assert told.startswith(f"arithmetic: {seconds:.1f} s at most, at 5 GFLOP/s or more per rank")


def test_of_devices_it_is_the_least(suite, tmp_path):
    told = said(suite, tmp_path, axes=("device=cuda",), cluster=LauncherFlags(nnodes="2", nproc_per_node="8"))
    assert "at least, at the bf16 peak of the fastest device known here" in told


# -- resuming ------------------------------------------------------------------------------------------------------


def test_resuming_tells_what_is_left_and_leaves_the_store_alone(suite, tmp_path):
    out = tmp_path / "out"
    assert run(suite, out, FakeLauncher(interrupt_at=4)) == STOPPED
    store = (out / "results.db").read_bytes()
    for text in (said(suite, out, resume=True), said(None, out, resume=True)):
        assert facts(text)["launches"] == "5 (3 of 8 are done)"
    with pytest.raises(UsageError, match="was planned otherwise"):
        said(suite, out, resume=True, steps=9)
    assert (out / "results.db").read_bytes() == store
    assert run(None, out, resume=True) == 0
    assert facts(said(None, out, resume=True))["expected"] == "nothing left to launch"


def test_a_store_of_a_newer_version_is_a_line_or_tells_nothing(suite, tmp_path):
    out = tmp_path / "out"
    run(suite, out)
    assert "as measured in" in facts(said(suite, out))["expected"]
    with closing(sqlite3.connect(out / "results.db")) as db, db:
        db.execute("UPDATE session SET plan = json_set(plan, '$.protocol.by_magic', 1)")
    for more in ((), ("--dry-run",)):
        done = parabench("run", "--resume", *more, "--out", out)
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert "planned by a newer parabench: its by_magic" in done.stderr
    # What a new session would do is known; how long other steps took says nothing of it.
    assert "as measured in" not in facts(said(suite, out))["expected"]


# -- collectives ---------------------------------------------------------------------------------------------------


def test_collectives_are_planned_too(tmp_path):
    asked = ["--op", "all_reduce", "--min", "1MiB", "--max", "4MiB", "--iterations", "10", "--warmup", "2"]
    asked += ["--algorithm", "native,ring", "--device", "cuda", "--nnodes", "100", "--nproc-per-node", "8"]
    asked += ["--out", tmp_path / "out"]
    told = facts(planned("collectives", *asked))
    assert told["cases"] == "2, each once per block, in 3 blocks"
    assert told["timed"] == "calls back to back, as nccl-tests does; per size and form: 10 batches of 10 calls"
    # Each case 3 times: twice 2 and 10 times 10 calls of 1 and as many of 4 MiB, one before each turn but the first,
    # and a second for the clocks.
    assert told["launches"] == "3"
    least = 6 * ((104 + 9) * 5 * 2**20 / 1e9 + 2 * RUN_IN_S + FIRST_RUN_IN_S)
    assert told["expected"].startswith(f"calls: {least:.0f} s at most, at 1000 MB/s or more")
    alone = facts(planned("collectives", *asked, "--mode", "latency"))
    assert alone["timed"] == "isolated calls, each after a barrier; 24 per launch"  # two sizes, all_reduce in place
    assert alone["expected"].startswith(f"calls: {6 * (12 + 10) * 5 * 2**20 / 1e9:.2f} s at most, at 1000 MB/s or more")
    assert list(tmp_path.iterdir()) == []


def planned(command, *arguments):
    done = parabench(command, *arguments, "--dry-run")
    assert done.exit_code == 0, done.output
    return done.output.replace("# ", "")


def test_collectives_of_many_ranks_begin_at_a_size_that_they_can_split(tmp_path):
    many = ("--nnodes", 1250, "--nproc-per-node", 8, "--out", tmp_path / "out", "--device", "cuda")
    told = facts(planned("collectives", *many, "--links"))
    # 16 bytes for each of 10,000 ranks are 156.25 KiB: the first step of 64, 256, ... KiB that has them.
    assert told["buffers"] == "64 KiB to 1 GiB; 256 KiB to 1 GiB"
    assert told["links"].startswith("measured first, between 10,000 ranks in ")
    whole = planned("collectives", *many, "--op", "all_gather", "--max", 200000)
    assert facts(whole)["buffers"] == "200000 B to 200000 B"


ONE_GPU = Machine(cores=8, gpus=(Gpu("NVIDIA H100 80GB HBM3", 80 * 10**9),))
INSTEAD = (
    "parabench: NCCL needs one GPU per rank: 2 ranks, and this machine has 1 GPU; use --backend gloo (through host "
    "memory) or --device cpu"
)


@pytest.mark.parametrize(
    ("version", "share"),
    [
        ((2, 28, 9), "; ranks can share a GPU from NCCL 2.30 on, and here is NCCL 2.28.9\n"),
        ((2, 30, 4), ", or set NCCL_MULTI_RANK_GPU_ENABLE=1 for ranks that share the GPU (NCCL 2.30 or later)\n"),
        (None, ", or set NCCL_MULTI_RANK_GPU_ENABLE=1 for ranks that share the GPU (NCCL 2.30 or later)\n"),
    ],
)
def test_collectives_on_one_gpu_name_what_can_run(version, share, monkeypatch):
    here = replace(ONE_GPU, nccl=Nccl(version))
    monkeypatch.setattr("parabench.session.dry_run.this_machine", lambda: here)
    done = parabench("collectives", "--dry-run")
    assert (done.exit_code, done.stderr) == (2, INSTEAD + share)
    assert parabench("collectives", "--dry-run", "--world-size", 4).stderr == (INSTEAD + share).replace(
        "2 ranks", "4 ranks"
    )


@pytest.mark.parametrize(
    ("option", "nccl", "most"),
    [
        (("--backend", "gloo"), Nccl(), "64 MiB"),
        (("--device", "cpu"), Nccl(), "64 MiB"),
        ((), Nccl((2, 30, 4), shares_gpu=True), "1 GiB"),
    ],
)
def test_collectives_on_one_gpu_run_what_they_name(option, nccl, most, monkeypatch):
    monkeypatch.setattr("parabench.session.dry_run.this_machine", lambda: replace(ONE_GPU, nccl=nccl))
    told = planned("collectives", *option)
    assert facts(told)["buffers"] == f"64 KiB to {most}"
    assert "2 ranks on 1 node" in told


def test_nodes_of_a_session_are_not_made_up_in_one_of_them(suite, tmp_path):
    two = {"cluster": LauncherFlags(nnodes="2", nproc_per_node="4")}
    told = said(suite, tmp_path, axes=("strategy=hsdp", "world_size=4,8"), **two)
    assert "hsdp native ranks_per_node 4, 4 ranks " in told
    assert "hsdp native ranks_per_node 4, 8 ranks on 2 nodes" in told
    # On one machine they are, so that there are two levels to see.
    assert "hsdp native ranks_per_node 2, 4 ranks " in said(suite, tmp_path, axes=("strategy=hsdp", "world_size=4"))
    nodes = ("--world-size", 4, "--nnodes", 2, "--nproc-per-node", 4, "--device", "cuda")
    assert "two_level, 4 ranks (4 a node)" in planned("collectives", "--algorithm", "two_level", *nodes)


def test_collectives_know_their_store(tmp_path):
    asked = CollectivesRequest.of(
        argv=[], out=tmp_path, op="all_reduce", algorithm="native", max_size="256KiB", device="cpu"
    )
    run_session(asked, Console(file=StringIO()), FakeLauncher())
    store = (tmp_path / "results.db").read_bytes()
    for request, expected in (
        (replace(asked, resume=True), "nothing left to launch"),
        (asked, "for 3 launches, as"),
    ):
        console = Console(file=StringIO(), width=200)
        assert dry_run(request, console) == 0
        assert expected in facts(console.file.getvalue().replace("# ", ""))["expected"]
    assert (tmp_path / "results.db").read_bytes() == store


# -- cost ----------------------------------------------------------------------------------------------------------


def calls_to_plan(nodes: int, buckets: int) -> tuple[int, int]:
    """How many Python functions are called to plan for so many nodes and to tell every launch, and the cases."""
    machine = Machine(cores=2, gpus=(Gpu("g", None),) * 8, nodes=nodes, ranks_per_node=8)
    names = ",".join(str(0.5 * n) for n in range(1, buckets + 1))
    overrides = {
        "strategy": ("ddp", "zero1", "fsdp", "hsdp", "tp_fsdp"),
        "algorithm": ("native", "ring", "tree", "two_level"),
        "bucket_mib": parse_axis("bucket_mib", names),
    }
    mine = Suite(name="s", path=None, question="q", sweeps=(sweep(world_size=2),), protocol=Protocol())
    count = 0

    def counted(frame, event, argument):
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        plan = make_plan(mine, overrides, Protocol(), machine, 0)
        list(TrainingRunner(plan=plan).expected())
    finally:
        sys.setprofile(before)
    assert {case.world_size for case in plan.cases} == {8 * nodes}
    return count, len(plan.cases)


def test_planning_costs_nothing_more_for_more_ranks():
    calls_to_plan(2, 2)  # what is looked up once
    few, many = calls_to_plan(2, 5), calls_to_plan(12_500, 5)
    assert many[1] == few[1] == 100
    # But for shuffling, which draws again now and then, and for reading the text's size.
    assert many[0] <= few[0] * 1.02


def test_planning_grows_as_the_cases_do():
    calls_to_plan(1250, 2)
    few, many = calls_to_plan(1250, 5), calls_to_plan(1250, 20)
    assert many[1] == 4 * few[1]
    assert many[0] <= 4.1 * few[0]


def test_a_case_is_made_a_few_times_only(monkeypatch):
    made = 0
    checked = Case.__post_init__

    def counting(case):
        nonlocal made
        made += 1
        checked(case)

    monkeypatch.setattr(Case, "__post_init__", counting)
    _, cases = calls_to_plan(1250, 5)
    # As it is asked for, with data that its model takes, with the nodes' ranks for two_level, settled; its reference.
    assert cases < made <= 4 * cases


def test_cases_that_take_turns_share_launches_and_those_that_do_not_say_why(suite, tmp_path):
    suite.write_text(SUITE.replace("CASES = [", 'CASES = [sweep(strategy="parameter_server_async", world_size=2), '))
    told = facts(said(suite, tmp_path / "out", rounds=20))
    assert told["turns"].startswith("after the first block, 1 launch per block shared by 4 cases of 1 to 2 ranks,")
    assert "20 rounds of 1 settling and 2 timed steps (8 in 1)" in told["turns"]
    assert told["turns"].endswith("never shared: ranks of parameter_server_async do not take their steps together")
    # Each of five by itself; then four together and the one that shares with none, twice.
    assert told["launches"] == "9, plus 1 reference on one device"


def test_cases_that_do_not_fit_into_memory_together_are_split_and_the_reason_is_said(suite, tmp_path, monkeypatch):
    nano = 16 * MODELS["gpt-nano"].parameters
    here = replace(this_machine(), memory_bytes=8 * nano)
    monkeypatch.setattr("parabench.session.dry_run.this_machine", lambda: here)
    told = facts(said(suite, tmp_path / "out", rounds=10))
    assert told["turns"].endswith("; 3 cases of DDP train one module in turn: memory has no room for one each")
    told = facts(said(suite, tmp_path / "out", rounds=10, axes=("static_graph=on",)))
    # Three of two ranks, and one device.
    assert "2 launches per block shared by 2 cases of 1 to 2 ranks and 2 cases of 2 ranks" in told["turns"]
    assert "split anew in each block: their training states take up to" in told["turns"]
    assert told["launches"] == "8, plus 1 reference on one device"


def test_what_is_measured_twice_counts_among_what_memory_must_hold(suite, tmp_path, monkeypatch):
    nano = 16 * MODELS["gpt-nano"].parameters
    here = replace(this_machine(), memory_bytes=14 * nano)
    monkeypatch.setattr("parabench.session.dry_run.this_machine", lambda: here)
    # Half of it is for training states, of 7 ranks: that of the twin is one more.
    assert "one module" not in facts(said(suite, tmp_path / "out", rounds=10))["turns"]
    told = facts(said(suite, tmp_path / "out", rounds=10, self_check=True))
    assert "; measured twice: single, 1 rank; " in told["turns"]
    assert told["turns"].endswith("; 3 cases of DDP train one module in turn: memory has no room for one each")


def test_each_session_of_a_suite_has_a_heading(tmp_path):
    path = tmp_path / "several.py"
    path.write_text(OF_SEVERAL)
    told = parabench("run", path, "--dry-run", "--out", tmp_path / "out")
    assert told.exit_code == 0
    headings = [line for line in told.stdout.splitlines() if "session " in line]
    assert headings == ["session 1 of 3: compute", "# session 2 of 3: collectives", "session 3 of 3: training"]
    # One session needs none.
    path.write_text(SUITE)
    assert "session 1 of" not in parabench("run", path, "--dry-run", "--out", tmp_path / "out").stdout
