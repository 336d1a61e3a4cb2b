"""The warning that a step takes as long as its host needs to enqueue it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fake_results as fake
from answers_helpers import check
from parabench.plan.case import Case
from parabench.store.record import Finding, Launch


def lagging(of: Case, *lags_s: float, step_s: float = 0.004, repetition: int = 0, data: float | None = None) -> Launch:
    """Return a launch with these lags of the ranks' devices, and a lag of a second in the warm-up."""
    made = fake.launch(of, step_s, repetition=repetition)
    for sample in list(made.samples):
        if sample.metric == "step_s":
            lag_s = 1.0 if sample.phase == "warmup" else lags_s[sample.rank]
            made.samples.append(sample._replace(metric="device_lag_s", value=lag_s))
    if data is not None:
        made.samples = [s._replace(value=data * step_s) if s.metric == "data_s" else s for s in made.samples]
    return made


def of(**fields: Any) -> Case:
    return fake.case(**({"device": "cuda", "backend": "nccl", "strategy": "ddp"} | fields))


def found(folder: Path, *launches: Launch) -> list[Finding]:
    results = fake.write(folder / "some.db", launches)
    return [each for each in check(results) if each.code == "launch_bound"]


def test_device_that_never_lags_waits_for_its_host(tmp_path: Path) -> None:
    [finding] = found(tmp_path, *(lagging(of(), 0.00005, 0.00006, repetition=repetition) for repetition in range(3)))
    assert (finding.code, finding.case_id) == ("launch_bound", of().id)
    assert "never more than 0.0500 ms behind its host, in a step of 4.00 ms" in finding.message
    assert "compile=on" in finding.advice


def test_one_slow_host_is_enough(tmp_path: Path) -> None:
    """The other devices wait in a collective, and lag far behind."""
    [finding] = found(tmp_path, lagging(of(), 0.003, 0.00004))
    assert "the device of rank 1 " in finding.message


@pytest.mark.parametrize("lag_s", [0.0005, 0.080])
def test_device_that_lags_is_measured(lag_s: float, tmp_path: Path) -> None:
    assert found(tmp_path, lagging(of(), lag_s, lag_s)) == []


def test_lag_does_not_count_when_collectives_block_the_host(tmp_path: Path) -> None:
    assert found(tmp_path, lagging(of(backend="gloo"), 0.00005, 0.00005)) == []
    alone = of(backend="gloo", strategy="single", world_size=1)
    assert len(found(tmp_path, lagging(alone, 0.00005))) == 1
