"""The arithmetic of the GPU checks, with made-up numbers whose results are known."""

from __future__ import annotations

import pytest

from benchmarks.gpu import arithmetic


def test_mfu_is_counted_operations_over_the_peak() -> None:
    fact = {"counted": 20 * 10**12, "by": {"mm": 20 * 10**12}}
    assert arithmetic.mfu(fact, 0.1, 1e15) == pytest.approx(0.2)


def test_spread_discards_the_first_launch() -> None:
    assert arithmetic.spread([9.0, 1.0, 1.02]) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("NVIDIA H100 80GB HBM3", 3.35e12),
        ("NVIDIA H100 PCIe", 2.0e12),
        ("NVIDIA H200 NVL", 4.8e12),
        ("NVIDIA A100-SXM4-40GB", 1.555e12),
        ("NVIDIA L4", 3e11),
        ("NVIDIA L40S", 8.64e11),
        ("NVIDIA A10G", 6e11),
        ("Tesla V100-SXM2-16GB", 9e11),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 5090", None),
    ],
)
def test_memory_bandwidth_is_known_for_whole_devices(name: str, rate: float | None) -> None:
    found, source = arithmetic.memory_bandwidth_of(name)
    assert found == rate
    assert "datasheet" in source or "specifications" in source or "not in the table" in source


def test_kernel_seconds_are_summed_for_each_stream() -> None:
    def event(cat: str, dur: float, **args: object) -> dict[str, object]:
        return {"ph": "X", "cat": cat, "dur": dur, "tid": 1, "args": args}

    events = [
        event("kernel", 1000.0, stream=7),
        event("gpu_memcpy", 500.0, stream=7),
        event("kernel", 250.0, stream=20),
        event("cpu_op", 9000.0),
        {"ph": "i", "cat": "kernel", "args": {"stream": 7}},
    ]
    assert arithmetic.kernel_seconds({"traceEvents": events}) == pytest.approx({"7": 0.0015, "20": 0.00025})
    assert arithmetic.kernel_seconds({"traceEvents": events}, ("cpu_op",)) == pytest.approx({"1": 0.009})


def test_joules_are_compared_between_the_counters_changes() -> None:
    # The counter moves each 0.2 s by 60 J, so by 300 W; before its first change and after its last it is not known.
    energy = [(at / 10, 60.0 * (at // 2)) for at in range(20)]
    power = [(at / 10, 1e6 if at < 2 or at > 18 else 300.0) for at in range(20)]
    assert arithmetic.joules_over_power(energy, power) == pytest.approx(1.0)
    assert arithmetic.joules_over_power(energy, [(at, 2 * watts) for at, watts in power]) == pytest.approx(0.5)


def test_growth_undoes_one_wrap() -> None:
    assert arithmetic.growth((1 << 32) - 10, 5, 32) == 15
    assert arithmetic.growth(10, 25, 64) == 15


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [("all_reduce", 2, 1.0), ("all_reduce", 4, 1.5), ("all_gather", 2, 0.5), ("broadcast", 2, 1)],
)
def test_bus_bandwidth_follows_nccl_tests(op: str, ranks: int, factor: float) -> None:
    assert arithmetic.bus_bandwidth(op, ranks, 4_000_000, 0.001) == pytest.approx(4e9 * factor)


@pytest.mark.parametrize(
    ("rate", "backend", "plausible"),
    [(0.0, "gloo", False), (1e9, "gloo", True), (1e14, "gloo", False), (1e14, "nccl", False), (2e12, "nccl", True)],
)
def test_bus_bandwidth_is_judged_against_limits(rate: float, backend: str, plausible: bool) -> None:
    assert arithmetic.is_plausible_bus(rate, backend) is plausible
