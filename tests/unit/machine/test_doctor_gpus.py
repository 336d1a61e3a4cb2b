"""The GPU checks of doctor, with fake functions of NVML and a fake child process of torch."""

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from parabench.machine import gpu_checks
from parabench.machine.accelerator import Gpu
from parabench.machine.gpu_checks import FAULT, OK, UNKNOWN, WARNING, Row, check
from parabench.machine.machine import Machine

RECORD: dict[str, Any] = {
    "compute_capability": "9.0", "power_limit_w": 700.0, "power_default_w": 700.0, "mig": False, "pcie_width": 16,
    "pcie_width_max": 16,
}  # fmt: skip
TWO = Machine(cores=8, gpus=(Gpu("NVIDIA H200", 1, 0), Gpu("NVIDIA H200", 1, 1)))


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the answers of two healthy devices, for tests to change."""
    answers: dict[str, Any] = {
        "PersistenceMode": 1, "ComputeMode": 0, "CurrentClocksEventReasons": 0, "TotalEccErrors": 0,
        "RemappedRows": (0, 0, 0, 0), "P2PStatus": 0, "fabric": (3, 0),
    }  # fmt: skip

    def answer(name: str) -> Any:
        def ask(*_: Any) -> Any:
            if isinstance(answers[name], Exception):
                raise answers[name]
            return answers[name]

        return ask

    def fabric(handle: Any, info: Any) -> None:
        info._obj.state, info._obj.status = answers["fabric"]

    for name in answers:
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", answer(name), raising=False)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetGpuFabricInfo", fabric)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    roomy = SimpleNamespace(f_bavail=1 << 20, f_frsize=1 << 12)
    monkeypatch.setattr(gpu_checks.os, "statvfs", lambda path: roomy)
    monkeypatch.setattr(gpu_checks, "in_child", lambda script: {"archs": ["sm_80", "sm_90"], "devices": [None, None]})
    return answers


def rows(root: Any, machine: Machine = TWO, **record: Any) -> dict[tuple[str, str], Row]:
    return {(row.where, row.what): row for row in check(machine, [RECORD | record, RECORD], root)}


def test_check_is_ok_for_healthy_devices(nvml, tmp_path):
    found = rows(tmp_path)
    assert {row.verdict for row in found.values()} == {OK}
    assert str(found["GPU1", "persistence mode"]) == "GPU1 persistence mode: on"
    assert found["host", "peer access"].value == "each device can read the memory of the others"


@pytest.mark.parametrize(
    ("answers", "record", "place", "verdict", "value"),
    [
        ({"PersistenceMode": 0}, {}, ("GPU0", "persistence mode"), WARNING, "off"),
        ({"ComputeMode": 2}, {}, ("GPU0", "compute mode"), FAULT, "prohibited"),
        ({"CurrentClocksEventReasons": 2}, {}, ("GPU0", "clocks"), WARNING, "locked by a setting"),
        ({"TotalEccErrors": 4}, {}, ("GPU0", "ECC errors"), FAULT, "4 uncorrected since the driver was loaded"),
        ({"RemappedRows": (1, 2, 1, 1)}, {}, ("GPU0", "remapped rows"), FAULT, "3 rows, and one more failed"),
        ({"fabric": (2, 0)}, {}, ("GPU0", "fabric"), UNKNOWN, "not registered"),
        ({"P2PStatus": 5}, {}, ("host", "peer access"), WARNING, "no access between GPU0-GPU1"),
        ({}, {"power_limit_w": 500.0}, ("GPU0", "power limit"), WARNING, "500 W, by default 700"),
        ({}, {"mig": True}, ("GPU0", "MIG"), WARNING, "on"),
        ({}, {"pcie_width": 8}, ("GPU0", "PCIe lanes"), WARNING, "8 of 16"),
        ({"ComputeMode": KeyError(9)}, {}, ("GPU0", "compute mode"), UNKNOWN, "unknown"),
        ({}, {"compute_capability": "12.0"}, ("GPU0", "compute capability"), FAULT,
         "12.0, and this torch has code for sm_80 sm_90"),
    ],
)  # fmt: skip
def test_check_gives_advice_for_each_fault(nvml, tmp_path, answers, record, place, verdict, value):
    nvml |= answers
    row = rows(tmp_path, **record)[place]
    assert (row.verdict, row.value) == (verdict, value)
    assert row.advice
    assert row.advice in str(row)


def test_check_reports_an_old_driver(nvml, tmp_path):
    old = Machine(cores=8, gpus=TWO.gpus, cuda_fault="its driver 535 runs CUDA 12.2 at most; install a newer driver")
    row = rows(tmp_path, old)["host", "driver and torch"]
    assert (row.verdict, row.value, row.advice) == (
        FAULT, "its driver 535 runs CUDA 12.2 at most", "install a newer driver",
    )  # fmt: skip


def test_check_reports_errors_of_the_first_kernel(nvml, tmp_path, monkeypatch):
    answer = {"archs": ["sm_90"], "devices": [None, "CUDA error: device busy"]}

    monkeypatch.setattr(gpu_checks, "in_child", lambda script: answer)
    found = rows(tmp_path)
    assert found["GPU0", "a first kernel"].value == "ran"
    assert (found["GPU1", "a first kernel"].value, found["GPU1", "a first kernel"].verdict) == (
        "CUDA error: device busy", FAULT,
    )  # fmt: skip
    answer = {"archs": [], "devices": [], "error": "Error 802: system not yet initialized"}
    assert rows(tmp_path)["host", "torch on CUDA"].value == "Error 802: system not yet initialized"


def test_host_rows_check_locked_memory_with_infiniband(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_checks, "network", lambda root: {"infiniband": [{"name": "mlx5_0"}]})
    monkeypatch.setattr(gpu_checks.resource, "getrlimit", lambda which: (1 << 26, 1 << 26))
    monkeypatch.setattr(gpu_checks.os, "statvfs", lambda path: SimpleNamespace(f_bavail=1 << 14, f_frsize=1 << 12))
    found = {row.what: (row.value, row.verdict) for row in gpu_checks.host_rows(tmp_path)}
    assert found == {
        "free /dev/shm": ("0.062 GiB", WARNING),
        "locked memory": ("0.062 GiB", WARNING),
        "GPUDirect RDMA": ("neither nvidia_peermem nor DMA-BUF", WARNING),
    }
    (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True)
    assert gpu_checks._gpudirect(tmp_path) == ("by nvidia_peermem", OK, "")
