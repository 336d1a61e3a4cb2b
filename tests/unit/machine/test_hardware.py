"""Hosts, devices and repositories: /sys and /proc in a folder, and fake functions of NVML."""

import subprocess

import pynvml
import pytest

from fake_nvml import GIB, Device, FakeNvml
from parabench.machine import gpus, host, versions
from parabench.machine.accelerator import Gpu


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


@pytest.fixture
def two_sockets(tmp_path):
    files = {}
    for cpu in range(8):  # two sockets of two cores of two threads
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"] = str(cpu // 2 % 2)
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/core_id"] = str(cpu % 2)
    for node, cpus in enumerate(("0-1,4-5", "2-3,6-7")):
        files[f"sys/devices/system/node/node{node}/cpulist"] = cpus
        files[f"sys/devices/system/node/node{node}/meminfo"] = f"Node {node} MemTotal:       1048576 kB"
    port = "sys/class/infiniband/mlx5_0/ports/1/"
    files |= {port + "rate": "400 Gb/sec (4X NDR)", port + "state": "4: ACTIVE", port + "link_layer": "InfiniBand"}
    files["sys/bus/pci/devices/0000:07:00.0/numa_node"] = "1"
    files["sys/bus/pci/devices/0000:0b:00.0/numa_node"] = "-1"
    write(tmp_path, files)
    return tmp_path


def test_host_has_sockets_cores_and_numa_nodes(two_sockets):
    processor = {"sockets": 2, "physical_cores": 4, "logical_cores": 8, "reasons": {}}
    assert host.processor(two_sockets) == processor
    assert host.numa(two_sockets)["nodes"] == [
        {"node": 0, "cpus": "0-1,4-5", "memory_bytes": GIB},
        {"node": 1, "cpus": "2-3,6-7", "memory_bytes": GIB},
    ]


VERSION_2 = {"proc/self/cgroup": "0::/job", "sys/fs/cgroup/cpu.max": "max 100000"}
VERSION_1 = {"proc/self/cgroup": "4:memory:/a/b\n2:cpu,cpuacct:/a"}


@pytest.mark.parametrize(
    ("files", "cores", "memory"),
    [
        (VERSION_2 | {"sys/fs/cgroup/job/cpu.max": "150000 100000"}, 1.5, None),
        (VERSION_2 | {"sys/fs/cgroup/job/cpu.max": "max 100000", "sys/fs/cgroup/job/memory.max": "1024"}, None, 1024),
        # The parent group allows less.
        (VERSION_2 | {"sys/fs/cgroup/cpu.max": "100000 100000", "sys/fs/cgroup/job/cpu.max": "200000 100000"}, 1, None),
        (
            VERSION_1
            | {"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "50000", "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000"}
            | {"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "2048"}
            | {"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712"},
            0.5,
            2048,
        ),
        ({}, None, None),
    ],
)
def test_container_reads_limits_of_both_cgroup_versions(tmp_path, files, cores, memory):
    write(tmp_path, files)
    found = host.container(tmp_path, {})
    assert (found["cores"], found["memory_bytes"]) == (cores, memory)
    assert ("cores" in found["reasons"], "memory_bytes" in found["reasons"]) == (cores is None, memory is None)


@pytest.mark.parametrize(
    ("file", "environ", "kind"),
    [
        (".dockerenv", {}, "docker"),
        (".dockerenv", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ("run/.containerenv", {}, "podman"),
        ("other", {"APPTAINER_CONTAINER": "/image"}, "apptainer"),
        ("other", {}, None),
    ],
)
def test_container_detects_its_kind(tmp_path, file, environ, kind):
    write(tmp_path, {file: ""})
    assert host.container(tmp_path, environ)["kind"] == kind


def test_describe_reads_limits_in_si_units(two_sockets, monkeypatch):
    devices = [Device(address="00000000:07:00.0"), Device(address="00000000:0B:00.0", mig=True)]
    FakeNvml(*devices, levels={(0, 1): pynvml.NVML_TOPOLOGY_SYSTEM}).install(monkeypatch)
    found = gpus.describe([Gpu("", None, at) for at in range(2)], root=two_sockets)
    first, second = found["gpus"]
    assert first == {
        "index": 0, "name": "NVIDIA H200", "memory_bytes": 140 * GIB, "compute_capability": "9.0",
        "power_limit_w": 650, "power_default_w": 700, "power_max_w": 700, "sm_clock_hz": 1980 * 10**6,
        "sm_clock_max_hz": 1980 * 10**6, "memory_clock_hz": 3201 * 10**6, "memory_clock_max_hz": 3201 * 10**6,
        "mig": False, "ecc": True, "pcie_generation": 1, "pcie_generation_max": 4, "pcie_width": 16,
        "pcie_width_max": 16, "cpus": "0-1,4-5", "numa_node": 1, "reasons": {},
    }  # fmt: skip
    assert second["mig"]
    assert (second["numa_node"], list(second["reasons"])) == (None, ["numa_node"])
    assert found["driver"] == {"version": "575.57.08", "cuda": "12.9", "reasons": {}}


def test_links_counts_active_nvlinks(monkeypatch):
    # Four devices in two pairs: two links within a pair, a third link is down; other pairs use PCIe.
    devices = [Device(nvlinks=peers) for peers in ([1, 1, None], [0, None, 0], [3], [2])]
    levels = dict.fromkeys(((0, 2), (0, 3), (1, 2), (1, 3)), pynvml.NVML_TOPOLOGY_SYSTEM)
    FakeNvml(*devices, levels=levels | {(1, 2): pynvml.NVML_TOPOLOGY_SINGLE}).install(monkeypatch)
    found = gpus.links(devices)
    assert found["matrix"] == [
        ["X", "NV2", "SYS", "SYS"],
        ["NV2", "X", "PIX", "SYS"],
        ["SYS", "PIX", "X", "NV1"],
        ["SYS", "SYS", "NV1", "X"],
    ]
    assert found["reasons"] == {}


H100 = {"name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0"}
V100 = {"name": "Tesla V100-SXM2-16GB", "compute_capability": "7.0"}


@pytest.mark.parametrize(
    ("driver", "device", "torch_cuda", "why"),
    [
        ("12.2", H100, "13.0", "its driver 535.1 runs CUDA 12.2 at most, and this torch"),
        ("13.0", V100, "13.0", "Tesla V100-SXM2-16GB has compute capability 7.0"),
        ("12.2", V100, "12.8", None),
        ("12.2", H100, None, None),
    ],
)
def test_cuda_fault_names_driver_and_device_limits(driver, device, torch_cuda, why):
    fault = gpus.cuda_fault({"version": "535.1", "cuda": driver}, [device], torch_cuda)
    assert fault is None if why is None else fault is not None and fault.startswith(why)


def test_git_reads_commit_and_dirty_state(tmp_path):
    def run(*words):
        names = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        return subprocess.check_output(["git", *names, *words], cwd=tmp_path, text=True).strip()

    run("init", "-q")
    assert versions.git(tmp_path)["commit"] is None  # no commit yet
    run("commit", "-q", "--allow-empty", "-m", "first")
    assert versions.git(tmp_path) == {"commit": run("rev-parse", "HEAD"), "dirty": False, "reasons": {}}
    (tmp_path / "new").write_text("new")
    assert versions.git(tmp_path)["dirty"]
