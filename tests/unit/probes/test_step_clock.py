"""The step clock on a simulated CUDA device that runs behind its host."""

import json
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
import torch

from fake_cuda import Behind
from parabench.launch import hang
from parabench.probes.step_clock import MARKS, StepClock, read_marks

CUDA = torch.device("cuda", 0)
QUICK = 5e-6


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> Behind:
    return Behind(monkeypatch, latency_s=repeat(2 * QUICK))


def step(clock: StepClock, device: Behind, *, host_s: float, device_s: float, skips: bool = False) -> None:
    """Take five marks, with a quarter of the times between two marks."""
    clock.mark()
    for part in range(4):
        device.host(host_s / 4)
        device.computes(device_s / 4)
        if skips and part == 1:
            clock.skip()
        else:
            clock.mark()


def test_marks_have_the_time_of_the_device(tmp_path: Path, behind: Behind) -> None:
    clock = StepClock(tmp_path / "marks", 3, CUDA)
    for _ in range(3):
        step(clock, behind, host_s=0.004, device_s=0.100, skips=True)
    assert np.isnan(read_marks(tmp_path / "marks", 3)).all()
    clock.finish()
    marks = read_marks(tmp_path / "marks", 3)
    assert (marks[:, -1] - marks[:, 0]).tolist() == pytest.approx([0.101, 0.100, 0.100], abs=1e-6)
    assert np.isnan(marks[:, 2]).all()
    assert not np.isnan(np.delete(marks, 2, axis=1)).any()
    assert clock.begins() == pytest.approx([*marks[:, 0], marks[-1, -1]])


def test_marks_are_unknown_when_the_device_hangs(tmp_path: Path, behind: Behind) -> None:
    clock = StepClock(tmp_path / "marks", 5, CUDA)
    for _ in range(2):
        step(clock, behind, host_s=0.001, device_s=0.010)
    clock.mark()
    clock.mark()
    behind.stuck = True  # a collective in step 2's forward
    for _ in range(3):
        clock.mark()
    for _ in range(2):
        step(clock, behind, host_s=0.001, device_s=0.010)
    behind.host(60.0)
    hang.set_clock(clock, CUDA)
    hang.answer(tmp_path, 3)
    marks = read_marks(tmp_path / "marks", 5).reshape(-1)
    assert np.flatnonzero(np.isnan(marks)).tolist() == list(range(12, 25))
    assert (marks[4] - marks[0], marks[9] - marks[5]) == pytest.approx((0.01025, 0.010), abs=1e-6)
    assert hang.read_answer(tmp_path, 3)["enqueued"] == 25
    assert hang.read_answer(tmp_path, 2) == {}


@pytest.mark.parametrize("drift", [40e-6, -25e-6])
def test_marks_are_corrected_for_clock_drift(drift: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Behind(monkeypatch, drift=drift, latency_s=repeat(2 * QUICK))
    clock = StepClock(tmp_path / "marks", 200, CUDA)
    ends = []
    for _ in range(200):
        step(clock, device, host_s=0.1, device_s=0.5)
        ends.append(device.device_s)
    clock.finish()
    seen = read_marks(tmp_path / "marks", 200)[:, -1]
    # After 100 s, the clocks differ by milliseconds.
    assert np.abs(seen - ends).max() < 3 * QUICK
    numbers = clock.moments.numbers()
    assert numbers["device_clock_drift"] == pytest.approx(drift, abs=1e-6)
    assert numbers["device_clock_error_s"] == pytest.approx(QUICK, rel=0.01)


@pytest.mark.parametrize(
    ("host_s", "device_s", "lag_s"),
    [(0.010, 0.001, 0.00025), (0.001, 0.010, 0.09025)],
    ids=["the host is behind", "the device is behind"],
)
def test_lags_measure_the_delay_of_the_device(
    host_s: float, device_s: float, lag_s: float, tmp_path: Path, behind: Behind
) -> None:
    clock = StepClock(tmp_path / "marks", 10, CUDA)
    for _ in range(10):
        step(clock, behind, host_s=host_s, device_s=device_s)
    clock.finish()
    lags = clock.lags()
    assert [(at, name) for at, name, _ in lags] == [(at, "device_lag_s") for at in range(10)]
    assert lags[-1][2] == pytest.approx(lag_s, abs=2.1 * QUICK)


def test_clock_on_cpu_has_no_lags(tmp_path: Path) -> None:
    clock = StepClock(tmp_path / "marks", 1, torch.device("cpu"))
    for _ in range(MARKS):
        clock.mark()
    assert not np.isnan(read_marks(tmp_path / "marks", 1)).any()
    assert (clock.lags(), clock.enqueued, clock.moments.numbers()) == ([], None, {})
    clock.read()
    clock.finish()
    hang.set_clock(clock, torch.device("cpu"))
    hang.answer(tmp_path, 0)
    # The flight recorder has entries of other tests.
    assert set(json.loads((tmp_path / "standing0.json").read_text())) == {"groups"}
