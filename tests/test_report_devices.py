"""Sections of memory over time and of devices: what they draw, and why where there is nothing to draw."""

from __future__ import annotations

import fake_devices
import fake_results as fake
import pandas as pd
import pytest
from fake_devices import device_samples, gpu_case, host_samples, read

from parabench.analysis.evidence import Evidence, evidence
from parabench.analysis.instruments.device_time import device_table
from parabench.analysis.instruments.memory_time import memory_timeline
from parabench.analysis.session import select_session
from parabench.pages import figures_devices, sections_devices
from parabench.pages.section import Section
from parabench.record import MIB, NOT_SUPPORTED, DeviceSample, Launch, Status
from parabench.report import render

HOT = {"clock_event_reasons": lambda t: 0x20 * (2 <= t < 2.3)}


def gpu_launches(blocks: int = 3) -> list[Launch]:
    """Two cases on two devices each, the second of which throttles for three readings."""
    launches = []
    for block in range(blocks):
        for bucket, step_s in ((1.0, 0.04), (25.0, 0.05)):
            own = [DeviceSample(d, t, "used_bytes", 2e9, rank=d) for t in fake_devices.TICKS for d in (0, 1)]
            devices = [*device_samples(0), *device_samples(1, **HOT), *own]
            launches.append(
                read(
                    fake.launch(gpu_case(bucket_mib=bucket), step_s + 0.001 * block, block=block),
                    devices,
                    host_samples(),
                )
            )
    return launches


def seen(folder, launches) -> Evidence:
    results = fake.write(folder / f"{len(list(folder.iterdir()))}.db", launches)
    return evidence(results, select_session(results))


def sections(folder, launches) -> list[Section]:
    return sections_devices.sections(seen(folder, launches))


def test_memory_over_time_of_devices_and_ranks_with_phases_behind(tmp_path):
    memory, _ = sections(tmp_path, gpu_launches())
    assert len(memory.panels) == 2  # of each case one launch
    figure = memory.panels[0].figure
    lines = {trace.name: trace for trace in figure.data if trace.mode == "lines"}
    assert set(lines) == {
        "device 0", "device 1", "rank 0 on device 0", "rank 1 on device 1", "rank 0", "rank 1",
    }  # fmt: skip
    assert max(lines["device 0"].y) == pytest.approx(3e9 / MIB, abs=0.01)
    assert lines["rank 1"].y[0] == pytest.approx(3.1e8 / MIB, abs=0.01)
    shaded = [(round(shape.x0, 6), round(shape.x1, 6)) for shape in figure.layout.shapes]
    assert shaded == [fake_devices.PHASES[name] for name in ("warmup", "measure", "instrument")]
    assert {trace.name for trace in figure.data} - lines.keys() == {"warm-up", "timed", "instrumented"}
    (host,) = memory.tables
    assert [row[0] for row in host.rows] == ["ddp native 1 MiB, 2 ranks", "ddp native 25 MiB, 2 ranks"]
    assert [row[1] for row in host.rows] == ["2.0 %", "2.0 %"]
    assert [row[2] for row in host.rows] == ["1.0 %", "1.0 %"]  # 0.015 s of 1.5 s


def test_the_drawn_launch_is_the_one_in_the_middle_of_the_fastest(tmp_path):
    launches = gpu_launches()
    for one in launches:
        one.host_samples = [s._replace(value=s.value + one.block * MIB) if s.rank == 0 else s for s in one.host_samples]
    memory, _ = sections(tmp_path, launches)
    (line,) = [trace for trace in memory.panels[0].figure.data if trace.name == "rank 0"]
    assert line.y[0] == pytest.approx((3e8 + MIB) / MIB, abs=0.01)  # block 1's
    assert "1 MiB" in memory.panels[0].title


