"""The soak reports what is wrong; `make soak` has the real launches."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import soak
from parabench.launch.spec import LaunchSpec
from parabench.store.record import Failure, Launch, Phase, Sample, Status

LAUNCHES = len(soak.ALGORITHMS)


def stand_in(monkeypatch: pytest.MonkeyPatch, faults: dict[str, Any]) -> None:
    """Replace launches by fakes; `faults` has a function for the launches of an algorithm."""

    def launch(spec: LaunchSpec) -> Launch:
        case = spec.case
        samples = [Sample(0, 0, Phase.WARMUP, metric, 1.0) for metric in ("loss", "grad_norm")]
        made = Launch(case=case, status=Status.OK, started_utc="", wall_s=1.0, samples=samples)
        faults.get(case.algorithm, lambda launch: None)(made)
        return made

    monkeypatch.setattr(soak, "launch", launch)
    monkeypatch.setattr(soak, "start_server", lambda: None)


def hangs(launch: Launch) -> None:
    launch.status, launch.failure = Status.HUNG, Failure("no end after 60 s")


def computes_something_else(launch: Launch) -> None:
    launch.samples = [Sample(0, 0, Phase.WARMUP, metric, 2.0) for metric in ("loss", "grad_norm")]


def test_soak_reports_launches_that_are_not_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, {"tree": hangs, "two_level": computes_something_else})
    one, two = soak.soak(soak.specs(LAUNCHES), soak.PROTOCOL, lambda _: None)
    assert "launch 2, tp tree, 4 ranks: hung" in one
    assert "no end after 60 s" in one
    assert "launch 5, fsdp two_level, 4 ranks: wrong" in two


def test_soak_covers_every_algorithm_and_strategy() -> None:
    pairs = {(each.algorithm, each.strategy, each.bucket_mib) for each in soak.CASES}
    assert len(pairs) == len(soak.CASES) == len(soak.ALGORITHMS) * len(soak.WRAPPERS)
    assert all(4 <= len(spec.cases) <= 6 for spec in soak.shared_specs(3))
