"""Warnings about the environment, and about a step that takes as long as its host needs to enqueue it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fake_results as fake
from answers_helpers import check
from parabench.analysis.warnings.launches import debug_environment
from parabench.plan.case import Case
from parabench.store.record import Finding, Launch

CUDA = pd.DataFrame([{"device": "cuda", "backend": "nccl"}, {"device": "cpu", "backend": "gloo"}])
GLOO_ON_CUDA = pd.DataFrame([{"device": "cuda", "backend": "gloo"}])
CPU = pd.DataFrame([{"device": "cpu", "backend": "gloo"}])


@pytest.mark.parametrize(
    ("env", "cases", "message"),
    [
        (
            {"NCCL_DEBUG": "TRACE", "CUDA_LAUNCH_BLOCKING": "1"},
            CUDA,
            "Debugging was on in the environment: with NCCL_DEBUG=TRACE NCCL logs each call, with "
            "CUDA_LAUNCH_BLOCKING=1 the host waits for each kernel. The times are longer than in training without it.",
        ),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, CPU, None),
        ({"NCCL_DEBUG": "TRACE"}, GLOO_ON_CUDA, None),
        ({"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}, CUDA, None),
    ],
)
def test_debug_environment_warns_if_it_has_an_effect(
    env: dict[str, str], cases: pd.DataFrame, message: str | None
) -> None:
    found = list(debug_environment(cases, {"env": env}))
    assert [each.message for each in found] == ([] if message is None else [message])
    assert all(each.advice == f"Unset {', '.join(env)} and measure again." for each in found)


# ---- launch-bound steps


def lagging(of: Case, *lags_s: float, repetition: int = 0) -> Launch:
    """Return a launch of 4 ms steps with these lags of the ranks' devices, and a lag of a second in the warm-up."""
    made = fake.launch(of, 0.004, repetition=repetition)
    for sample in list(made.samples):
        if sample.metric == "step_s":
            lag_s = 1.0 if sample.phase == "warmup" else lags_s[sample.rank]
            made.samples.append(sample._replace(metric="device_lag_s", value=lag_s))
    return made


def of(**fields: Any) -> Case:
    return fake.case(**({"device": "cuda", "backend": "nccl", "strategy": "ddp"} | fields))


def found(folder: Path, *launches: Launch) -> list[Finding]:
    results = fake.write(folder / "some.db", launches)
    return [each for each in check(results) if each.code == "launch_bound"]


def test_device_that_never_lags_waits_for_its_host(tmp_path: Path) -> None:
    [finding] = found(tmp_path, *(lagging(of(), 0.00005, 0.00006, repetition=repetition) for repetition in range(3)))
    assert finding.case_id == of().id
    assert "never more than 0.0500 ms behind its host, in a step of 4.00 ms" in finding.message
    assert "compile=on" in finding.advice


@pytest.mark.parametrize(
    ("fields", "lags_s", "rank"),
    [
        # The other devices wait in a collective, and lag far behind.
        ({}, [0.003, 0.00004], 1),
        ({}, [0.0005, 0.0005], None),
        ({}, [0.080, 0.080], None),
        # Collectives of gloo block the host.
        ({"backend": "gloo"}, [0.00005, 0.00005], None),
        ({"backend": "gloo", "strategy": "single", "world_size": 1}, [0.00005], 0),
    ],
)
def test_launch_bound_names_the_rank_with_the_slow_host(
    tmp_path: Path, fields: dict[str, Any], lags_s: list[float], rank: int | None
) -> None:
    messages = [each.message for each in found(tmp_path, lagging(of(**fields), *lags_s))]
    assert len(messages) == (rank is not None)
    assert all(f"the device of rank {rank} " in each for each in messages)
