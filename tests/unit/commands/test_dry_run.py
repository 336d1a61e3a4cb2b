"""`--dry-run`: what would be launched, for any number of nodes and without any of them; planning does not grow with
ranks."""

import re
import socket
from collections import Counter
from io import StringIO

import pytest
from rich.console import Console

from command_line import parabench
from fake_launch import FakeLauncher, run_fake
from parabench.cluster.topology import LauncherFlags
from parabench.errors import UsageError
from parabench.machine.accelerator import Gpu
from parabench.machine.machine import Machine
from parabench.plan.plan import make_plan
from parabench.plan.protocol import Protocol
from parabench.plan.suite import Suite, sweep
from parabench.session.dry_run import dry_run, planned_for
from parabench.session.request import Request
from parabench.session.runner import Runner
from parabench.signals import STOPPED
from parabench.store.record import EXPLAIN_REPETITION, REFERENCE_REPETITION

OF_SEVERAL = '''\
"""What would more ranks give?"""
from parabench import sweep
CASES = COMPUTE = [sweep(strategy="ddp", model="toy", batch_per_rank=2, world_size=2)]
COLLECTIVES = {"op": "all_reduce", "algorithm": "native", "min_bytes": "64KiB", "max_bytes": "64KiB"}
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


def said(suite, out, **more):
    console = Console(file=StringIO(), width=200)
    asked = Request.of(suite=suite and str(suite), argv=[], out=out, **more)
    assert dry_run(asked, console) == 0
    return console.file.getvalue()


def run(suite, out, launcher=None, **more):
    asked = Request.of(suite=suite and str(suite), argv=[], out=out, **more)
    return run_fake(asked, launcher or FakeLauncher())[0]


def facts(text):
    """Return {name: text} of the lines `name: text`."""
    return {name: text for line in text.splitlines() for name, colon, text in [line.partition(": ")] if colon}


def rows(text):
    """Return the columns of each configuration: label, place, launches, time."""
    split = [re.split("  +", line.removeprefix("# ")) for line in text.splitlines()]
    return [columns for columns in split if len(columns) == 4 and columns[0] != "configuration"]


# -- output --------------------------------------------------------------------------------------------------------


def test_dry_run_of_a_cluster_needs_no_network(suite, tmp_path, monkeypatch):
    def refused(*args, **options):
        raise AssertionError("a dry run opens no socket")

    monkeypatch.setattr(socket, "socket", refused)
    nodes = ("--nnodes", 1250, "--nproc-per-node", 8, "--set", "device=cuda")
    done = parabench("run", suite, *nodes, "--out", tmp_path / "out", "--dry-run")
    assert done.exit_code == 0, done.output
    said = done.output.replace("# ", "")
    assert "planned for 1,250 nodes with 8 ranks per node" in said
    assert [row[1] for row in rows(said)] == ["1 x 1", *["1,250 x 8"] * 3]


def test_other_machines_are_taken_to_have_what_their_ranks_need(machine):
    flags = LauncherFlags(nnodes="3", nproc_per_node="64")
    planned, notes = planned_for(flags, machine, False)
    assert (planned.nodes, planned.ranks("cpu"), planned.gpus) == (3, 64, ())
    assert notes[1] == "each node is assumed to have cores for 64 ranks; here: 2"
    planned, notes = planned_for(flags, machine, True)
    assert (planned.ranks("cuda"), planned.gpus_reason) == (64, None)
    assert notes[1] == "each node is assumed to have 64 CUDA devices; here: 0"
    one = Machine(cores=8, gpus=(Gpu("NVIDIA L4", 1 << 30),))
    assert [gpu.name for gpu in planned_for(flags, one, False)[0].gpus] == ["NVIDIA L4"] * 64
    assert planned_for(LauncherFlags(), one, True) == (one, [])


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

    Runner(plan=plan, launch=FakeLauncher(), keep=kept.append).run()
    launches = list(Runner(plan=plan).expected())
    assert Counter((case, repetition) for case, repetition, _ in launches) == Counter(
        (each.case, each.repetition) for each in kept
    )
    for kind in (0, REFERENCE_REPETITION, EXPLAIN_REPETITION):
        expected = [case for case, repetition, _ in launches if min(repetition, 0) == kind]
        assert expected == [each.case for each in kept if min(each.repetition, 0) == kind]


def test_dry_run_estimates_from_measured_cases(suite, tmp_path):
    out = tmp_path / "out"
    assert run(suite, out, FakeLauncher(lambda case: 0.78 if case.strategy == "single" else 0.38)) == 0
    store = (out / "results.db").read_bytes()
    # 3 launches on one device of 4 s, the reference among them; 6 on two of 2 s.
    measured = f"launches as measured in {out / 'results.db'}"
    text = said(suite, out)
    assert facts(text)["expected"] == f"24 s (9 {measured})"
    assert [row[2:] for row in rows(text)] == [["2", "8.0 s"], *[["2", "4.0 s"]] * 3]
    partly = facts(said(suite, out, axes=("bucket_mib=4,8",)))["expected"]
    assert f"(5 {measured}; 2 launches estimated: upper bound from 5 GFLOP/s per rank, without communication)" in partly
    assert "as measured" not in said(suite, out, steps=4)
    assert (out / "results.db").read_bytes() == store
    assert sorted(each.name for each in out.iterdir()) == ["report.html", "results.db"]


def test_dry_run_ignores_references_of_launches_by_time(suite, tmp_path):
    by_time = {"launches": 1, "warmup": 2, "measure_s": 10.0}
    run(suite, tmp_path / "out", FakeLauncher(lambda case: 0.1), **by_time)
    assert {row[3] for row in rows(said(suite, tmp_path / "out", **by_time))} == {"10 s"}


# -- resuming ------------------------------------------------------------------------------------------------------


def test_resuming_tells_what_is_left_and_leaves_the_store_alone(suite, tmp_path):
    out = tmp_path / "out"
    assert run(suite, out, FakeLauncher(interrupt_at=4)) == STOPPED
    store = (out / "results.db").read_bytes()
    for text in (said(suite, out, resume=True), said(None, out, resume=True)):
        assert sum(int(row[2]) for row in rows(text)) == 5
    with pytest.raises(UsageError, match="has another plan"):
        said(suite, out, resume=True, steps=9)
    assert (out / "results.db").read_bytes() == store
    assert run(None, out, resume=True) == 0
    assert facts(said(None, out, resume=True))["expected"] == "nothing left to launch"


def test_each_session_of_a_suite_has_a_heading(tmp_path):
    path = tmp_path / "several.py"
    path.write_text(OF_SEVERAL)
    told = parabench("run", path, "--dry-run", "--out", tmp_path / "out").stdout
    headings = [line for line in told.splitlines() if "session " in line]
    assert headings == ["session 1 of 3: compute", "# session 2 of 3: collectives", "session 3 of 3: training"]
    # One session needs none.
    path.write_text(SUITE)
    assert "session 1 of" not in parabench("run", path, "--dry-run", "--out", tmp_path / "out").stdout
