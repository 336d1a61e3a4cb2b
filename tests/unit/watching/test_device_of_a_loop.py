"""Which device of a host a watched loop is on, as NVML finds it. Not yet run on a GPU."""

from __future__ import annotations

import pytest
import torch

from parabench.machine.accelerator import Gpu
from parabench.machine.machine import Machine
from parabench.machine.nvml import Used
from parabench.watching import watch

GPUS = (Gpu("H200", 1, 4, "0000:01:00.0"), Gpu("H200", 1, 7, "0000:02:00.0"))


@pytest.mark.parametrize(
    ("device", "used"),
    [
        ("cpu", []),
        ("cuda", [Used(4, "0000:01:00.0")]),
        ("cuda:1", [Used(7, "0000:02:00.0")]),
        ("cuda:2", []),
    ],
)
def test_the_device_that_the_model_is_on_is_read(
    monkeypatch: pytest.MonkeyPatch, device: str, used: list[Used]
) -> None:
    monkeypatch.setattr(watch, "this_machine", lambda: Machine(cores=2, gpus=GPUS))
    assert watch._used(torch.device(device)) == used
