"""Devices that torch finds without NVML: AMD's, and NVIDIA's in a container."""

import importlib.metadata
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import fake_nvml
from fake_nvml import GIB
from parabench.machine import gpus, machine, versions
from parabench.machine.accelerator import Gpu
from parabench.plan.case import Case
from parabench.plan.resolve import resolve_device
from parabench.plan.validate import exceeds_machine

MI300X = {
    "name": "AMD Instinct MI300X", "memory_bytes": 192 * GIB, "index": 0, "address": "00000000:05:00.0",
    "architecture": "gfx942:sramecc+:xnack-", "multiprocessors": 304,
}  # fmt: skip
OF_AMD = "NVML does not read AMD devices"


@pytest.fixture
def torch_sees(monkeypatch, tmp_path):
    """Set the build, the device files and the result of the child process. Return a list of its calls."""
    asked = []
    monkeypatch.setattr(gpus, "DEV", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_nvml.absent(monkeypatch)

    def install(*devices: dict[str, Any], error: str | None = None, hip: str | None = None, cuda: str | None = None,
                file: str | None = "kfd") -> list[None]:  # fmt: skip
        def ask() -> dict[str, Any]:
            asked.append(None)
            return {"devices": list(devices), "error": error}

        build = "+rocm7.0" if hip else "+cu130" if cuda else "+cpu"
        monkeypatch.setattr(importlib.metadata, "version", lambda name: f"2.11.0{build}")
        monkeypatch.setattr(versions, "torch_hip", lambda: hip)
        monkeypatch.setattr(versions, "torch_cuda", lambda: (cuda, None if cuda else "built without CUDA"))
        monkeypatch.setattr(gpus, "ask_torch", ask)
        if file is not None:
            (tmp_path / file).touch()
        return asked

    return install


def test_amd_devices_are_used_and_recorded_without_nvml(torch_sees):
    torch_sees(MI300X, MI300X | {"index": 1, "address": "00000000:15:00.0"}, hip="7.0")
    here = machine.this_machine()
    assert here.gpus[0] == Gpu(**MI300X)
    assert (here.ranks("cuda"), here.gpus_reason, here.cpu_reason, here.cuda_fault) == (2, OF_AMD, None, None)
    assert here.room["cuda"] == 192 * GIB
    assert resolve_device("auto", "auto", here) == {"device": "cuda", "backend": "nccl"}
    assert exceeds_machine(Case(strategy="ddp", device="cuda", backend="nccl", world_size=2), here) is None
    seen = machine.environment(here)
    known = {name: value for name, value in MI300X.items() if name != "address"}
    assert seen["gpus"] == [known, known | {"index": 1}]
    assert seen["nvml"] == {"available": False, "reason": OF_AMD}
    assert seen["driver"] == {"version": None, "cuda": None, "reasons": {"all": OF_AMD}}
    assert seen["versions"]["hip"] == "7.0"


def test_nvidia_devices_are_used_without_nvml(torch_sees):
    h100 = MI300X | {"name": "NVIDIA H100 80GB HBM3", "architecture": "sm_90", "multiprocessors": 132}
    torch_sees(h100, cuda="13.0", file="nvidia0")
    here = machine.this_machine()
    assert [gpu.name for gpu in here.gpus] == ["NVIDIA H100 80GB HBM3"]
    assert str(here.gpus_reason).startswith("NVML is not available: ")


def test_cpu_build_names_an_unused_gpu(torch_sees, tmp_path):
    asked = torch_sees(MI300X, file="nvidia0")
    here = machine.this_machine()
    assert (here.gpus, here.gpus_reason, asked) == ((), "this torch is a CPU build", [])
    assert here.cpu_reason == (
        f"this torch is a CPU build, and the system has a GPU device file ({tmp_path / 'nvidia0'})"
    )
    (tmp_path / "nvidia0").unlink()
    assert machine.this_machine().cpu_reason is None


@pytest.mark.parametrize("hip", [None, "7.0"])
def test_child_describes_devices(monkeypatch, capsys, hip):
    """The child reads attributes of torch._C._CudaDeviceProperties."""
    about = SimpleNamespace(
        name="some device", total_memory=80 * GIB, major=9, minor=0, multi_processor_count=132, pci_domain_id=0,
        pci_bus_id=26, pci_device_id=0,
    )  # fmt: skip
    if hip:
        about.gcnArchName = "gfx942"
    torch = ModuleType("torch")
    torch.version = SimpleNamespace(hip=hip)
    torch.cuda = SimpleNamespace(init=lambda: None, device_count=lambda: 1, get_device_properties=lambda index: about)
    monkeypatch.setitem(sys.modules, "torch", torch)
    exec(gpus.PROBE, {})
    (seen,) = json.loads(capsys.readouterr().out)["devices"]
    assert Gpu(**seen) == Gpu("some device", 80 * GIB, 0, "00000000:1A:00.0", "gfx942" if hip else "sm_90", 132)
