"""Excluded launches with their reasons, and the data of configurations."""

from __future__ import annotations

import json

import fake_results as fake
from page_helpers import made
from parabench.analysis.session import session_data
from parabench.report.details import case_details
from parabench.report.page_data import page_data
from parabench.report.sections import trust
from parabench.store.record import MIB, Failure, Finding, Status


def seen_of(results):
    return session_data(results)


def sections(results):
    return made(
        seen_of(results),
        trust.spread_section,
        trust.drift_section,
        trust.excluded_section,
    )


def test_excluded_launches_have_a_reason(tmp_path):
    case, single = fake.case(), fake.case(strategy="single", world_size=1)
    silent = fake.launch(case, block=2)
    silent.samples = []
    launches = [
        fake.launch(single, block=-1),
        fake.launch(case, block=-2),
        fake.launch(case),
        fake.launch(case, block=1, status=Status.OOM, failure=Failure("out of memory\nand more", rank=1)),
        silent,
    ]
    excluded = sections(fake.write(tmp_path / "r.db", launches))["excluded"]
    (table,) = excluded.tables
    assert table.rows == [
        ("ddp native, 2 ranks", "1", "oom", "rank 1: out of memory"),
        ("ddp native, 2 ranks", "2", "ok", "no measured step has a known length"),
        ("single, 1 rank", "reference", "ok", "other launches are verified against it"),
        ("ddp native, 2 ranks", "NCCL debug log", "ok", "NCCL logs in it, which takes time"),
    ]
    assert table.cases == (case.id, case.id, single.id, case.id)
    assert excluded.lead == (
        "Outliers are never deleted: a launch that succeeded counts. "
        "Excluded: 4 of 5 launches: 1 reference, 1 NCCL debug log, 1 oom, 1 ok without a step time."
    )


def test_limits_are_for_the_measured_devices(tmp_path):
    gpu = sections(fake.rich(tmp_path / "gpu.db", gpu=True))
    assert "±5.0%" in gpu["drift"].caption
    assert "±10%" not in gpu["drift"].caption
    assert "±2.5%" not in gpu["spread"].reading  # nothing is known of what launches of the same differ by there
    cpu = sections(fake.rich(tmp_path / "cpu.db"))
    assert "±10%" in cpu["drift"].caption
    assert "±2.5%" in cpu["spread"].reading


def test_details_have_warnings_about_one_configuration(tmp_path):
    cases = [fake.case(bucket_mib=b) for b in (1.0, 2.0)]
    launches = [fake.launch(cases[0], s, block=i) for i, s in enumerate((0.04, 0.05))]
    launches += [fake.launch(cases[1], 0.04, block=i) for i in range(2)]
    findings = [Finding("odd", "Something.", "Look.", cases[1].id), Finding("power", "Low.", "More.")]
    seen = seen_of(fake.write(tmp_path / "r.db", launches, findings=findings))
    found = {one["case"]["case_id"]: [each[:2] for each in one["warnings"]] for one in case_details(seen, ())}
    assert found == {
        cases[1].id: [("odd", "Something.")],
        cases[0].id: [("noisy", "launches differ by 25% (40.0 ms to 50.0 ms).")],
    }


def test_page_data_has_exact_fields_buckets_and_margin(tmp_path):
    cases = [fake.case(bucket_mib=b, global_batch=1_234_568) for b in (0.123456789, None)]
    launches = fake.sweep(cases, lambda c: 0.04 + (c.bucket_mib or 0.1) / 100, noise=0.01)
    for one in launches:
        if one.case.bucket_mib:
            one.facts["bucket_bytes"] = [MIB, 3 * MIB]
    seen = seen_of(fake.write(tmp_path / "r.db", launches))
    data = page_data(seen)
    json.dumps(data, allow_nan=False)
    of = data["cases"]
    at = of["bucket_mib"].index(0.123456789)
    assert of["bucket_mib"][1 - at] is None
    assert of["global_batch"] == [1_234_568] * 2
    assert of["bucket_bytes"][at] == f"{MIB} {3 * MIB}"
    assert of["bucket_bytes"][1 - at] is None
    assert all(margin > 0 for margin in of["plus_minus_s"])
