"""A watched loop on a simulated CUDA device that runs behind its host."""

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
    """The device of the model. Only this device gets a context, even if it is not the current one."""
    device = Behind(monkeypatch, index=request.param, latency_s=repeat(2 * QUICK))
    yield device
    assert device.contexts == {request.param}


def take(loop: Loop, device: Behind, steps: int, *, forwards: int = 1) -> None:
    """Take steps of 1 ms on the host, and of 2 + 4 + 3 ms in the parts on the device."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: device.computes(0.003))
    with loop.hooked(model, optimizer):
        for _ in range(steps):
            loop.batch_requested()
            device.host(0.0005)
            loop.batch_received(None)
            for _ in range(forwards):
                device.computes(0.002 / forwards)
                model(torch.ones(1, 1)).sum().backward()
                device.computes(0.004 / forwards)
            optimizer.step()
            device.host(0.0005)
        loop.batch_requested()
        loop.no_more_batches()


def test_loop_on_cuda_takes_device_times_without_waiting(tmp_path: Path, behind: Behind) -> None:
    clock = StepClock(tmp_path / "marks", 300, behind.device, WIDTH)
    loop = Loop(clock)
    begun = behind.host_s
    take(loop, behind, 3)
    loop.finish()
    assert behind.host_s - begun == pytest.approx(3 * 0.001)  # the device is at 27 ms
    clock.finish()
    rows = read_marks(tmp_path / "marks", 300, WIDTH)[:3]
    assert np.diff(rows[1:, 0]) == pytest.approx(0.009, abs=QUICK)
    # The hook with 3 ms was registered before the hook of the loop, so it is part of backward.
    assert np.diff(rows[1]) == pytest.approx([0, 0.002, 0.007, 0, 0], abs=3 * QUICK)


def test_long_loop_on_cuda_reuses_events(tmp_path: Path, behind: Behind) -> None:
    steps = 4 * BLOCK + 7
    # One more step starts, and is discarded.
    clock = StepClock(tmp_path / "marks", steps + 1, behind.device, WIDTH)
    loop = Loop(clock)
    take(loop, behind, steps)
    loop.finish()
    clock.finish()
    rows = read_marks(tmp_path / "marks", steps + 1, WIDTH)[:steps]
    assert not np.isnan(rows).any()
    assert np.diff(rows[1:, 0]) == pytest.approx(0.009, abs=3 * QUICK)
    assert behind.made < 3 * BLOCK * WIDTH
