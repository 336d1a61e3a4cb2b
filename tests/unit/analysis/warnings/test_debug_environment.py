"""The warning that debugging variables of the environment slowed the launches."""

from __future__ import annotations

import pandas as pd
import pytest

from parabench.analysis.warnings.launches import debug_environment

CUDA = pd.DataFrame([{"device": "cuda", "backend": "nccl"}, {"device": "cpu", "backend": "gloo"}])
GLOO_ON_CUDA = pd.DataFrame([{"device": "cuda", "backend": "gloo"}])
CPU = pd.DataFrame([{"device": "cpu", "backend": "gloo"}])


@pytest.mark.parametrize(
    ("env", "cases", "names"),
    [
        ({"CUDA_LAUNCH_BLOCKING": "1"}, CUDA, "CUDA_LAUNCH_BLOCKING"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, CPU, None),
        ({"NCCL_DEBUG": "TRACE"}, GLOO_ON_CUDA, None),
        ({"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}, CUDA, None),
    ],
)
def test_debug_environment_warns_if_it_has_an_effect(env, cases, names):
    found = list(debug_environment(cases, {"env": env}))
    assert [each.advice for each in found] == ([] if names is None else [f"Unset {names} and measure again."])


def test_debug_environment_names_setting_and_cost():
    (found,) = debug_environment(CUDA, {"env": {"NCCL_DEBUG": "TRACE", "CUDA_LAUNCH_BLOCKING": "1"}})
    assert found.message.startswith(
        "Debugging was on in the environment: with NCCL_DEBUG=TRACE NCCL logs each call, with CUDA_LAUNCH_BLOCKING=1 "
        "the host waits for each kernel."
    )
