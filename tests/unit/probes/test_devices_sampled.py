"""The sampler of devices on a simulated clock: values, faults, processes, and the used devices."""

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

import fake_nvml
from fake_nvml import GIB, Clock, Device, FakeNvml
from guard import GUARD_S
from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.machine import nvml
from parabench.metrics import METRICS
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.probes.devices import PAIR_S, Devices
from parabench.probes.sampler import PERIOD_S, RankPids, Sampler
from parabench.store.record import NOT_SUPPORTED, DeviceSample, Status

LOST = "the GPU is lost: it fell off the bus or has hung"
RANKS = {0: 501, 1: 502}


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)


def ran(clock: Clock, source: Devices, *others: Any) -> Sampler:
    sampler = Sampler(clock.began_s, [source, *others], clock=clock, stop=clock)
    sampler.run()
    return sampler


def sampled(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    *devices: Device,
    end_s: float = 0.5,
    size: int = 0,
    ours: int | None = None,
) -> tuple[list[DeviceSample], dict[str, Any]]:
    """Return the readings at 0, 0.1, ... until `end_s`, and the sampler's facts.

    Ranks of the process `ours` are not foreign.
    """
    clock = Clock(end_s)
    fake = FakeNvml(*devices, clock=clock).install(monkeypatch)
    for rank, pid in RANKS.items():
        (folder / f"pid{rank}").write_text(str(pid))

    pids, used = RankPids(folder, range(2)), partial(nvml.used_devices, size or len(devices))
    source = Devices(clock.began_s, pids, used, ours=ours, clock=clock, sleep=clock.sleep)
    facts = ran(clock, source).facts()
    assert fake.begun == 0
    return source.samples, facts


def of(samples: list[DeviceSample], metric: str, device: int = 0, rank: int | None = None) -> list[DeviceSample]:
    return [s for s in samples if (s.device, s.metric, s.rank) == (device, metric, rank)]


def values(samples: list[DeviceSample], metric: str, device: int = 0, rank: int | None = None) -> list[float | None]:
    return [s.value for s in of(samples, metric, device, rank)]


def test_readings_are_periodic_and_in_si_units(monkeypatch, tmp_path):
    device = Device(computing=[(501, GIB)])
    samples, facts = sampled(monkeypatch, tmp_path, device, Device(uuid="GPU-1", power_w=100.0))
    expected = {
        "used_bytes": 2.0 * GIB, "power_w": 400.0, "sm_clock_hz": 1.98e9, "memory_clock_hz": 3.201e9,
        "clock_event_reasons": 0.0, "gpu_utilization": 0.98, "memory_utilization": 0.4, "temperature_c": 61.0,
        "foreign_processes": 0.0, "foreign_bytes": 0.0,
    }  # fmt: skip
    assert {metric: set(values(samples, metric)) for metric in expected} == {m: {v} for m, v in expected.items()}
    assert [s.t_s for s in of(samples, "power_w")] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert values(samples, "energy_j") == pytest.approx([5000.0, 5040.0, 5080.0, 5120.0, 5160.0])
    assert set(values(samples, "power_w", device=1)) == {100.0}
    # Counters become rates. The first reading has no rate.
    rates = {
        "pcie_tx_bytes_per_s": 1e9, "pcie_rx_bytes_per_s": 2e9,
        "nvlink_tx_bytes_per_s": 1.024e9, "nvlink_rx_bytes_per_s": 3.072e9,
    }  # fmt: skip
    for metric, rate in rates.items():
        assert values(samples, metric) == pytest.approx([rate] * 4, rel=1e-6)
    # Slow readings are made at the start and at the end of a short launch.
    assert [s.t_s for s in of(samples, "ecc_corrected")] == pytest.approx([0.0, 0.5])
    assert {s.metric for s in samples} <= METRICS.keys()
    assert facts | {"cpu_s": None} == {"period_s": 0.1, "ticks": 5, "missed": 0, "cpu_s": None, "unread": {}}
    assert facts["cpu_s"] >= 0


def test_unsupported_readings_are_tried_once(monkeypatch, tmp_path):
    device = Device(faults={"TotalEccErrors": pynvml.NVML_ERROR_NOT_SUPPORTED, "Temperature": 4})
    samples, _ = sampled(monkeypatch, tmp_path, device)
    assert [(s.value, s.reason) for s in of(samples, "ecc_corrected")] == [(None, NOT_SUPPORTED)]
    assert [(s.value, s.reason) for s in of(samples, "temperature_c")] == [(None, "no permission")]
    assert (device.asked.count("TotalEccErrors"), device.asked.count("Temperature")) == (1, 1)
    assert len(values(samples, "power_w")) == 5


def test_lost_device_is_null_until_it_is_back(monkeypatch, tmp_path):
    lost = Device(lost_from_s=0.2, back_from_s=0.6)
    samples, facts = sampled(monkeypatch, tmp_path, lost, Device(uuid="GPU-1"), end_s=0.9)
    power = of(samples, "power_w")
    assert [(round(s.t_s, 3), s.value, s.reason) for s in power] == [
        (0.0, 400.0, None), (0.1, 400.0, None), (0.2, None, LOST), (0.6, 400.0, None), (0.7, 400.0, None),
        (0.8, 400.0, None),
    ]  # fmt: skip
    assert len(values(samples, "power_w", device=1)) == 9
    # No rate includes the time of the loss.
    rates = [(round(s.t_s, 3), s.value) for s in of(samples, "pcie_tx_bytes_per_s")]
    assert rates == [(0.1, pytest.approx(1e9)), (0.2, None), (0.7, pytest.approx(1e9)), (0.8, pytest.approx(1e9))]
    assert facts["unread"] == {}


