"""The short form of the soak: real launches of four ranks, and that it complains where there is reason to."""

from __future__ import annotations

import subprocess
from typing import Any

import psutil
import pytest

from benchmarks import soak, turns_soak
from parabench.launch.spec import LaunchSpec
from parabench.store.record import Failure, Launch, Phase, Sample, Status

# All algorithms once, each under one strategy. The slow tests of test_strategies have all but the two spelled-out
# two_level(...) under every strategy, `make soak` has every pair.
LAUNCHES = len(soak.ALGORITHMS)


@pytest.mark.slow  # `make soak` trains every pair of these
def test_launches_of_four_ranks_end_well_and_compute_what_one_device_does() -> None:
    seen: list[Launch] = []
    assert list(soak.soak(soak.specs(LAUNCHES), soak.PROTOCOL, seen.append)) == []
    assert [launch.case for launch in seen] == soak.CASES[:LAUNCHES]
    assert {launch.case.algorithm for launch in seen} == set(soak.ALGORITHMS)
    assert {launch.case.strategy for launch in seen} == {"ddp", "fsdp", "tp"}


def test_a_round_has_every_algorithm_under_every_strategy() -> None:
    pairs = {(each.algorithm, each.strategy, each.bucket_mib) for each in soak.CASES}
    assert len(pairs) == len(soak.CASES) == len(soak.ALGORITHMS) * len(soak.STRATEGIES)


@pytest.mark.slow  # test_turns_launch has such launches, and checks more of them
def test_shared_launches_of_any_strategies_and_sizes_end_well_and_compute_what_one_device_does() -> None:
    seen: list[Launch] = []
    short = list(turns_soak.specs(3))[1:]
    assert list(soak.soak(short, turns_soak.REFERENCE, seen.append)) == []
    assert [len(launch.arms) for launch in seen] == [len(spec.cases) for spec in short]
    # Four ranks of which each holds what it did at each step of one of the cases.
    assert all(len(launch.arms[0].facts["watched"]) == 4 for launch in seen)


def stand_in(monkeypatch: pytest.MonkeyPatch, faults: dict[str, Any]) -> None:
    """Launches that never happen; `faults` says by algorithm what one of them does."""

    def launch(spec: LaunchSpec) -> Launch:
        case = spec.case
        fault = faults.get(case.algorithm, lambda launch: None)
        samples = [Sample(0, 0, Phase.WARMUP, metric, 1.0) for metric in ("loss", "grad_norm")]
        made = Launch(case=case, status=Status.OK, started_utc="", wall_s=1.0, samples=samples)
        fault(made)
        return made

    monkeypatch.setattr(soak, "launch", launch)
    monkeypatch.setattr(soak, "start_server", lambda: None)


def hangs(launch: Launch) -> None:
    launch.status, launch.failure = Status.HUNG, Failure("no end after 60 s")


def computes_something_else(launch: Launch) -> None:
    launch.samples = [Sample(0, 0, Phase.WARMUP, metric, 2.0) for metric in ("loss", "grad_norm")]


def test_a_launch_that_is_not_ok_is_told_with_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, {"tree": hangs, "two_level": computes_something_else})
    complaints = list(soak.soak(soak.specs(LAUNCHES), soak.PROTOCOL, lambda _: None))
    assert len(complaints) == 2
    assert "launch 2, tp tree, 4 ranks: hung" in complaints[0]
    assert "no end after 60 s" in complaints[0]
    assert "launch 5, fsdp two_level, 4 ranks: wrong" in complaints[1]


def test_a_process_that_is_left_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[subprocess.Popen[bytes]] = []

    def leaves(_: Launch) -> None:
        left.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE))

    stand_in(monkeypatch, {"ring": leaves})
    try:
        complaints = list(soak.soak(soak.specs(LAUNCHES), soak.PROTOCOL, lambda _: None))
        assert len(complaints) == 1
        assert f"launch 1, fsdp ring, 4 ranks: left processes {{{left[0].pid}: " in complaints[0]
        assert psutil.pid_exists(left[0].pid)
    finally:
        for process in left:
            process.communicate()
