"""Warnings from readings of devices and hosts, from the environment, and about slow hosts."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fake_devices
import fake_results as fake
from answers_helpers import check
from fake_devices import device_samples, gpu_case, host_samples, read
from parabench.analysis.scaling import curves
from parabench.analysis.session import session_data
from parabench.analysis.warnings.launches import debug_environment
from parabench.store.record import Finding, Launch

CODES = {
    "foreign_process", "throttled", "power_capped", "clocks_moved", "ecc_errors", "host_busy", "device_unreadable",
    "launch_bound",
}  # fmt: skip


def found(folder: Path, *launches: Launch) -> list[Finding]:
    """Return the warnings about devices and hosts."""
    results = fake.write(folder / f"{len(list(folder.iterdir()))}.db", launches)
    return [finding for finding in check(results) if finding.code in CODES]


def launch(repetition: int = 0, **changed: fake_devices.Value) -> Launch:
    return read(fake.launch(gpu_case(), repetition=repetition), device_samples(**changed), host_samples())


def moving_clock(t: float) -> float:
    """The clock of twenty busy readings between 1 and 3 s, in thirds of seven, seven and six, and one idle reading."""
    return 0.3e9 if t == 2.0 else 1.5e9 if t < 1.65 else 1.98e9


def test_healthy_device_and_idle_host_cause_no_warning(tmp_path: Path) -> None:
    # A device may reach its power limit now and then.
    assert found(tmp_path, launch(), launch(1, clock_event_reasons=lambda t: 4.0 * (t == 2.0))) == []


@pytest.mark.parametrize(
    ("code", "changed", "message"),
    [
        (
            "throttled",
            # 21 readings from 1.0 to 3.0 s: 5 with heat, one of them also with a power brake.
            {"clock_event_reasons": lambda t: {1.5: 0x20, 1.6: 0xA0, 1.7: 0x20, 1.8: 0x20, 1.9: 0x22}.get(t, 0)},
            "throttled its clocks in 24% of the readings during the measured steps: heat, by software in 24%, power "
            "brake in 4.8%.",
        ),
        (
            "clocks_moved",
            {"sm_clock_hz": moving_clock, "clock_event_reasons": lambda t: float(t == 2.0)},
            "ran at 1,500 MHz in one third of a launch's measured steps and at 1,980 MHz in another (means, 24% apart)",
        ),
    ],
)
def test_reading_of_a_device_causes_a_warning(
    tmp_path: Path, code: str, changed: dict[str, fake_devices.Value], message: str
) -> None:
    (finding,) = found(tmp_path, launch(1, **changed))
    assert (finding.code, finding.case_id) == (code, gpu_case().id)
    assert f"device 0 {message}" in finding.message


def test_busy_host_causes_a_warning(tmp_path):
    def busy(t: float) -> float:
        return 0.4 if 1.0 <= t <= 3.0 else 0.0

    cpu = fake.case()
    (finding,) = found(
        tmp_path,
        read(fake.launch(cpu), host=host_samples(others=busy)),
        read(fake.launch(cpu, repetition=1), host=host_samples(others=lambda t: 0.9 - busy(t) * 2.2)),
        read(fake.launch(cpu, repetition=2), host=host_samples(others=0.09)),
    )
    assert finding.code == "host_busy"
    assert "in 1 of 3 launches other processes used up to 40% of the host's CPU time" in finding.message


def test_shared_device_has_a_warning_and_no_scaling(tmp_path):
    environment = fake.ENVIRONMENT | {"gpus": [{"name": "NVIDIA H200", "memory_bytes": 1}]}
    launches = [fake.launch(gpu_case(world_size=size, backend="gloo"), 0.02) for size in (1, 2, 4)]
    results = fake.write(tmp_path / "shared.db", launches, environment=environment)
    (finding,) = [each for each in check(results) if each.code == "shared_device"]
    assert finding.message.startswith("ddp native, 2 ranks; ddp native, 4 ranks: ")
    assert curves(session_data(results)).empty
    environment["gpus"] *= 4
    results = fake.write(tmp_path / "own.db", launches, environment=environment)
    assert "shared_device" not in {each.code for each in check(results)}
    assert sorted(curves(session_data(results))["world_size"]) == [1, 2, 4]


# ---- variables for debugging

CUDA, GLOO_ON_CUDA, CPU = (
    pd.DataFrame([{"device": device, "backend": backend}])
    for device, backend in (("cuda", "nccl"), ("cuda", "gloo"), ("cpu", "gloo"))
)


@pytest.mark.parametrize(
    ("env", "cases"),
    [
        ({"CUDA_LAUNCH_BLOCKING": "1"}, CPU),
        ({"NCCL_DEBUG": "TRACE"}, GLOO_ON_CUDA),
        ({"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}, CUDA),
    ],
)
def test_debug_environment_without_effect_causes_no_warning(env: dict[str, str], cases: pd.DataFrame) -> None:
    assert not list(debug_environment(cases, {"env": env}))


# ---- launch-bound steps


def lagging(*lags_s: float, **fields: Any) -> Launch:
    """Return a launch of 4 ms steps with these lags of the ranks' devices, and a lag of a second in the warm-up."""
    made = fake.launch(gpu_case(**{"backend": "nccl"} | fields), 0.004)
    for sample in list(made.samples):
        if sample.metric == "step_s":
            lag_s = 1.0 if sample.phase == "warmup" else lags_s[sample.rank]
            made.samples.append(sample._replace(metric="device_lag_s", value=lag_s))
    return made


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
    messages = [each.message for each in found(tmp_path, lagging(*lags_s, **fields))]
    assert len(messages) == (rank is not None)
    assert all(f"the device of rank {rank} " in each for each in messages)
