"""The finding that a step lasts as long as the host needs to enqueue it, from the marks of devices and hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fake_results as fake
from answers_helpers import check
from parabench.plan.case import Case
from parabench.store.record import Finding, Launch


def lagging(of: Case, *lags_s: float, step_s: float = 0.004, block: int = 0, data: float | None = None) -> Launch:
    """A launch of which each rank's device lags by one of `lags_s`, in the warm-up by a second."""
    made = fake.launch(of, step_s, block=block)
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


def test_a_device_that_is_never_behind_waits_for_its_host(tmp_path: Path) -> None:
    [said] = found(tmp_path, *(lagging(of(), 0.00005, 0.00006, block=block) for block in range(3)))
    assert (said.code, said.case_id) == ("launch_bound", of().id)
    assert "never more than 0.0500 ms behind its host, in a step of 4.00 ms" in said.message
    assert "compile=on" in said.advice


def test_one_host_that_is_too_slow_holds_up_all_ranks(tmp_path: Path) -> None:
    """The others' devices wait in a collective, far behind their hosts."""
    [said] = found(tmp_path, lagging(of(), 0.003, 0.00004))
    assert "the device of rank 1 " in said.message


@pytest.mark.parametrize("lag_s", [0.0005, 0.002, 0.080])
def test_a_device_that_falls_behind_is_what_is_measured(lag_s: float, tmp_path: Path) -> None:
    assert found(tmp_path, lagging(of(), lag_s, lag_s)) == []


def test_where_collectives_block_the_host_the_lag_says_nothing(tmp_path: Path) -> None:
    assert found(tmp_path, lagging(of(backend="gloo"), 0.00005, 0.00005)) == []
    alone = of(backend="gloo", strategy="single", world_size=1)
    assert len(found(tmp_path, lagging(alone, 0.00005))) == 1
