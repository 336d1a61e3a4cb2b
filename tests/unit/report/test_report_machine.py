"""The machine and its utilization in a report."""

import re

import pytest

import fake_results as fake
from fake_devices import DEVICE
from page_helpers import section
from parabench.report.build import render
from parabench.store.record import DeviceSample

MODEL = {"parameters": 957184, "embedding_parameters": 131072, "layers": 4, "heads": 4, "head_dim": 32}


def four_gpus():
    """A host of two sockets with two pairs of devices; one device does not tell whether it corrects errors."""
    second = {"cpus": "48-95", "numa_node": 1}
    refused = {"ecc": None, "reasons": {"ecc": "NVML: Insufficient Permissions"}}
    gpus = [DEVICE, DEVICE, DEVICE | second, DEVICE | second | refused]
    return fake.ENVIRONMENT | {
        "processor": {"sockets": 2, "physical_cores": 96, "logical_cores": 192, "reasons": {}},
        "numa": {
            "nodes": [
                {"node": node, "cpus": cpus, "memory_bytes": 512 * 2**30} for node, cpus in enumerate(("0-47", "48-95"))
            ],
            "reasons": {},
        },
        "gpus": [{"index": at} | gpu for at, gpu in enumerate(gpus)],
        "links": {
            "matrix": [
                ["X", "NV18", "SYS", None],
                ["NV18", "X", "SYS", "SYS"],
                ["SYS", "SYS", "X", "PIX"],
                [None, "SYS", "PIX", "X"],
            ],
            "reasons": {"0-3": "NVML: Unknown Error"},
        },
        "driver": {"version": "575.57.08", "cuda": "12.9", "reasons": {}},
        "nvml": {"available": True, "reason": None},
        "network": {
            "interfaces": [{"name": "eth0", "bits_per_s": 25 * 10**9}],
            "infiniband": [
                {"name": "mlx5_0", "port": 1, "bits_per_s": 400 * 10**9, "state": "active", "layer": "InfiniBand"}
            ],
        },
        "container": {"kind": "docker", "cores": 64.0, "memory_bytes": None, "reasons": {"memory_bytes": "no limit"}},
        "git": {"commit": "3f2a90c1b5d7e8a4", "dirty": True, "reasons": {}},
        "unknown_versions": {"nccl": "no wheel", "cudnn": "no wheel"},
    }


def launches():
    for size in (1, 2, 4):
        for repetition in range(3):
            facts = {"model": MODEL, "clock": {"began_s": 100.0}, "phases": {"measure": [103.0, 107.0]}}
            samples = [
                DeviceSample(device, t / 5, "energy_j", 5e6 + 25 * t) for device in range(size) for t in range(46)
            ]
            case = fake.case(device="cuda", backend="nccl", precision="bf16-mixed", world_size=size, model="gpt2")
            yield fake.launch(case, 0.02 / size, repetition=repetition, facts=facts, device_samples=samples)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return render(fake.write(tmp_path_factory.mktemp("four") / "r.db", launches(), environment=four_gpus()))


def test_page_shows_the_machine_once(text):
    order = re.findall(r'<section id="(\w+)"', text)
    at = order.index("machine")
    assert order[at : at + 3] == ["machine", "environment", "reproduce"]
    assert "Some CPU" not in section(text, "environment")
    for message in ("3f2a90c1b5d7, with changes that are not committed", "nccl, cudnn unknown: no wheel"):
        assert message in section(text, "environment")
    for message in (
        "2 sockets, 96 cores, 192 hardware threads",
        "node 0: CPUs 0-47, 512 GiB; node 1: CPUs 48-95, 512 GiB",
        "eth0: 25.0 Gb/s",
        "mlx5_0 port 1: 400 Gb/s, active, InfiniBand",
        "docker",
        "4 × NVIDIA H200 (140 GiB)",
        "575.57.08",
        "GPU0, GPU1, GPU2 GPU3 Name NVIDIA H200 NVIDIA H200",
        "generation 5 ×16; at most 5 ×16",
        "345 MHz; at most 1,980",
        "ECC on unknown",
        "Unknown: ecc (NVML: Insufficient Permissions).",
    ):
        assert message in section(text, "machine"), message


def test_device_links_are_a_matrix_with_a_legend(text):
    message = section(text, "machine")
    assert "GPU0 X NV18 SYS unknown 0-47 0" in message
    assert "GPU3 unknown SYS PIX X 48-95 1" in message
    assert "NV# is that many NVLinks" in message
    assert "PIX at most one PCIe bridge; SYS the link between NUMA nodes; unknown where NVML: Unknown Error" in message
    assert "PHB" not in message


def test_use_of_the_hardware_names_formula_peak_and_document(text):
    message = section(text, "usage")
    per_s = (6 * (957184 - 131072) + 12 * 4 * 4 * 32 * 64) * 8 * 64 / 0.005
    mfu = per_s / (4 * 989.5e12)
    assert f"ddp native, 4 ranks 102,000 {per_s / 1e9:.0f} {mfu * 100:.3f}% 100 195" in message
    for named in ("torchtitan's formula", "990 TFLOP/s (NVIDIA H200 Tensor Core GPU datasheet (SXM))"):
        assert named in message
