"""Hosts whose ranks see different devices, as under Slurm with one device for each rank."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fake_nvml import Device, FakeNvml
from parabench.machine import machine
from parabench.plan.case import Case
from parabench.plan.validate import exceeds_machine
from parabench.watching import group as hosts
from parabench.watching.group import About, Group

ADDRESSES = ("00000000:1A:00.0", "00000000:3B:00.0", "00000000:9C:00.0", "00000000:DB:00.0")

# The addresses that NVML shows a rank, and its CUDA_VISIBLE_DEVICES.
Shown = tuple[Sequence[str], str | None]


def device(address: str, **fields: Any) -> Device:
    return Device(uuid=f"GPU-{address}", address=address, **fields)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[About]]:
    """Return the reports of the ranks of one host as rank 0 receives them."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.13.0+cu130")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)

    def of(*shown: Shown) -> list[About]:
        abouts = []
        for rank, (addresses, visible) in enumerate(shown):
            FakeNvml(*map(device, addresses)).install(monkeypatch)
            if visible is None:
                monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
            else:
                monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
            abouts.append(json.loads(json.dumps(hosts.of_this(group(rank, len(shown)), machine.this_machine()))))
        return abouts

    return of


def group(rank: int, size: int) -> Group:
    return Group(store=None, rank=rank, hosts=("host",) * size)


def planned(abouts: list[About]) -> machine.Machine:
    """Return the machine of rank 0's plan."""
    return hosts.machine_of(abouts, machine.Machine(cores=1), group(0, len(abouts)))


def nccl(ranks: int) -> Case:
    return Case(strategy="ddp", world_size=ranks, device="cuda", backend="nccl")


# srun --gpus-per-task=1 with control groups; --gpu-bind=single:1, which only sets the variable.
APART = [([address], None) for address in ADDRESSES]
BOUND = [(ADDRESSES, str(rank)) for rank in range(4)]


@pytest.mark.parametrize("shown", [APART, BOUND])
def test_host_has_the_devices_of_all_its_ranks(reports, shown):
    abouts = reports(*shown)
    here = planned(abouts)
    assert [(gpu.index, gpu.address) for gpu in here.gpus] == list(enumerate(ADDRESSES))
    assert here.ranks("cuda") == 4
    assert exceeds_machine(nccl(4), here) is None
    recorded = hosts.environment_of(abouts)
    assert [gpu["index"] for gpu in recorded["gpus"]] == [0, 1, 2, 3]
    assert recorded["nvml"] == {"available": True, "reason": None}
    assert not any(address in json.dumps(recorded) for address in ADDRESSES)


def test_record_of_host_has_the_used_devices(reports):
    abouts = reports(*[(ADDRESSES, "3,0,1")] * 2)
    assert [gpu.index for gpu in planned(abouts).gpus] == [3, 0]
    assert [gpu["index"] for gpu in hosts.environment_of(abouts)["gpus"]] == [3, 0]
