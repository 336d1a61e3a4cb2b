"""The group that a rank joins, as far as it needs no other rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from parabench.collectives import membership


@pytest.mark.parametrize(
    ("backend", "device", "told"),
    [("nccl", "cuda:3", {"device_ids": [3]}), ("gloo", "cuda:3", {}), ("gloo", "cpu", {})],
)
def test_nccls_barrier_is_told_its_device(backend, device, told, monkeypatch):
    """As the first operation of a group it would guess one from the rank, and make a communicator there."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(dist, "barrier", lambda **options: calls.append(options))
    membership.barrier(backend, torch.device(device))
    assert calls == [told]
