"""`parabench collectives` whose cases share launches, with a fake in the place of processes."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

import fake_collectives as fake
from fake_launch import FakeLauncher
from parabench.machine.machine import Machine
from parabench.plan.collective_protocol import ROUNDS
from parabench.session import dry_run as dry_runs
from parabench.session import session as sessions
from parabench.session.request import Request
from parabench.session.session import run_session
from parabench.store.record import Failure, Status
from parabench.store.results import load

WRONG = Status.WRONG, Failure("wrong elements", 1)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    for module in (sessions, dry_runs):
        monkeypatch.setattr(module, "this_machine", lambda: Machine(cores=2, gpus_reason="a test has none"))


def request(folder, **more):
    given = {"op": "all_reduce", "algorithm": "native,ring,tree", "max_bytes": "1MiB", "launches": 4, "iterations": 4}
    return Request.of("collectives", **({"argv": ["parabench", "collectives"], "out": folder} | given | more))


def run(asked, launch):
    console = Console(file=io.StringIO(), width=400)
    return run_session(asked, console, launch), console.file.getvalue()


def shared(launcher):
    return [[case.algorithm for case in spec.cases] for spec in launcher.specs]


def uneven(number):
    """By what a launch makes calls longer: far more than what algorithms differ by."""
    return 1.0 + 0.5 * (number * 7919 % 11) / 11


def four_percent(case, size):
    return 1e-4 * {"native": 1.0, "ring": 1.04, "tree": 1.08}[case.algorithm]


def test_shared_launch_removes_variance_between_launches(tmp_path):
    launcher = FakeLauncher(seconds=four_percent, level=uneven)
    code, said = run(request(tmp_path), launcher)
    assert code == 0
    assert [sorted(each) for each in shared(launcher)] == [["native", "ring", "tree"]] * 4
    assert len(set(map(tuple, shared(launcher)))) > 1
    assert "# all_reduce, 2 ranks: native is fastest from 64 KiB to 1 MiB (4 blocks)." in said
    assert "# [4/4] block 4 of 4, 3 cases in turns: 10 rounds, " in said
    results = load(tmp_path / "results.db")
    assert sorted(results.launch["block"]) == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert results.launch.groupby("block")["position"].apply(sorted).tolist() == [[0, 1, 2]] * 4
    assert {json.loads(facts)["turns"]["rounds"] for facts in results.launch["facts"]} == {ROUNDS}


def test_a_wrong_result_is_its_cases_alone_and_costs_no_launch(tmp_path):
    launcher = FakeLauncher(failing={"ring": WRONG})
    code, _ = run(request(tmp_path, launches=2), launcher)
    assert code == 1
    assert [sorted(each) for each in shared(launcher)] == [["native", "ring", "tree"], ["native", "tree"], ["ring"]]
    results = load(tmp_path / "results.db")
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
    from parabench.analysis.collectives.bus import measured
    from parabench.analysis.numbers import numbers
    from parabench.analysis.session import select_session

    results = fake.write(tmp_path / "r.db", launches, protocol=protocol)
    sizes = measured(numbers(results, select_session(results)))
    # As nccl-tests has it: the mean of all batches, the disturbed one too.
    assert list(sizes["call_s"]) == pytest.approx([1e-3, (9 * 2e-3 + 200e-3) / 10])
    native, ring = sizes["compared_s"]
    assert ring / native == pytest.approx(2.0)
    assert native * ring == pytest.approx(1e-3 * (9 * 2e-3 + 200e-3) / 10)
    assert sizes["shared_launch"].nunique() == 1
