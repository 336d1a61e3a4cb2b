"""A watched loop on a CUDA device that runs behind its host, on a stand-in. Not yet run on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fake_cuda import Behind
from parabench.probes.step_clock import BLOCK, StepClock, read_marks
from parabench.watching.loop import WIDTH, Loop

QUICK = 5e-6


@pytest.fixture(params=[0, 1], ids=["current device", "another device"])
def behind(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Behind]:
    """The model's device, which is the current one or not; no other gets a context."""
    device = Behind(monkeypatch, index=request.param, latency_s=repeat(2 * QUICK))
    yield device
    assert device.contexts == {request.param}


def take(loop: Loop, device: Behind, steps: int, *, forwards: int = 1) -> None:
    """Steps of which the host spends 1 ms, half of it loading, and the device 2 + 4 + 3 ms in its parts."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: device.computes(0.003))
    with loop.hooked(model, optimizer):
        for _ in range(steps):
            loop.asks()
            device.host(0.0005)
            loop.has(None)
            for _ in range(forwards):
                device.computes(0.002 / forwards)
                model(torch.ones(1, 1)).sum().backward()
                device.computes(0.004 / forwards)
            optimizer.step()
            device.host(0.0005)
        loop.asks()
        loop.has_none()


def test_moments_are_the_device_s_and_nobody_waits_for_them(tmp_path: Path, behind: Behind) -> None:
    clock = StepClock(tmp_path / "marks", 300, behind.device, WIDTH)
    loop = Loop(clock)
    begun = behind.host_s
    take(loop, behind, 3)
    loop.finish()
    assert behind.host_s - begun == pytest.approx(3 * 0.001)  # the device is at 27 ms
    clock.finish()
    rows = read_marks(tmp_path / "marks", 300, WIDTH)[:3]
    assert np.diff(rows[1:, 0]) == pytest.approx(0.009, abs=QUICK)
    # A hook that was there before the loop's comes first: its 3 ms are backward's.
    assert np.diff(rows[1]) == pytest.approx([0, 0.002, 0.007, 0, 0], abs=3 * QUICK)


def test_a_long_loop_uses_its_events_again(tmp_path: Path, behind: Behind) -> None:
    steps = 4 * BLOCK + 7
    # One more is asked for, and is none.
    clock = StepClock(tmp_path / "marks", steps + 1, behind.device, WIDTH)
    loop = Loop(clock)
    take(loop, behind, steps)
    loop.finish()
    clock.finish()
    rows = read_marks(tmp_path / "marks", steps + 1, WIDTH)[:steps]
    assert not np.isnan(rows).any()
    assert np.diff(rows[1:, 0]) == pytest.approx(0.009, abs=3 * QUICK)
    assert behind.made < 3 * BLOCK * WIDTH