def test_pcie_5_rate_is_read_in_pairs_once_a_second(monkeypatch, tmp_path):
    """60 GB/s overflow 32 bits in 72 ms. The other readings are still made ten times a second."""
    device = Device(pcie_link=(5, 16), pcie_bytes_per_s=(1e9, 60e9))
    samples, facts = sampled(monkeypatch, tmp_path, device, Device(uuid="GPU-1"), end_s=2.1)
    rates = of(samples, "pcie_rx_bytes_per_s")
    assert [s.value for s in rates] == pytest.approx([60e9] * 3)
    assert [s.t_s for s in rates] == pytest.approx([PAIR_S, 1 + PAIR_S, 2 + PAIR_S])
    assert [s.t_s for s in of(samples, "power_w")] == pytest.approx([0.1 * k for k in range(21)])
    assert len(of(samples, "pcie_rx_bytes_per_s", device=1)) == 20
    assert facts["missed"] == 0


def test_processes_are_counted_once(monkeypatch, tmp_path):
    device = Device(
        # A rank and a foreign process are in both lists.
        computing=[(501, 3 * GIB), (777, GIB)],
        drawing=[(501, 3 * GIB), (777, GIB), (778, GIB // 2)],
    )
    other = Device(uuid="GPU-1", computing=[(502, 5 * GIB), (os.getpid(), GIB)])
    samples, _ = sampled(monkeypatch, tmp_path, device, other, end_s=1.1)
    assert values(samples, "used_bytes", 0, rank=0) == [3.0 * GIB] * 2  # once a second
    assert values(samples, "used_bytes", 1, rank=1) == [5.0 * GIB] * 2
    assert values(samples, "used_bytes", 0, rank=1) == []
    assert values(samples, "foreign_processes") == [2.0] * 2
    assert values(samples, "foreign_bytes") == [1.5 * GIB] * 2
    assert values(samples, "foreign_processes", 1) == [0.0] * 2  # the driver is not foreign


def test_ranks_of_the_other_variant_are_not_foreign(monkeypatch, tmp_path):
    """Processes are foreign if this driver started them, or if `ab` did not start them."""
    family = {1000: [1, 501, 600, 700], os.getpid(): [501, 700]}
    monkeypatch.setattr("parabench.probes.devices.descendants", family.__getitem__)
    device = Device(computing=[(pid, GIB) for pid in (501, 600, 700, 777)])
    assert values(sampled(monkeypatch, tmp_path, device)[0], "foreign_processes") == [3.0]
    assert values(sampled(monkeypatch, tmp_path, device, ours=1000)[0], "foreign_processes") == [2.0]


def test_mps_server_and_monitors_are_not_foreign(monkeypatch, tmp_path):
    for pid, name in {777: "nvidia-cuda-mps", 778: "nv-hostengine", 779: "python"}.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")
    monkeypatch.setattr("parabench.probes.devices.PROC", tmp_path)
    device = Device(computing=[(501, GIB), *((pid, GIB) for pid in (777, 778, 779))])
    samples, _ = sampled(monkeypatch, tmp_path, device, Device(uuid="GPU-1", computing=[(502, GIB)]))
    assert (values(samples, "foreign_processes"), values(samples, "foreign_bytes")) == ([1.0], [1.0 * GIB])
    assert (values(samples, "mps_servers"), values(samples, "mps_servers", 1)) == ([1.0], [0.0])


@pytest.mark.parametrize(
    ("visible", "size", "used"),
    [
        (None, 2, [0, 1]), (None, 8, [0, 1, 2]), ("2", 1, [2]), ("2,0", 1, [2]), ("2,0", 2, [0, 2]), ("", 1, []),
        ("GPU-b", 1, [1]), ("MIG-of-GPU-c7", 1, [2]), ("1,9,0", 3, [1]), ("GPU-none", 1, []), ("MIG-none", 1, []),
        ("-1", 1, []),
    ],
)  # fmt: skip
def test_sampler_reads_the_used_devices(monkeypatch, tmp_path, visible, size, used):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    devices = [Device(uuid=f"GPU-{name}7") for name in "abc"]
    samples, facts = sampled(monkeypatch, tmp_path, *devices, size=size, end_s=0.1)
    assert sorted({s.device for s in samples}) == used
    assert facts["unread"] == {}


def test_other_sources_are_read_without_nvml(monkeypatch, tmp_path):
    fake_nvml.absent(monkeypatch)
    clock = Clock(0.3)
    ticks: list[float] = []
    other = SimpleNamespace(
        name="other", start=lambda: None, tick=lambda: ticks.append(clock.passed_s), stop=lambda: None
    )
    source = Devices(clock.began_s, RankPids(tmp_path, range(1)), partial(nvml.used_devices, 1), clock=clock)
    facts = ran(clock, source, other).facts()
    assert source.samples == []
    assert "NVML Shared Library Not Found" in facts["unread"]["nvml"]
    assert ticks == pytest.approx([0.0, PERIOD_S, 2 * PERIOD_S])


def test_all_devices_of_one_process_are_read(monkeypatch):
    """The only rank fails, because this machine lacks a GPU."""
    FakeNvml(Device(), Device(uuid="GPU-1"), Device(uuid="GPU-2")).install(monkeypatch)
    case = Case(strategy="dp", device="cuda", backend="nccl", data="synthetic", seq_len=8, world_size=2)
    seen = launch(LaunchSpec.of(case, Protocol(warmup=2, steps=2), deadline_s=GUARD_S))
    assert seen.status is Status.FAILED
    assert {s.device for s in seen.device_samples} == {0, 1}
