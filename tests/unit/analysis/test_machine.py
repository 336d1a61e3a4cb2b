"""Machines that are not here: NVML is replaced at its functions."""

import importlib.metadata
import json

import pynvml
import pytest

import fake_nvml
import fake_results as fake
from fake_nvml import GIB, Device, FakeNvml
from parabench.analysis.compare.sides import side_of
from parabench.analysis.environment.diff import differences
from parabench.analysis.environment.facts import environment_rows
from parabench.launch import rank
from parabench.machine import machine
from parabench.machine.accelerator import Gpu
from parabench.plan.case import Case
from parabench.plan.validate import exceeds_machine
from parabench.store.results import load


@pytest.fixture
def two_devices(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.11.0+cu130")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    devices = [Device(f"device {at}", f"GPU-{at}", f"00000000:{at + 26:02X}:00.0") for at in range(2)]
    FakeNvml(*devices).install(monkeypatch)
    return devices


BOTH = (Gpu("device 0", 140 * GIB, 0, "00000000:1A:00.0"), Gpu("device 1", 140 * GIB, 1, "00000000:1B:00.0"))


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [(None, BOTH), ("1", BOTH[1:]), ("GPU-1", BOTH[1:]), ("", ()), ("-1", ()), ("1,0", BOTH[::-1])],
)
def test_devices_are_those_that_nvml_and_cuda_show(two_devices, monkeypatch, visible, gpus):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    here = machine.this_machine()
    assert (here.gpus, here.ranks("cuda")) == (gpus, len(gpus))
    assert (here.gpus_reason is None) == bool(gpus)


def slices(*gib):
    return [Device(f"device 0 MIG {size}g", f"MIG-{at}", memory=size * GIB) for at, size in enumerate(gib)]


@pytest.mark.parametrize(
    ("visible", "name", "gib"),
    [
        (None, "device 0 MIG 10g", 10),
        ("0", "device 0 MIG 10g", 10),
        ("MIG-1", "device 0 MIG 20g", 20),
        ("MIG-1,MIG-0", "device 0 MIG 20g", 20),
    ],
)
def test_mig_instance_is_the_only_device(two_devices, monkeypatch, visible, name, gib):
    """CUDA enumerates one instance in a process and no other device."""
    two_devices[0].mig, two_devices[0].instances = True, slices(10, 20)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    here = machine.this_machine()
    assert here.gpus == (Gpu(name, gib * GIB, 0, "00000000:1A:00.0"),)
    assert (here.ranks("cuda"), here.room["cuda"]) == (1, gib * GIB)
    (record,) = machine.environment(here)["gpus"]
    assert (record["name"], record["memory_bytes"], record["mig"]) == (name, gib * GIB, True)


def test_without_nvml_there_is_a_reason(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.11.0+cu130")
    fake_nvml.absent(monkeypatch)
    here = machine.this_machine()
    assert here.gpus == ()
    assert "NVML is not available" in str(here.gpus_reason)


def test_device_is_refused_when_torch_cannot_use_it(two_devices, monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "535.1")
    monkeypatch.setattr(pynvml, "nvmlSystemGetCudaDriverVersion", lambda: 12020)
    monkeypatch.setattr(machine.versions, "torch_cuda", lambda: ("13.0", None))
    why = exceeds_machine(Case(strategy="ddp", device="cuda", backend="nccl", world_size=2), machine.this_machine())
    assert why == (
        "device cuda cannot be used: its driver 535.1 runs CUDA 12.2 at most, and this torch is built for CUDA 13.0; "
        "install a newer driver, or a torch that is built for CUDA 12.2; or use device cpu"
    )
    monkeypatch.setattr(machine.versions, "torch_cuda", lambda: ("12.8", None))
    assert machine.this_machine().cuda_fault is None


def test_paths_in_variables_are_not_recorded(monkeypatch, tmp_path):
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_DEBUG=WARN")
    monkeypatch.setattr(machine, "NCCL_FILES", {"/etc/nccl.conf": conf, "~/.nccl.conf": tmp_path / "none"})
    monkeypatch.setenv("NCCL_TOPO_FILE", str(tmp_path / "topo.xml"))
    monkeypatch.setenv("NCCL_TUNER_PLUGIN", "")
    monkeypatch.setenv("NCCL_MNNVL_ENABLE", "0")
    seen = machine.environment(machine.Machine(cores=1))
    assert seen["env"]["NCCL_TOPO_FILE"] == "set"
    assert "NCCL_TUNER_PLUGIN" not in seen["env"]
    assert seen["env"]["NCCL_MNNVL_ENABLE"] == "0"
    assert seen["nccl_files"] == ["/etc/nccl.conf"]
    assert str(tmp_path) not in json.dumps(seen)


def test_settings_of_the_environment_are_words(tmp_path):
    plan = {"protocol": {"budget_s": 300.0, "measure_s": 2.0, "steps": 40}}
    fake.write(tmp_path / "r.db", [fake.launch(fake.case())], plan=plan)
    rows = dict(environment_rows(side_of(load(tmp_path / "r.db")).session))
    assert [rows[name] for name in ("time limit of racing, s", "measured time, s", "steps")] == ["300.0", "2.0", "40"]
    assert not [name for name in rows if name.endswith("_s")]


@pytest.mark.parametrize(("wheel", "told"), [("2.27.5", "2.28.3"), (None, "2.28.3"), ("2.28.3", "2.28.3")])
def test_nccl_version_is_of_the_loaded_library(tmp_path, monkeypatch, wheel, told):
    """With LD_PRELOAD, or NCCL inside torch, ranks may load another version than the driver finds."""
    case = fake.case(device="cuda", backend="nccl")
    monkeypatch.setattr("torch.cuda.nccl.version", lambda: (2, 28, 3))
    assert rank.loaded_nccl(case) == {"nccl_version": told}
    assert rank.loaded_nccl(fake.case()) == {}
    installed = fake.ENVIRONMENT | {
        "versions": {"torch": "2.13.0", "nccl": wheel},
        "unknown_versions": {} if wheel else {"nccl": "no wheel of it is installed"},
    }
    ran = [fake.tell(fake.launch(case), {"nccl_version": told})]
    one = side(tmp_path / "one.db", ran, installed)
    rows = environment_rows(one.session)
    assert [value for name, value in rows if name == "nccl"] == [told]
    assert [value for name, value in rows if name == "nccl_wheel"] == ([wheel] if wheel not in (None, told) else [])
    of_wheel = installed | {"versions": {"torch": "2.13.0", "nccl": "2.27.5"}}
    other = side(tmp_path / "other.db", [fake.launch(case)], of_wheel)
    (found,) = differences(one, other)
    assert (found.name, found.base, found.candidate, found.matters) == ("nccl", told, "2.27.5", True)


def side(path, launches, environment):
    return side_of(fake.write(path, launches, environment=environment))
