"""Figures of several sides."""

from __future__ import annotations

import plotly.graph_objects as go
import pytest

import fake_results as fake
from parabench.analysis.compare.comparison import compare_sessions
from parabench.analysis.compare.overall import overall
from parabench.analysis.compare.sides import read_several
from parabench.report.figures import sides
from several_sides import CASES, four_stores, write


def several(stores):
    of = compare_sessions(read_several(stores))
    return of, overall(of)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return several([*four_stores(tmp_path_factory.mktemp("sides")).values()])


def scaled(folder, name, factors, **more):
    """A session whose launches take exactly `factors` times 40 ms, by case."""
    launches = [fake.launch(case, 0.04 * factor, block=block) for block in range(3) for case, factor in factors.items()]
    return write(folder, name, cases=[], launches=launches, **more)


def test_ratios_are_ordered_with_the_mean_last(tmp_path):
    near, slower, faster = CASES[:3]
    base = scaled(tmp_path, "base", dict.fromkeys(CASES[:4], 1.0))
    other = scaled(tmp_path, "other", {near: 1.01, slower: 1.5, faster: 0.7})
    of, works = several([base, other])
    (panel,) = sides.ratios(of, works, "step_time")
    go.Figure(panel.figure)
    (trace,) = panel.figure["data"]
    labels = panel.figure["layout"]["yaxis"]["ticktext"]
    assert labels == [faster.label, near.label, slower.label, "geometric mean of 3 configurations"]
    assert trace["x"] == pytest.approx([0.7, 1.01, 1.5, (0.7 * 1.01 * 1.5) ** (1 / 3)])
    assert (trace["y"], trace["customdata"]) == ([0, 1, 2, 3], [faster.id, near.id, slower.id, "all"])
    assert trace["marker"]["symbol"] == ["square", "square-open", "square", "square-open"]
    # By change: 0.4 of log 1.5, then of log 0.7, then the smallest; the mean is always shown.
    assert panel.figure["layout"]["meta"]["rows"]["order"] == [1, 2, 0, -1]
    assert all(end > 0 for name in ("array", "arrayminus") for end in trace["error_x"][name])
    assert trace["hovertext"][0].startswith(f"<b>{faster.label}</b><br>other: 0.70 times (95%: ")


def test_ratios_of_one_launch_have_no_interval(tmp_path):
    stores = [
        write(tmp_path, name, cases=[], launches=[fake.launch(CASES[0], 0.04 * factor)])
        for name, factor in (("a<b>", 1.0), ("other", 1.2))
    ]
    (panel,) = sides.ratios(*several(stores), "step_time")
    (trace,) = panel.figure["data"]
    assert (trace["error_x"]["array"], trace["error_x"]["arrayminus"]) == ([0], [0])
    assert trace["hovertext"][0].endswith("1.20 times (no interval: it needs two launches per variant)")
    # Names are text; a mean of one configuration is its ratio.
    assert panel.figure["layout"]["xaxis"]["title"]["text"] == "step time, a&lt;b&gt; = 1"
    assert len(trace["x"]) == 1


def test_ratios_of_four_sides_have_three_traces(four):
    (panel,) = sides.ratios(*four, "step_time")
    go.Figure(panel.figure)
    new, alike, other = panel.figure["data"]
    assert [trace["name"] for trace in (new, alike, other)] == ["new", "alike", "other"]
    assert [trace["y"][0] for trace in (new, alike, other)] == pytest.approx([-0.22, 0, 0.22])
    assert [trace["marker"]["symbol"][-1].endswith("-open") for trace in (new, alike, other)] == [False, True, False]
    assert sides.ratios(*four, "per_joule") == []


def test_memory_has_a_row_per_case(four):
    (panel,) = sides.memory(*four)
    go.Figure(panel.figure)
    assert [trace["name"] for trace in panel.figure["data"]] == list(four[0].names)
    assert all(sorted(trace["y"]) == [*range(6)] for trace in panel.figure["data"])


def test_buckets_have_a_curve_per_side(tmp_path):
    sizes = (4.0, 1.0, None, (1.0, 4.0))
    cases = [fake.case(bucket_mib=size) for size in sizes] + [fake.case(algorithm="ring")]
    stores = [scaled(tmp_path, name, dict.fromkeys(cases[:n], 1.0)) for name, n in (("old", 5), ("new", 2))]
    (panel,) = sides.buckets(*several(stores))
    go.Figure(panel.figure)
    assert panel.title == "ddp native, 2 ranks"
    # Lists of caps and the default are not sizes, so no line joins them.
    assert panel.figure["layout"]["xaxis"] == {
        "title": {"text": "bucket size (MiB)"}, "tickvals": [0, 2, 3, 4], "ticktext": ["1", "4", "1+4", "default"],
    }  # fmt: skip
    assert [(trace["name"], len(trace["x"]), trace["showlegend"]) for trace in panel.figure["data"]] == [
        ("old", 2, True), ("old", 2, False), ("new", 2, True),
    ]  # fmt: skip
    first = panel.figure["data"][0]
    assert (first["y"], first["customdata"]) == (pytest.approx([40, 40]), [cases[1].id, cases[0].id])
    assert first["hovertext"][0] == f"<b>{cases[1].label}</b><br>old: 40.0 ms per step<br>3 of 3 launches ok"


def test_scaling_shows_the_longest_curve_of_a_strategy(tmp_path):
    native = [fake.case(world_size=n) for n in (2, 4, 8)]
    ring = [fake.case(algorithm="ring", world_size=n) for n in (2, 4)]
    fsdp = [fake.case(strategy="fsdp", world_size=n) for n in (2, 4)]
    old = scaled(tmp_path, "old", {case: 2 / case.world_size for case in (*native, *fsdp)} | dict.fromkeys(ring, 0.1))
    new = scaled(tmp_path, "new", {case: 2 / case.world_size for case in native})
    of, _ = several([old, new])
    (throughput,) = sides.scaling(of)
    go.Figure(throughput.figure)
    assert throughput.title == "Strong scaling, global batch 8"
    drawn = {trace["name"]: trace for trace in throughput.figure["data"]}
    assert {name: trace["customdata"] for name, trace in drawn.items()} == {
        "old, ddp": [case.id for case in native], "old, fsdp": [case.id for case in fsdp],
        "new, ddp": [case.id for case in native],
    }  # fmt: skip
    assert (drawn["old, ddp"]["line"]["dash"], drawn["old, fsdp"]["line"]["dash"]) == ("solid", "dash")
    first = throughput.figure["data"][0]["hovertext"][0]
    assert first == "<b>old</b><br>ddp, native, bucket default<br>2 ranks<br>12,800 tokens/s, efficiency 100%"
