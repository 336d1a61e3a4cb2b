"""Figures of step time and throughput along an axis, on step times without noise."""

import math
import re

import pytest

import fake_results as fake
from page_helpers import drawn
from parabench.analysis.session import SessionData, session_data
from parabench.report.sections.axes import algorithms_section, by_bucket_section, scaling_section

# In seconds, by strategy, algorithm, ranks and bucket size.
STEPS = {
    ("ddp", "ring", 4, 25.0): 0.020, ("ddp", "ring", 4, 4.0): 0.021, ("ddp", "native", 4, 25.0): 0.022,
    ("ddp", "native", 4, None): 0.023, ("ddp", "native", 4, 4.0): 0.025, ("ddp", "tree", 4, 25.0): 0.030,
    ("ddp", "native", 2, 25.0): 0.040, ("fsdp", "native", 4, None): 0.050, ("fsdp", "native", 2, None): 0.060,
    ("single", "native", 1, None): 0.080,
}  # fmt: skip
CAPS = [(1.0, 10.0), (1.0, 4.0, 25.0), 4.0, None, 1.0, (0.001,), (0.0005, 25.0)]


def case(strategy, algorithm, ranks, mib, **more):
    return fake.case(strategy=strategy, algorithm=algorithm, world_size=ranks, bucket_mib=mib, **more)


def seen(folder, steps, repetitions=2) -> SessionData:
    launches = fake.sweep(steps, steps.__getitem__, repetitions=repetitions)
    return session_data(fake.write(folder / "r.db", launches))


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    return seen(tmp_path_factory.mktemp("curves"), {case(*key): seconds for key, seconds in STEPS.items()})


def traces(panel):
    return {trace.name: trace for trace in drawn(panel).data}


def test_buckets_have_a_curve_per_algorithm_and_the_default_apart(known):
    (panel,) = by_bucket_section(known).panels
    figure = drawn(panel)
    assert panel.title == "ddp, 4 ranks"
    assert figure.layout.xaxis.ticktext == ("4", "25", "default")
    assert [(trace.name, trace.mode, trace.y) for trace in figure.data] == [
        ("native", "lines+markers", pytest.approx((25, 22))), ("native", "markers", pytest.approx((23,))),
        ("ring", "lines+markers", pytest.approx((21, 20))), ("tree", "lines+markers", pytest.approx((30,))),
    ]  # fmt: skip
    assert [trace.showlegend for trace in figure.data] == [True, False, True, True]
    assert figure.data[1].x[0] > max(figure.data[0].x)
    assert figure.data[2].customdata == tuple(case("ddp", "ring", 4, mib).id for mib in (4.0, 25.0))
    # Filled and shaded: the fastest.
    assert [symbol.endswith("-open") for symbol in figure.data[2].marker.symbol] == [True, False]
    (band,) = figure.layout.shapes
    assert (band.x0, band.x1) == pytest.approx((math.log2(25) - 0.3, math.log2(25) + 0.3))


def test_bucket_bars_span_the_launches(tmp_path):
    cases = [fake.case(bucket_mib=mib) for mib in (1.0, 2.0)]
    launches = [fake.launch(each, seconds, repetition=at) for at, seconds in enumerate((0.04, 0.06)) for each in cases]
    (panel,) = by_bucket_section(session_data(fake.write(tmp_path / "r.db", launches))).panels
    (trace,) = drawn(panel).data
    assert trace.y[0] - trace.error_y.arrayminus[0] == pytest.approx(40)
    assert trace.y[0] + trace.error_y.array[0] == pytest.approx(60)


def test_buckets_have_a_panel_for_each_other_option(tmp_path):
    options = [{"gradient_as_bucket_view": on} for on in (False, True)]
    steps = {case("ddp", "native", 2, mib, **more): 0.04 for mib in (1.0, 2.0) for more in options}
    assert [panel.title for panel in by_bucket_section(seen(tmp_path, steps)).panels] == [
        "ddp, 2 ranks, gradient_as_bucket_view off", "ddp, 2 ranks, gradient_as_bucket_view on"
    ]  # fmt: skip


def test_lists_of_caps_are_between_the_sizes_and_the_default(tmp_path):
    steps = {case("ddp", "native", 4, mib): 0.1 + at / 100 for at, mib in enumerate(CAPS)}
    figure = drawn(by_bucket_section(seen(tmp_path, steps)).panels[0])
    assert figure.layout.xaxis.ticktext == ("1", "4", "0.0005+25", "0.001+", "1+4+25", "1+10", "default")
    assert figure.layout.xaxis.tickvals == (0, 2, 3, 4, 5, 6, 7)
    assert [(trace.mode, trace.x) for trace in figure.data] == [
        ("lines+markers", (0, 2)), ("markers", (3, 4, 5, 6, 7))
    ]  # fmt: skip


