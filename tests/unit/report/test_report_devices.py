"""Sections of memory over time and of devices, with the reason if a section is empty."""

import pytest

import fake_devices
import fake_results as fake
import page_helpers
from fake_devices import device_samples, gpu_case, gpu_launches, host_samples, read
from parabench.analysis.session import SessionData, session_data
from parabench.analysis.step.device_time import device_table, unread
from parabench.report.sections.devices import devices_section, memory_section, usage_section
from parabench.report.spec import Section
from parabench.store.record import MIB, NOT_SUPPORTED, DeviceSample, Status

MAKERS = (memory_section, usage_section, devices_section)


def seen(folder, launches) -> SessionData:
    results = fake.write(folder / f"{len(list(folder.iterdir()))}.db", launches)
    return session_data(results)


def sections(folder, launches) -> dict[str, Section]:
    return page_helpers.made(seen(folder, launches), *MAKERS)


def test_memory_over_time_has_devices_ranks_and_phases(tmp_path):
    found = sections(tmp_path, gpu_launches())
    memory = found["time-memory"]
    (panel,) = memory.panels
    figure = page_helpers.drawn(panel)
    lines = {trace.name: trace for trace in figure.data if trace.mode == "lines"}
    assert set(lines) == {
        "device 0", "device 1", "rank 0 on device 0", "rank 1 on device 1", "rank 0", "rank 1",
    }  # fmt: skip
    assert max(lines["device 0"].y) == pytest.approx(3e9 / MIB, abs=0.01)
    assert lines["rank 1"].y[0] == pytest.approx(3.1e8 / MIB, abs=0.01)
    shaded = [(round(shape.x0, 6), round(shape.x1, 6)) for shape in figure.layout.shapes]
    assert shaded == [fake_devices.PHASES[name] for name in ("warmup", "measure", "instrument")]
    assert {trace.name for trace in figure.data} - lines.keys() == {"warm-up", "measured", "instrumented"}


def test_devices_have_readings_and_marks_of_throttling(tmp_path):
    devices = sections(tmp_path, gpu_launches())["time-devices"]
    assert [panel.title.partition(" · ")[0] for panel in devices.panels] == ["Power", "SM clock"]
    clock = page_helpers.drawn(devices.panels[1])
    (marks,) = [trace for trace in clock.data if trace.name == "throttled"]
    assert list(marks.x) == [2.0, 2.1, 2.2]
    assert set(marks.y) == {1980.0}
    assert set(marks.hovertext) == {"heat, by software"}
    (table,) = devices.tables
    first = dict(zip(table.head, table.rows[0], strict=True))
    assert first["Power, W"] == "500"
    assert first["Energy, J"] == "1,000"  # 500 W for 2 s
    assert first["SM clock, MHz"] == "1,980–1,980"
    assert first["Hottest, °C"] == "55.0"
    assert first["PCIe out and in, GB/s"] == "1.00, 2.00"
    assert first["NVLink out and in, GB/s"] == "–"


def test_energy_is_unknown_when_the_counter_was_read_late(tmp_path):
    late = [s for s in device_samples() if not (s.metric == "energy_j" and s.t_s < 1.5)]
    table = device_table(seen(tmp_path, [read(fake.launch(gpu_case()), late)]))
    assert table["energy_j"].isna().all()
    assert table["power_w"].tolist() == [500.0]


def test_unread_devices_have_a_reason(tmp_path):
    found = sections(tmp_path, [read(fake.launch(fake.case()), host=host_samples())])
    assert len(found["time-memory"].panels) == 1
    assert list(found) == ["time-memory", "usage"]
    failed = read(fake.launch(gpu_case()), host=host_samples())
    failed.facts["sampler"]["unread"] = {"nvml": "NVML is not available: Driver Not Loaded"}
    found = sections(tmp_path, [failed])
    assert found["time-devices"].empty == "Devices were not read: NVML is not available: Driver Not Loaded."
    assert "Energy: unknown: no energy of its devices was recorded." in found["usage"].empty
    crashed = sections(tmp_path, [fake.launch(gpu_case(), status=Status.CRASHED)])
    assert {section.empty for section in crashed.values()} == {
        "No launch succeeded, so nothing is drawn.", "No launch succeeded, so utilization is unknown."
    }  # fmt: skip
    lacking = [*device_samples(), DeviceSample(0, 0.0, "nvlink_tx_bytes_per_s", None, None, NOT_SUPPORTED)]
    found = sections(tmp_path, [read(fake.launch(gpu_case()), lacking)])
    assert f"Not read: device 0: nvlink_tx_bytes_per_s {NOT_SUPPORTED}." in found["time-devices"].reading


def test_energy_of_a_step_and_of_a_token(tmp_path):
    known = seen(tmp_path, gpu_launches())
    found = usage_section(known)
    # Two devices at 500 W for two seconds, in 20 steps of 512 tokens.
    assert found.lead.endswith("Lowest energy: ddp native 1 MiB, 2 ranks: 100 J per step, 195 mJ per token.")
    (table,) = found.tables
    assert table.head[-2:] == ("J per step", "mJ per token")
    assert table.rows[0][-2:] == ("100", "195")
    assert table.cases == tuple(known.cases["case_id"])


def test_readings_without_step_times_have_a_reason(tmp_path):
    launch = read(fake.launch(gpu_case()), device_samples(), host_samples())
    del launch.facts["phases"]
    reasons = unread(seen(tmp_path, [launch]))
    assert "power, energy and utilization of a launch: when the measured steps ran was not recorded" in reasons
