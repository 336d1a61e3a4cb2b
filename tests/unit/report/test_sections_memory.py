"""Figures of memory, on states and peaks whose every byte is known."""

import math

import pytest

import fake_results as fake
from page_helpers import drawn
from parabench.analysis.session import SessionData, session_data
from parabench.report.figures import listed
from parabench.report.sections.memory import peaks_section, state_section
from parabench.store.record import MIB, DeviceSample

# Strategy, ranks, bucket size, and MiB of parameters. Gradients take as much, and optimizer states twice as much.
HELD = [("fsdp", 4, None, 3), ("ddp", 2, None, 12), ("ddp", 4, 1.0, 12), ("ddp", 4, 4.0, 12), ("ddp", 4, 25.0, 13)]
CASES = [fake.case(strategy=name, world_size=ranks, bucket_mib=bucket) for name, ranks, bucket, _ in HELD]


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> SessionData:
    launches = []
    for i, (case, (_, _, _, held)) in enumerate(zip(CASES, HELD, strict=True)):
        sizes = {"parameter_bytes": held, "gradient_bytes": held, "optimizer_bytes": 2 * held}
        launch = fake.launch(case, 0.01 * (i + 1))
        launches.append(fake.tell(launch, fake.SIZES, **{name: size * MIB for name, size in sizes.items()}))
    return session_data(fake.write(tmp_path_factory.mktemp("memory") / "r.db", launches))


def traces(panel):
    return {trace.name: trace for trace in drawn(panel).data}


def test_peak_memory_has_the_training_state_by_formula(seen):
    (panel,) = peaks_section(seen).panels
    found = traces(panel)
    assert list(found) == ["resident set", "model states, theory"]
    assert found["resident set"].x == (103, 101, 103, 103, 103)
    assert found["model states, theory"].x == (14, 48, 48, 48, 48)
    assert found["resident set"].customdata == tuple(case.id for case in CASES)
    assert drawn(panel).layout.xaxis.title.text == "peak memory of a rank (MiB)"


def test_peak_memory_of_a_gpu_has_a_bar_for_each_reading(tmp_path):
    launch = fake.launch(fake.case(device="cuda"))
    launch.device_samples.append(DeviceSample(0, 0.1, "used_bytes", 200.0 * MIB))
    (panel,) = peaks_section(session_data(fake.write(tmp_path / "r.db", [launch]))).panels
    assert {name: trace.x for name, trace in traces(panel).items()} == {
        "torch tensors": (101,),
        "device (NVML)": (200,),
    }


def test_states_that_are_equal_share_a_bar(seen):
    (panel,) = state_section(seen).panels
    found = traces(panel)
    assert {name: trace.x for name, trace in found.items()} == {
        "parameters": (3, 12, 12, 13), "gradients": (3, 12, 12, 13), "optimizer state": (6, 24, 24, 26),
        "model states, theory": (14, 48, 48, 48),
    }  # fmt: skip
    ids = [case.id for case in CASES]
    assert found["parameters"].customdata == (ids[0], ids[1], f"{ids[2]}|{ids[3]}", ids[4])
    assert drawn(panel).layout.yaxis.ticktext[2] == "ddp native 1 MiB, 4 ranks; and 1 more"


def test_unknown_numbers_of_a_figure_are_null():
    assert listed([1.0, None, math.nan], 2.0) == [2.0, None, None]