def test_algorithms_are_relative_to_native(known):
    (panel,) = algorithms_section(known).panels
    assert panel.title == "ddp, 4 ranks"
    assert drawn(panel).layout.yaxis.ticktext == ("4 MiB", "25 MiB")
    assert traces(panel)["native"].x == (1, 1)
    assert traces(panel)["ring"].x == pytest.approx((0.021 / 0.025, 0.020 / 0.022))
    assert traces(panel)["ring"].hovertext[0].endswith("<br>0.840 times native's step")
    assert traces(panel)["tree"].customdata == (case("ddp", "tree", 4, 25.0).id,)


def test_two_level_is_compared_with_native(tmp_path):
    two_level = case("ddp", "two_level", 4, 4.0, ranks_per_node=2)
    (panel,) = algorithms_section(seen(tmp_path, {case("ddp", "native", 4, 4.0): 0.1, two_level: 0.2})).panels
    assert panel.title == "ddp, 4 ranks"
    assert traces(panel)["two_level"].x == pytest.approx((2,))


def test_scaling_has_the_longest_curve_of_each_strategy(known):
    (panel,) = scaling_section(known).panels
    assert panel.title == "Strong scaling, global batch 8"
    found = traces(panel)
    assert [*found] == ["ideal", "ddp native 25 MiB", "fsdp native", "single"]
    assert found["ideal"].meta == "all"
    assert found["ideal"].y == pytest.approx([512 / 0.08 * ranks for ranks in (1, 2, 4)])
    assert found["ddp native 25 MiB"].y == pytest.approx((512 / 0.08, 512 / 0.04, 512 / 0.022))
    assert re.search(r"<br>12,800 tokens/s, efficiency 100%$", found["ddp native 25 MiB"].hovertext[1])
    ids = [case("fsdp", "native", ranks, None).id for ranks in (2, 4)]
    assert found["fsdp native"].customdata == ("|".join(ids), *ids)  # the single device belongs to each curve
    assert found["single"].customdata == (case("single", "native", 1, None).id,)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([("native", None), ("ring", None)], ["ddp native", "ddp ring"]),
        ([("native", 1.0), ("native", 4.0)], ["ddp native 1 MiB", "ddp native 4 MiB"]),
    ],
)
def test_scaling_of_one_strategy_has_a_curve_for_each_option(tmp_path, options, names):
    steps = {case("ddp", *option[:1], ranks, option[1]): 0.1 / ranks for option in options for ranks in (2, 4)}
    (panel,) = scaling_section(seen(tmp_path, steps)).panels
    assert [*traces(panel)] == ["ideal", *names]


def rates(steps):
    """Step times of strategies by world size, for throughput of 512 tokens a step."""
    return {case(strategy, "native", ranks, None): 512 / rate for (strategy, ranks), rate in steps.items()}


def test_scaling_ideal_does_not_press_the_curves_down(tmp_path):
    flat = {("single", 1): 100, ("ddp", 2): 100, ("ddp", 4): 100, ("ddp", 8): 100}
    (throughput,) = scaling_section(seen(tmp_path, rates(flat))).panels
    assert traces(throughput)["ideal"].y[-1] == pytest.approx(800)
    assert drawn(throughput).layout.yaxis.range == pytest.approx((0, 157.5))


def test_scaling_ideal_is_the_best_ranked_base_without_one_device(tmp_path):
    steps = {("ddp", 2): 80, ("ddp", 4): 160, ("local_only", 2): 160, ("local_only", 4): 320}
    (throughput,) = scaling_section(seen(tmp_path, rates(steps))).panels
    found = traces(throughput)
    assert (found["ideal"].x, found["ideal"].y) == ((2, 4), pytest.approx((80, 160)))
    assert (found["ddp native"].line.dash, found["local_only"].line.dash) == ("solid", "dash")


def test_scaling_axis_is_logarithmic_when_ranks_are_many(tmp_path):
    steps = {
        case("single", "native", 1, None, global_batch=32): 1.0,
        case("ddp", "native", 32, None, global_batch=32): 0.05,
    }
    (throughput,) = scaling_section(seen(tmp_path, steps)).panels
    layout = drawn(throughput).layout
    assert (layout.xaxis.type, layout.yaxis.type, layout.xaxis.tickvals) == ("log", "log", (1, 32))
