"""The variation between launches, measured links, and the data of configurations."""

import json

import pytest

import fake_links
import fake_nodes
import fake_results as fake
from page_helpers import drawn
from parabench.analysis.session import session_data
from parabench.report.cases import case_details, page_data
from parabench.report.sections.environment import links_section, spread_section
from parabench.store.record import MIB, Finding
from parabench.store.results import load
from parabench.store.store import Store


def test_spread_has_the_cases_that_differ_most_on_top(tmp_path):
    """Two launches of DDP and two of FSDP are around 1 s, the mean of their logarithms."""
    ddp, fsdp, once = fake.case(), fake.case(strategy="fsdp"), fake.case(strategy="zero1")
    steps = [(ddp, 1 / 1.01, 0), (fsdp, 1 / 1.02, 0), (once, 1.0, 0), (ddp, 1.01, 1), (fsdp, 1.02, 1)]
    launches = [fake.launch(case, [seconds] * 20, repetition=repetition) for case, seconds, repetition in steps]
    (panel,) = spread_section(session_data(fake.write(tmp_path / "r.db", launches))).panels
    figure = drawn(panel)
    assert panel.title == "4 launches of 2 configurations"
    assert [(shape.x0, shape.x1) for shape in figure.layout.shapes] == [(-2.5, 2.5)]
    assert figure.layout.yaxis.ticktext == ("fsdp native, 2 ranks", "ddp native, 2 ranks")
    found = {trace.name: trace for trace in figure.data}
    assert (found["ddp"].x, found["ddp"].y) == (pytest.approx((100 * (1 / 1.01 - 1), 1)), (1, 1))
    assert (found["fsdp"].x, found["fsdp"].y) == (pytest.approx((100 * (1 / 1.02 - 1), 2)), (0, 0))
    assert found["ddp"].customdata == (ddp.id,) * 2
    assert found["ddp"].hovertext[0].endswith("<br>repetition 0: 990 ms<br>−1.0% from its configuration's step time")


def test_spread_has_no_band_or_figure_without_known_variation(tmp_path):
    panels = spread_section(session_data(fake.rich(tmp_path / "gpu.db", gpu=True))).panels
    assert panels
    assert not any(drawn(panel).layout.shapes for panel in panels)
    once = fake.write(tmp_path / "r.db", [fake.launch(fake.case(), 0.04, steps=4)])
    assert spread_section(session_data(once)).panels == []


def test_details_have_warnings_about_one_configuration(tmp_path):
    cases = [fake.case(bucket_mib=b) for b in (1.0, 2.0)]
    launches = [fake.launch(cases[0], s, repetition=i) for i, s in enumerate((0.04, 0.05))]
    launches += [fake.launch(cases[1], 0.04, repetition=i) for i in range(2)]
    findings = [Finding("odd", "Something.", "Look.", cases[1].id), Finding("power", "Low.", "More.")]
    seen = session_data(fake.write(tmp_path / "r.db", launches, findings=findings))
    found = {one["case"]["case_id"]: [each[:2] for each in one["warnings"]] for one in case_details(seen)}
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
    seen = session_data(fake.write(tmp_path / "r.db", launches))
    data = page_data(seen)
    json.dumps(data, allow_nan=False)
    of = data["cases"]
    at = of["bucket_mib"].index(0.123456789)
    assert of["bucket_mib"][1 - at] is None
    assert of["global_batch"] == [1_234_568] * 2
    assert of["bucket_bytes"][at] == f"{MIB} {3 * MIB}"
    assert of["bucket_bytes"][1 - at] is None
    assert all(margin > 0 for margin in of["plus_minus_s"])


def measured(path, links):
    fake.write(path, [fake.launch(fake.case(), 8.0)], environment=fake_nodes.environment())
    with Store.open_or_create(path) as store:
        store.add_links(1, links)
    return load(path)


def test_section_has_tiers_and_links_with_the_slowest_first(tmp_path):
    rows = fake_links.rows(2, 2, lambda a, b: 0.5 if (a, b) == (3, 2) else 1.0)
    one = links_section(session_data(measured(tmp_path / "a.db", rows)))
    assert one.lead == "Across nodes 0.50 GB/s, in a node 4.0 GB/s: 8.0 times less."
    tiers, links = one.tables
    assert tiers.rows == [
        ("across nodes", "2", "60", "0.50", "0.50", "0.50"),
        ("in a node", "4", "20", "4.0", "2.0", "4.0"),
    ]
    assert links.rows[0] == ("rank 0", "rank 2", "across nodes", "60", "0.50")
    assert links.rows[2] == ("rank 3", "rank 2", "in a node", "20", "2.0")
    assert len(links.rows) == 6
