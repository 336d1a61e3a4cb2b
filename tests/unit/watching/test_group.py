"""The ranks of a watched loop: messages through the rendezvous store, and hosts whose ranks have different devices."""

import importlib.metadata
import json
import random
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from fake_nvml import Device, FakeNvml
from parabench.launch.outcome import diagnose
from parabench.launch.processes import ProcessOutcome
from parabench.launch.results import RankReport
from parabench.machine.machine import Machine, this_machine
from parabench.plan.case import Case
from parabench.plan.validate import exceeds_machine
from parabench.store.record import DeviceSample, HostSample, Status
from parabench.watching.group import Group, cores_of, describe_rank, environment_of, machine_of
from parabench.watching.loop import WIDTH
from parabench.watching.record import RankResult, node_results

ADDRESSES = ("00000000:1A:00.0", "00000000:3B:00.0", "00000000:9C:00.0", "00000000:DB:00.0")


def test_collect_returns_what_ranks_sent() -> None:
    store = dist.HashStore()
    for rank in (2, 1):
        Group(store, rank, ("a",) * 4).send({"rank": rank})
    assert Group(store, 0, ("a",) * 4).collect(0.05, lambda: False) == [{"rank": 1}, {"rank": 2}, None]


def test_send_splits_long_messages() -> None:
    long = {"marks": random.Random(0).randbytes(9 << 20).hex()}  # 9 MiB that cannot be compressed
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    Group(store, 1, ("a", "a")).send(long)
    assert Group(store, 0, ("a", "a")).collect(10.0, lambda: False) == [long]


# srun --gpus-per-task=1 with control groups; --gpu-bind=single:1, which sets the variable; the user's choice.
@pytest.mark.parametrize(
    ("shown", "numbers"),
    [
        ([([address], None) for address in ADDRESSES], [0, 1, 2, 3]),
        ([(ADDRESSES, str(rank)) for rank in range(4)], [0, 1, 2, 3]),
        ([(ADDRESSES, "3,0,1")] * 2, [3, 0]),
        ([(ADDRESSES, "0,1"), (ADDRESSES, "0,3")], [0, 3]),
    ],
)
def test_host_has_the_devices_of_all_its_ranks(
    monkeypatch: pytest.MonkeyPatch, shown: list[Any], numbers: list[int]
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.13.0+cu130")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    abouts, group = [], Group(None, 0, ("host",) * len(shown))
    for rank, (addresses, visible) in enumerate(shown):
        FakeNvml(*(Device(uuid=f"GPU-{each}", address=each) for each in addresses)).install(monkeypatch)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        about = describe_rank(Group(None, rank, group.hosts), this_machine())
        abouts.append(json.loads(json.dumps(about)))
    here = machine_of(abouts, Machine(cores=1), group)
    assert [(gpu.index, gpu.address) for gpu in here.gpus] == [(number, ADDRESSES[number]) for number in numbers]
    case = Case(strategy="ddp", world_size=len(shown), device="cuda", backend="nccl")
    assert exceeds_machine(case, here) is None
    recorded = environment_of(abouts)
    assert [gpu["index"] for gpu in recorded["gpus"]] == numbers
    assert recorded["nvml"] == {"available": True, "reason": None}
    assert not any(address in json.dumps(recorded) for address in ADDRESSES)


def bound(*cores: int, limit: float | None = None) -> dict[str, Any]:
    environment = {"host": "b", "cores": 1, "gpus": []}
    return {"cores": list(cores), "core_limit": limit, "environment": environment, "devices_reason": None}


def test_cores_of_host_include_all_ranks() -> None:
    assert cores_of([bound(0, 1), bound(2, 3)]) == 4
    assert cores_of([bound(0, 1), bound(0, 1)]) == 2
    assert cores_of([bound(0, 1, limit=1.5), bound(2, 3, limit=1.5)]) == 2
    # mpirun binds each rank to one core; the record of a host has the cores of all its ranks.
    assert environment_of([bound(4), bound(6)]) == {"host": "b", "cores": 2, "gpus": []}


def found_of(rank: int, began_s: float, **unread: str) -> RankResult:
    return RankResult(
        report=RankReport(rank=rank),
        marks=np.zeros((3, WIDTH)),
        began_s=began_s,
        about={},
        stopped=False,
        device_samples=[DeviceSample(rank, 1.0, "power_w", 5.0)],
        host_samples=[HostSample(rank, 1.0, "rss_bytes", 5.0)],
        sampler={"period_s": 0.1, "ticks": 9, "missed": 0, "cpu_s": 0.25, "unread": unread},
    )


def test_node_results_join_the_ranks_of_each_host() -> None:
    found = [found_of(0, 10.0), found_of(1, 10.5, nvml="gone"), found_of(2, 1.0), found_of(3, 1.0)]
    first, second = node_results(Group(None, 0, ("a", "a", "b", "b")), found, 1.0)
    assert (first.node, list(first.ranks), first.began_s, first.outcome) == (0, [0, 1], 10.0, ProcessOutcome(ok=True))
    assert (second.node, list(second.ranks), second.host) == (1, [2, 3], "b")
    # Times of readings count from the first rank of their host.
    assert [(each.device, each.t_s) for each in first.device_samples] == [(0, 1.0), (1, 1.5)]
    assert [(each.rank, each.t_s) for each in first.host_samples] == [(0, 1.0), (1, 1.5)]
    assert (first.sampler["cpu_s"], first.sampler["unread"]) == (0.5, {"nvml": "gone"})
    assert diagnose([first, second], str, 60.0) == (Status.OK, None)


def test_node_results_name_the_lost_rank() -> None:
    (node,) = node_results(Group(None, 0, ("a", "a")), [found_of(0, 10.0), None], 4.8)
    assert (node.began_s, node.outcome, node.tails) == (10.0, ProcessOutcome(ok=False), ["", ""])
    status, failure = diagnose([node], str, 60.0)
    assert status is Status.CRASHED
    assert failure.message == "rank 1 (a) sent no results within 5 s of rank 0's end"