def test_power_clocks_and_temperature_with_marks_where_clocks_were_held_down(tmp_path):
    _, devices = sections(tmp_path, gpu_launches())
    assert [panel.title.partition(" · ")[0] for panel in devices.panels] == ["Power", "SM clock", "Temperature"]
    clock = devices.panels[1].figure
    (marks,) = [trace for trace in clock.data if trace.name == "held down"]
    assert list(marks.x) == [2.0, 2.1, 2.2]
    assert set(marks.y) == {1980.0}
    (table,) = devices.tables
    first = dict(zip(table.head, table.rows[0], strict=True))
    assert first["Power, W"] == "500"
    assert first["Energy, J"] == "1,000"  # 500 W for 2 s
    assert first["SM clock, MHz"] == "1,980–1,980"
    assert first["Hottest, °C"] == "55.0"
    assert first["PCIe out and in, GB/s"] == "1.00, 2.00"
    assert first["NVLink out and in, GB/s"] == "–"


def test_energy_is_unknown_where_the_counter_was_not_read_around_the_timed_steps(tmp_path):
    late = [s for s in device_samples() if not (s.metric == "energy_j" and s.t_s < 1.5)]
    table = device_table(seen(tmp_path, [read(fake.launch(gpu_case()), late)]))
    assert table["energy_j"].isna().all()
    assert table["power_w"].tolist() == [500.0]


def test_what_is_not_there_has_its_reason(tmp_path):
    memory, devices = sections(tmp_path, [read(fake.launch(fake.case()), host=host_samples())])
    assert len(memory.panels) == 1
    assert (devices.panels, devices.tables) == ([], ())
    assert "CPU cores" in devices.empty
    failed = read(fake.launch(gpu_case()), host=host_samples())
    failed.facts["sampler"]["unread"] = {"nvml": "NVML is not available: Driver Not Loaded"}
    _, devices = sections(tmp_path, [failed])
    assert devices.empty == "Devices were not read: NVML is not available: Driver Not Loaded."
    memory, devices = sections(tmp_path, [fake.launch(fake.case(), status=Status.CRASHED)])
    assert memory.empty == devices.empty == "No launch ended well, so there is nothing to draw."
    memory, _ = sections(tmp_path, [fake.launch(fake.case())])
    assert (memory.panels, memory.tables) == ([], ())
    assert "unknown, not zero" in memory.empty
    lacking = [*device_samples(), DeviceSample(0, 0.0, "nvlink_tx_bytes_per_s", None, None, NOT_SUPPORTED)]
    _, devices = sections(tmp_path, [read(fake.launch(gpu_case()), lacking)])
    assert f"Not read: device 0: nvlink_tx_bytes_per_s {NOT_SUPPORTED}." in devices.caption


def test_a_gap_stays_a_gap_and_no_peak_is_lost_when_lines_are_thinned():
    values = [100.0 + i % 7 for i in range(5000)]
    values[2345], values[3000], values[4001] = 999.0, 1.0, float("nan")
    line = pd.DataFrame({"t_s": [0.1 * i for i in range(5000)], "value": values})
    points = figures_devices.thinned(line)
    assert len(points) <= figures_devices.MOST_POINTS + 3
    assert points["t_s"].is_monotonic_increasing
    assert {999.0, 1.0} <= set(points["value"])
    assert points["value"].isna().sum() == 1
    assert (points["t_s"].iloc[0], points["t_s"].iloc[-1]) == (line["t_s"].iloc[0], line["t_s"].iloc[-1])
    assert figures_devices.thinned(line.head(50)) is not None


def test_an_older_store_and_an_unknown_launch_have_an_empty_timeline(tmp_path):
    known = seen(tmp_path, [fake.launch(fake.case())])
    assert list(memory_timeline(known, 1).columns) == ["place", "t_s", "bytes"]
    assert memory_timeline(known, 99).empty


def test_reasons_are_escaped_in_the_page(tmp_path):
    one = read(fake.launch(gpu_case()), host=host_samples())
    one.facts["sampler"]["unread"] = {"nvml": "<img src=x onerror=alert(1)>"}
    page = render(fake.write(tmp_path / "r.db", [one]))
    assert "Devices were not read: &lt;img src=x" in page
    assert "<img src=x" not in page
